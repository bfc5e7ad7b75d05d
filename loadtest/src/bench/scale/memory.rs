//! Memory of an instance: by idle connection, by session that it has just seen, by open sale.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use seckill_loadtest::plan::figures::Memory;
use workload::descriptors;

use super::{Scale, Size, say};
use crate::bench::environment::{Buyers, Environment};
use crate::bench::servers;

/// Connections opened; as many descriptors are needed here and in the instance.
const CONNECTIONS: usize = 3_000;
/// Sales opened.
const SALES: u64 = 10_000;

impl Scale<'_> {
    /// Measures a fresh instance, after a run that fills its pools.
    pub(super) async fn memory(
        &self,
        main: &Environment,
        buyers: &Buyers,
    ) -> anyhow::Result<Memory> {
        say("memory");
        descriptors::reserve(CONNECTIONS)?;
        let server = servers::instance(main, "scale-memory", &[]).await?;
        let few = buyers.part(super::FEW_SESSIONS, 0);
        let size = |buyers, sales| Size {
            count: 0,
            environment: main,
            buyers,
            servers: vec![&server],
            sales,
        };
        for is_order in [true, false] {
            self.answers(&size(&few, 1), 0, is_order).await?;
        }
        let fresh = server.memory()?;
        // As many as were asked for: a slow machine does not get through all of them.
        let run = self.answers(&size(buyers, 1), 0, false).await?;
        let sessions = run.attempts.list.len().min(buyers.users.len()).max(1);
        let seen = server.memory()?;
        let run = self.answers(&size(buyers, SALES), 0, true).await?;
        let sales = run.attempts.list.len().min(usize::try_from(SALES)?).max(1);
        let selling = server.memory()?;
        let address = server.address;
        let connections = tokio::task::spawn_blocking(move || open(address, CONNECTIONS)).await??;
        let connected = server.memory()?;
        let per = |after: u64, before: u64, count: usize| {
            (after as f64 - before as f64).max(0.0) / count as f64
        };
        Ok(Memory {
            session_redis: 0.0,
            session_instance: per(seen, fresh, sessions),
            sale_instance: per(selling, seen, sales),
            connection_instance: per(connected, selling, connections.len()),
            order_database: 0.0,
        })
    }
}

/// Opens connections and sends a request on each, so that the instance has made all that it keeps for one.
fn open(address: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
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
