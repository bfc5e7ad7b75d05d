//! Memory of an instance: by idle connection, by session that it has just seen, by open sale.

use std::time::Duration;

use crate::plan::figures::Memory;
use workload::descriptors;
use workload::http::{Call, Connection};

use super::growth::{FEW_SESSIONS, answers, asking};
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
    let servers = [servers::instance(environment, "scale-memory", &[]).await?];
    let [server] = &servers;
    let all = asking(environment, &servers, 1);
    let few = Plan { part: Some((FEW_SESSIONS, 0)), ..all.clone() };
    let many = Plan { sales: Some(SALES), ..all.clone() };
    for is_order in [true, false] {
        answers(&few, 0, is_order).await?;
    }
    let [fresh, _] = server.memory()?;
    // As many as were asked for: a slow machine does not get through all of them.
    let sessions =
        answers(&all, 0, false).await?.latency.count.min(environment.buyers.len() as u64);
    let [seen, _] = server.memory()?;
    let sales = answers(&many, 0, true).await?.latency.count.min(SALES);
    let [selling, _] = server.memory()?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::new(server.target.clone(), Duration::from_secs(5));
        // So that the instance has made all that it keeps for one.
        connection.send(&Call::get("/health/live")).await?;
        connections.push(connection);
    }
    let [connected, _] = server.memory()?;
    let per = |after: u64, before: u64, count: u64| {
        (after as f64 - before as f64).max(0.0) / count.max(1) as f64
    };
    Ok(Memory {
        session_instance: per(seen, fresh, sessions),
        sale_instance: per(selling, seen, sales),
        connection_instance: per(connected, selling, CONNECTIONS as u64),
        ..Memory::default()
    })
}
