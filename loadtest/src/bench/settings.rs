//! What all kinds of measurement are told.

use std::path::PathBuf;
use std::time::Duration;

use workload::Access;
use workload::live::Progress;

/// Where to measure, how long, and what becomes of the figures.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The stack's servers.
    pub access: Access,
    /// The service's binary.
    pub seckill: PathBuf,
    /// Folder for the report, logs and other files.
    pub folder: PathBuf,
    pub rounds: usize,
    pub duration: Duration,
    /// Good for trying out, not for conclusions.
    pub quick: bool,
    /// Whether the documents get the tables.
    pub write: bool,
}

/// Says one thing on stderr.
pub fn say(text: &str) {
    Progress::Stderr.say(text);
}
