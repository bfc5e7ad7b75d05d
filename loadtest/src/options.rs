//! Command-line options that several scenarios share.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

/// A scenario's options, and where its report goes.
#[derive(Debug, Args)]
pub struct Run<O: Args> {
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub options: O,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options as an empty command line gives them, for tests and for the tables of the plan. Ends the process where the
/// environment holds values that cannot be used.
pub fn defaults<O: Args>() -> O {
    let command = O::augment_args(clap::Command::new("defaults").no_binary_name(true));
    let matches = command.get_matches_from(std::iter::empty::<OsString>());
    O::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The service's binary: `seckill` in the folder of this program.
pub fn service() -> PathBuf {
    std::env::current_exe()
        .unwrap_or_default()
        .with_file_name("seckill")
}

/// Parses a finite number above 0.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    number(text, |value| value > 0.0, "above 0")
}

/// Parses a finite number for which `holds` is true; the error says which kind is `wanted`.
pub(crate) fn number(text: &str, holds: impl Fn(f64) -> bool, wanted: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && holds(number) => Ok(number),
        _ => Err(format!("it must be a number {wanted}")),
    }
}
