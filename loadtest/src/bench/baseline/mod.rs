//! Baselines: programs as fast as possible that do less than the service. Each runs in a process of its own, as the
//! service does (`loadtest baseline …`).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;

pub mod bare_route;
mod server;
mod transaction;

/// Which baseline, and what it needs.
#[derive(Debug, Subcommand)]
pub enum Baseline {
    /// The bare route
    Bare {
        /// Address to listen on
        #[arg(long)]
        bind: SocketAddr,
        /// Unix socket to listen on as well
        #[arg(long)]
        bind_unix: PathBuf,
    },
    /// The tuned one-transaction-per-order
    Transaction(transaction::Settings),
}

/// Serves it until the process is ended.
pub async fn serve(baseline: Baseline) -> anyhow::Result<()> {
    match baseline {
        Baseline::Bare { bind, bind_unix } => bare_route::serve(bind, &bind_unix).await,
        Baseline::Transaction(settings) => transaction::serve(&settings).await,
    }
}
