//! Memory of an instance: idle, and at its peak.

use serde::Serialize;

use crate::bench::environment::Environment;
use crate::bench::servers::{self, Server};

/// Resident memory of an instance, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct InstanceMemory {
    /// Just started.
    pub idle: u64,
    /// The most that the instance of the ratios ever had.
    pub peak: u64,
}

impl InstanceMemory {
    /// Measures an instance started for it, and reads the peak of `used`.
    ///
    /// # Errors
    /// The instance does not start, or the system does not report memory.
    pub async fn measure(environment: &Environment, used: &Server) -> anyhow::Result<Self> {
        let fresh = servers::instance(environment, "memory", &[]).await?;
        Ok(Self { idle: fresh.memory()?, peak: used.peak_memory()? })
    }

    /// One sentence.
    pub fn text(&self) -> String {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        format!(
            "Memory of an instance: {:.0} MB idle, {:.0} MB at its peak.",
            megabytes(self.idle),
            megabytes(self.peak),
        )
    }
}
