//! The servers that a comparison runs against.

use crate::{Access, Target, live::Progress};

/// The servers that a comparison runs against.
#[derive(Debug, Clone, clap::Args)]
pub struct Environment {
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub access: Access,
    /// The proxy before all instances, or, without one, all of them, asked in turn
    #[arg(
        long,
        env = "TARGETS",
        value_delimiter = ',',
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub entry: Vec<Target>,
    /// The instances themselves, past the proxy; a comparison on one instance asks the first
    #[arg(
        long,
        env = "NODES",
        value_delimiter = ',',
        value_name = "URL",
        default_value = "http://127.0.0.1:8081,http://127.0.0.1:8082"
    )]
    pub nodes: Vec<Target>,
    #[arg(skip = Progress::Stderr)]
    #[allow(missing_docs)]
    pub progress: Progress,
}
