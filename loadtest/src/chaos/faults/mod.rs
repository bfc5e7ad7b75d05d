//! Every fault that a round can draw. A file for each group says what is done, for how long, and how it is undone.

use std::{fmt, ops::Range, time::Duration};

use serde::{Serialize, Serializer};

use super::{
    changes::What,
    operator::Operator,
    redis_data::RedisData,
    test_cluster::{ServerKind, TestCluster},
};
use ServerKind::{Database as OfDatabase, Redis as OfRedis};
use workload::Error;

pub mod clock;
pub mod database;
pub mod instance;
pub mod link;
pub mod operation;
pub mod redis;

use clock::ClockFault;
use database::DatabaseFault;
use instance::InstanceFault;
use link::LinkFault;
use operation::OperationFault;
use redis::RedisFault;

/// A fault that is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Of an instance.
    Instance(InstanceFault),
    /// Of Redis.
    Redis(RedisFault),
    /// Of the database.
    Database(DatabaseFault),
    /// Of the way to one of them.
    Link(LinkFault),
    /// Of the clock of one of them.
    Clock(ClockFault),
    /// Of an operator's or an owner's operation.
    Operation(OperationFault),
}

use Fault::{Clock, Database, Instance, Link, Operation, Redis};

/// Everything that can be drawn. The order is that of a run's first rounds, which try each once; their number is no
/// multiple of three, so that each of three strategies that take turns meets each first.
pub const ALL: [Fault; 38] = [
    Link(LinkFault::LoseCommits),
    Instance(InstanceFault::Kill(0)),
    Redis(RedisFault::Kill(RedisData::Empty)),
    Database(DatabaseFault::Kill),
    Link(LinkFault::LoseCommitReplies),
    Redis(RedisFault::Empty),
    Database(DatabaseFault::ReadOnly),
    Redis(RedisFault::DeleteStream),
    Link(LinkFault::HalfOpen(OfDatabase)),
    Operation(OperationFault::Publish),
    Instance(InstanceFault::StopForTakeover(1)),
    Redis(RedisFault::OutOfMemory),
    Clock(ClockFault { of: OfDatabase, seconds: 600 }),
    Database(DatabaseFault::Full),
    Redis(RedisFault::Kill(RedisData::Old)),
    Instance(InstanceFault::Stop(0)),
    Operation(OperationFault::AddStock),
    Database(DatabaseFault::ConnectionsExhausted),
    Link(LinkFault::HalfOpen(OfRedis)),
    Redis(RedisFault::DeleteStockCounters),
    Clock(ClockFault { of: OfRedis, seconds: -600 }),
    Instance(InstanceFault::Upgrade),
    Database(DatabaseFault::RowHeld),
    Link(LinkFault::LoseReplies(OfDatabase)),
    Operation(OperationFault::Change(What::Pay)),
    Database(DatabaseFault::Stop),
    Instance(InstanceFault::Kill(1)),
    Link(LinkFault::LoseReplies(OfRedis)),
    Clock(ClockFault { of: OfDatabase, seconds: -600 }),
    Redis(RedisFault::Stop),
    Link(LinkFault::Cut(OfDatabase)),
    Instance(InstanceFault::Roll),
    Redis(RedisFault::Kill(RedisData::Intact)),
    Operation(OperationFault::Change(What::Cancel)),
    Link(LinkFault::Cut(OfRedis)),
    Clock(ClockFault { of: OfRedis, seconds: 600 }),
    Instance(InstanceFault::Stop(1)),
    Instance(InstanceFault::StopForTakeover(0)),
];

/// What a run has besides the servers, without which some faults cannot be injected.
#[derive(Debug, Clone, Copy, Default)]
pub struct Means {
    /// A library that fakes the time.
    pub faketime: bool,
    /// An older binary of the service.
    pub older_binary: bool,
}

impl Fault {
    /// Why it cannot be drawn, if it cannot.
    pub fn impossible(self, means: Means) -> Option<&'static str> {
        match self {
            Clock(_) if !means.faketime => {
                Some("libfaketime is not installed (package faketime or libfaketime)")
            }
            Instance(InstanceFault::Upgrade) if !means.older_binary => {
                Some("no older binary was given (--older-binary)")
            }
            _ => None,
        }
    }

    /// Whether Redis forgets something that it had confirmed.
    pub fn makes_redis_forget(self) -> bool {
        matches!(self, Redis(fault) if fault.forgets())
    }

    /// Whether buyers have to sign in again.
    pub fn ends_sessions(self) -> bool {
        matches!(self, Redis(fault) if fault.ends_sessions())
    }

    /// Whether an instance loses its memory.
    pub fn kills_an_instance(self) -> bool {
        use InstanceFault::{Kill, Roll, Upgrade};
        matches!(self, Instance(Kill(_) | Roll | Upgrade))
    }

    /// How long it may last, in milliseconds: from nearly nothing to beyond the service's time limits.
    pub fn lasts(self) -> Range<u64> {
        match self {
            Instance(fault) => fault.lasts(),
            Redis(fault) => fault.lasts(),
            Database(fault) => fault.lasts(),
            Link(fault) => fault.lasts(),
            Clock(fault) => fault.lasts(),
            Operation(fault) => fault.lasts(),
        }
    }

    /// Injects it, and undoes it after `lasts`. `sales` are the vouchers on sale.
    ///
    /// # Errors
    /// A server that cannot be broken as planned, or does not come back.
    pub async fn inject(
        self,
        cluster: &TestCluster,
        sales: &[u64],
        operator: Option<&Operator>,
        lasts: Duration,
    ) -> Result<(), Error> {
        match self {
            Instance(fault) => fault.inject(cluster, lasts).await,
            Redis(fault) => fault.inject(cluster, sales, lasts).await,
            Database(fault) => fault.inject(cluster, sales, lasts).await,
            Link(fault) => {
                fault.inject(cluster, lasts).await;
                Ok(())
            }
            Clock(fault) => fault.inject(cluster, lasts).await,
            Operation(fault) => {
                if let Some(operator) = operator {
                    fault.inject(cluster, operator, lasts).await;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instance(fault) => fault.fmt(f),
            Redis(fault) => fault.fmt(f),
            Database(fault) => fault.fmt(f),
            Link(fault) => fault.fmt(f),
            Clock(fault) => fault.fmt(f),
            Operation(fault) => fault.fmt(f),
        }
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Every fault with its name, and why it cannot be drawn here; a line each.
pub fn list(means: Means) -> String {
    let line = |fault: &Fault| match fault.impossible(means) {
        Some(reason) => format!("{fault}  (not drawn: {reason})\n"),
        None => format!("{fault}\n"),
    };
    ALL.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_three_strategies_that_take_turns_meets_each_fault_first() {
        assert_ne!(ALL.len() % 3, 0);
    }

    #[test]
    fn names_are_distinct_and_the_list_says_why_a_fault_is_not_drawn() {
        let names: std::collections::BTreeSet<String> =
            ALL.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), ALL.len());
        let nothing = list(Means::default());
        assert_eq!(nothing.lines().count(), ALL.len());
        assert_eq!(nothing.matches("not drawn").count(), 5, "{nothing}");
        let everything = list(Means { faketime: true, older_binary: true });
        assert!(!everything.contains("not drawn"), "{everything}");
    }
}
