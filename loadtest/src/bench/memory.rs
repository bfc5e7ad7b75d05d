//! Memory of an instance: idle, at its peak, and by connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use workload::descriptors;

use crate::bench::environment::Environment;
use crate::bench::servers::{self, Server};

/// Connections opened to find out what one costs.
const CONNECTIONS: usize = 1_000;

/// Resident memory of an instance, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct InstanceMemory {
    /// Just started.
    pub idle: u64,
    /// The most that the instance of the ratios ever had.
    pub peak: u64,
    /// What one more idle keep-alive connection takes, without the kernel's buffers.
    pub per_connection: f64,
}

impl InstanceMemory {
    /// Measures an instance started for it, and reads the peak of `used`.
    ///
    /// # Errors
    /// The instance does not start, or the system does not report memory.
    pub async fn measure(environment: &Environment, used: &Server) -> anyhow::Result<Self> {
        descriptors::reserve(CONNECTIONS)?;
        let fresh = servers::instance(environment, "memory", &[]).await?;
        let idle = fresh.memory()?;
        let address = fresh.address;
        let connections = tokio::task::spawn_blocking(move || open(address, CONNECTIONS)).await??;
        let connected = fresh.memory()?.saturating_sub(idle);
        let per_connection = connected as f64 / connections.len() as f64;
        Ok(Self { idle, peak: used.peak_memory()?, per_connection })
    }

    /// One sentence.
    pub fn text(&self) -> String {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        format!(
            "Memory of an instance: {:.0} MB idle, {:.0} MB at its peak, {:.1} KB for each idle connection.",
            megabytes(self.idle),
            megabytes(self.peak),
            self.per_connection / 1e3
        )
    }
}

/// Opens connections and sends a request on each, so that the instance has made all that it keeps for one.
///
/// # Errors
/// The instance does not accept, or does not answer.
pub fn open(address: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let request = format!("GET /health/live HTTP/1.1\r\nhost: {address}\r\n\r\n");
    (0..count)
        .map(|_| {
            let mut stream = TcpStream::connect(address).context("opening connections")?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = [0; 1024];
            ensure!(stream.read(&mut answer)? > 0, "the instance closed a connection");
            Ok(stream)
        })
        .collect()
}
