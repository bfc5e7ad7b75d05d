//! Memory of an instance: by idle connection, by session that it has just seen, by open sale.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::plan::figures::Memory;
use anyhow::{Context, ensure};
use workload::descriptors;

use super::answers::{FEW_SESSIONS, answers, asking};
use crate::bench::environment::Environment;
use crate::bench::plan::Plan;
use crate::bench::servers;

/// Connections opened; as many descriptors are needed here and in the instance.
const CONNECTIONS: usize = 3_000;
/// Sales opened.
const SALES: u64 = 10_000;

/// Measures a fresh instance, after runs that fill its pools. Redis and the database are not measured here.
pub async fn measure(environment: &Environment) -> anyhow::Result<Memory> {
    descriptors::reserve(CONNECTIONS)?;
    let server = servers::instance(environment, "scale-memory", &[]).await?;
    let all = asking(environment, vec![&server], 1);
    let few = Plan { part: Some((FEW_SESSIONS, 0)), ..all.clone() };
    for is_order in [true, false] {
        answers(&few, 0, is_order).await?;
    }
    let fresh = server.memory()?;
    // As many as were asked for: a slow machine does not get through all of them.
    let (_, count) = answers(&all, 0, false).await?;
    let sessions = count.min(environment.buyers.len());
    let seen = server.memory()?;
    let many = Plan { sales: Some(SALES), ..all };
    let (_, count) = answers(&many, 0, true).await?;
    let sales = count.min(usize::try_from(SALES)?);
    let selling = server.memory()?;
    let address = server.address;
    let connections = tokio::task::spawn_blocking(move || open(address, CONNECTIONS)).await??;
    let connected = server.memory()?;
    let per = |after: u64, before: u64, count: usize| {
        (after as f64 - before as f64).max(0.0) / count.max(1) as f64
    };
    Ok(Memory {
        session_instance: per(seen, fresh, sessions),
        sale_instance: per(selling, seen, sales),
        connection_instance: per(connected, selling, connections.len()),
        ..Memory::default()
    })
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
