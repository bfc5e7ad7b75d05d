//! Logs. Lines go to standard error; each carries the request's id through its span.

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Sets up logging for the process. To be called once.
pub fn init(config: &LogConfig) -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .parse(&config.log)
        .with_context(|| format!("RUST_LOG / --log is not valid: `{}`", config.log))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => {
            builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|fault| anyhow::anyhow!("cannot set up logging: {fault}"))
}
