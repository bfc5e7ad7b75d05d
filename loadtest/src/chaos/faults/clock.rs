//! A server's clock that is stepped and, at the end of the fault, stepped back ([`testkit::clock`]).

use std::time::Duration;

use testkit::clock::step;
use tokio::time::sleep;

use crate::chaos::test_cluster::{ServerKind, TestCluster, server};
use workload::Error;

/// A step of a server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockFault {
    /// Whose clock.
    pub of: ServerKind,
    /// By how many seconds.
    pub seconds: i32,
}

impl ClockFault {
    /// Injects it, and undoes it.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn inject(self, cluster: &TestCluster, lasts: Duration) -> Result<(), Error> {
        let file = cluster.clock_file(self.of);
        let _turn = cluster.clock_turn(self.of).await;
        step(&file, self.seconds).map_err(server("clock"))?;
        sleep(lasts).await;
        step(&file, 0).map_err(server("clock"))
    }
}
