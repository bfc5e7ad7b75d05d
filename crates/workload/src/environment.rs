//! The servers that a tool's command works with.

use crate::{Access, Error, Target, live::Progress};

/// The servers that a tool's command works with, as command lines take them.
#[derive(Debug, Clone, clap::Args)]
pub struct Environment {
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub access: Access,
    /// The proxy before all instances, or, without one, all of them; the attempts of one user go to them in turn
    #[arg(
        long,
        env = "TARGETS",
        value_delimiter = ',',
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub targets: Vec<Target>,
    /// The instances themselves, past the proxy; what runs on one instance asks the first
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

impl Environment {
    /// These targets, for tests: without instances past them, and without progress.
    pub fn silent(access: Access, targets: Vec<Target>) -> Self {
        Self { access, targets, nodes: Vec::new(), progress: Progress::Silent }
    }

    /// Where sales are published.
    pub fn first_target(&self) -> Result<&Target, Error> {
        let first = self.targets.first();
        first.ok_or_else(|| Error::Usage("at least one target is needed".to_owned()))
    }
}
