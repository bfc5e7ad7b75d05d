//! Baselines: programs as fast as possible that do less than the service. Each runs in a process of its own, as the
//! service does (`loadtest baseline …`).

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::any;
use axum::serve::ListenerExt;
use clap::Subcommand;
use tokio::net::TcpListener;

mod transaction;

/// Which baseline, and what it needs.
#[derive(Debug, Subcommand)]
pub enum Baseline {
    /// A bare axum route: the upper bound of this framework on this machine
    Bare {
        /// Address to listen on
        #[arg(long)]
        bind: SocketAddr,
    },
    /// The tuned one-transaction-per-order
    Transaction(transaction::Settings),
}

/// Serves it until the process is ended.
pub async fn serve(baseline: Baseline) -> anyhow::Result<()> {
    match baseline {
        Baseline::Bare { bind } => listen(bind, bare_route()).await,
        Baseline::Transaction(settings) => {
            listen(settings.bind, transaction::router(&settings).await?).await
        }
    }
}

async fn listen(bind: SocketAddr, router: Router) -> anyhow::Result<()> {
    let listener = TcpListener::bind(bind).await.with_context(|| bind.to_string())?;
    let listener = listener.tap_io(|stream| {
        // Without it the rate would be that of delayed acknowledgements.
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("cannot set TCP_NODELAY: {error}");
        }
    });
    Ok(axum::serve(listener, router).await?)
}

/// An order's reply.
const ORDERED: &str =
    r#"{"success":true,"data":663823142027984897,"orderId":"663823142027984897"}"#;

/// The reply when nothing is left.
const SOLD_OUT: &str = r#"{"success":false,"errorMsg":"库存不足！","code":"SOLD_OUT"}"#;

/// A shop, as long as the one that is read beside it.
const SHOP: &str = r#"{"success":true,"data":{"id":1,"name":"压测 load tests","typeId":10,"images":"","address":"127.0.0.1","x":120.15,"y":30.32,"avgPrice":80,"sold":0,"comments":0,"score":0,"openHours":"00:00-24:00","createTime":"2026-01-01T00:00:00","updateTime":"2026-01-01T00:00:00"}}"#;

/// Sends the same bodies as the service and does no work for them: no session, no database, no middleware. It answers
/// purchases with an order, those under `/sold-out` with "sold out", and reads with a shop.
fn bare_route() -> Router {
    let reply = |body: &'static str| {
        any(move || async move { ([(CONTENT_TYPE, "application/json")], body) })
    };
    Router::new()
        .route("/voucher-order/seckill/{id}", reply(ORDERED))
        .route("/sold-out/voucher-order/seckill/{id}", reply(SOLD_OUT))
        .route("/shop/{id}", reply(SHOP))
        .route("/health/ready", reply(ORDERED))
}
