//! A server's clock that is stepped and, at the end of the fault, stepped back ([`testkit::clock`]).

use std::{fmt, ops::Range, time::Duration};

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
    /// How long it may last, in milliseconds. The server sees it after up to a second.
    pub fn lasts(self) -> Range<u64> {
        1_100..2_200
    }

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

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (minutes, way) =
            (self.seconds.abs() / 60, if self.seconds < 0 { "back" } else { "on" });
        write!(f, "step the clock of {} {minutes} minutes {way}", self.of)
    }
}
