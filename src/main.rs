//! The binary: parses the command line and runs one subcommand. An error prints its chain of causes and exits with 1, a
//! wrong command line exits with 2.

use clap::Parser;
use seckill::config::{Cli, Command};
use seckill::{app, command, telemetry};

// glibc's allocator keeps per-thread arenas that grow in a burst and are never returned.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    telemetry::init(&cli.log)?;
    match cli.command {
        Command::Serve(config) => app::serve(*config).await,
        Command::Migrate(config) => command::migrate(config).await,
        Command::Seed(config) => command::seed::run(config).await,
        Command::Audit(config) => command::audit(config).await,
        Command::Doctor(config) => command::doctor::run(config).await,
    }
}
