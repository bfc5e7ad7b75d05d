//! Faults of the network between the instances and a server, by the proxy in front of it.

use std::{fmt, ops::Range, time::Duration};

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
    /// How long it may last, in milliseconds.
    pub fn lasts(self) -> Range<u64> {
        match self {
            Cut(_) => 10..500,
            HalfOpen(_) => 0..1,
            LoseReplies(_) | LoseCommits | LoseCommitReplies => 20..400,
        }
    }

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

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut(kind) => write!(f, "cut {kind} off"),
            HalfOpen(kind) => write!(f, "half-open connections to {kind}"),
            LoseReplies(kind) => write!(f, "lose {kind} replies"),
            LoseCommits => f.write_str("lose commits"),
            LoseCommitReplies => f.write_str("lose commit replies"),
        }
    }
}
