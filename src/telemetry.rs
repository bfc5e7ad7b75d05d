//! Logging, to standard error. Each line that is written for a request names it.

use std::fmt;

use anyhow::Context as _;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogConfig, LogFormat};
use crate::request::context::RequestContext;

/// Sets up logging for the process. To be called once.
pub fn init(config: &LogConfig) -> anyhow::Result<()> {
    // `Targets` and not `EnvFilter`: no directive here is about spans, and the latter brings a regex engine along.
    let filter: Targets = config
        .log
        .parse()
        .with_context(|| format!("RUST_LOG / --log is not valid: `{}`", config.log))?;
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE) // the filter decides
        .with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Text => {
            let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
            builder
                .map_event_format(|format| WithRequest {
                    format: format.with_ansi(ansi),
                    json: false,
                })
                .finish()
                .with(filter)
                .try_init()
        }
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .map_event_format(|format| WithRequest { format, json: true })
            .finish()
            .with(filter)
            .try_init(),
    }
    .context("cannot set up logging")
}

/// A log format that appends the current request to each line.
struct WithRequest<F> {
    format: F,
    json: bool,
}

impl<S, N, F> FormatEvent<S, N> for WithRequest<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.format
            .format_event(context, Writer::new(&mut line), event)?;
        let line = line.trim_end_matches('\n');
        RequestContext::with_current(|request| {
            if self.json {
                let RequestContext {
                    id, method, uri, ..
                } = request;
                let request = serde_json::json!({
                    "id": id.to_str().unwrap_or_default(),
                    "method": method.as_str(),
                    "path": uri.path(),
                });
                let open = line.strip_suffix('}').unwrap_or(line);
                writeln!(writer, "{open},\"request\":{request}}}")
            } else {
                writeln!(writer, "{line} {request}")
            }
        })
        .unwrap_or_else(|| writeln!(writer, "{line}"))
    }
}
