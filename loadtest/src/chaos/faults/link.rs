//! Faults of the network between the instances and a server, by the proxy in front of it.

use std::time::Duration;

use testkit::proxy::Mode;
use tokio::time::sleep;

use crate::chaos::test_cluster::{ServerKind, TestCluster};
use ServerKind::Database;

/// What is done to the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkFault {
    /// Every connection to this server is closed, new ones too.
    Cut(ServerKind),
    /// Every connection to this server goes silent for good without being closed; new ones work.
    HalfOpen(ServerKind),
    /// What is asked of this server happens, and the reply is lost.
    LoseReplies(ServerKind),
    /// A COMMIT is lost on its way to the database.
    LoseCommits,
    /// A COMMIT happens, and its reply is lost.
    LoseCommitReplies,
}

use LinkFault::{Cut, HalfOpen, LoseCommitReplies, LoseCommits, LoseReplies};

impl LinkFault {
    /// Injects it, and undoes it.
    pub async fn inject(self, cluster: &TestCluster, lasts: Duration) {
        let (kind, mode) = match self {
            Cut(kind) => (kind, Mode::Cut),
            HalfOpen(kind) => (kind, Mode::HalfOpen),
            LoseReplies(kind) => (kind, Mode::LoseReplies),
            LoseCommits => (Database, Mode::LoseCommit),
            LoseCommitReplies => (Database, Mode::LoseCommitReply),
        };
        cluster.set_proxies(kind, mode);
        sleep(lasts).await;
        cluster.set_proxies(kind, Mode::Forward);
    }
}
