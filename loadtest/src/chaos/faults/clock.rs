//! A server's clock that is stepped and, at the end of the fault, stepped back ([`testkit::clock`]).

use testkit::clock;
use tokio::time::sleep;

use super::scene::Scene;
use crate::chaos::{instance::server, test_cluster::ServerKind};
use workload::Error;

/// Steps it by so many seconds. Such faults of one server take turns.
pub async fn step(it: Scene<'_>, of: ServerKind, seconds: i32) -> Result<(), Error> {
    let file = it.cluster.clocks[of as usize].lock().await;
    clock::step(&file, seconds).map_err(server("clock"))?;
    sleep(it.lasts).await;
    clock::step(&file, 0).map_err(server("clock"))
}
