//! The servers that a comparison runs against.

use crate::{Access, Target, live::Progress};

/// The servers that a comparison runs against.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Servers and secrets.
    pub access: Access,
    /// The proxy in front of all instances; without one, the instances, which are then asked in turn.
    pub entry: Vec<Target>,
    /// The instances; the first is the one that a comparison on one instance asks.
    pub nodes: Vec<Target>,
    /// Where progress goes.
    pub progress: Progress,
}
