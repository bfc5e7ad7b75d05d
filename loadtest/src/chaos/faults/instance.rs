//! Faults of an instance of the service: ended, stopped, restarted.

use std::time::Duration;

use tokio::time::sleep;

use crate::chaos::test_cluster::TestCluster;
use workload::Error;

/// What is done to an instance, by its index, or to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceFault {
    /// SIGKILL, then started again.
    Kill(usize),
    /// SIGSTOP, then SIGCONT.
    Stop(usize),
    /// As [`InstanceFault::Stop`], longer than the other instance waits before it takes over what this one held.
    StopForTakeover(usize),
    /// One after the other is asked to end (SIGTERM) and started again.
    Roll,
}

use InstanceFault::{Kill, Roll, Stop, StopForTakeover};

impl InstanceFault {
    /// Injects it, and undoes it.
    ///
    /// # Errors
    /// An instance that does not end, or does not serve again.
    pub async fn inject(self, cluster: &TestCluster, lasts: Duration) -> Result<(), Error> {
        match self {
            Kill(which) => {
                let mut instance = cluster.instances[which].lock().await;
                instance.kill();
                sleep(lasts).await;
                instance.restart().await
            }
            Stop(which) | StopForTakeover(which) => {
                cluster.instances[which].lock().await.pause(lasts).await
            }
            Roll => {
                for instance in &cluster.instances {
                    let mut instance = instance.lock().await;
                    instance.end().await?;
                    instance.restart().await?;
                    sleep(lasts).await;
                }
                Ok(())
            }
        }
    }
}
