//! Every fault that a round can draw. A file for each group says what is done, for how long, and how it is undone.

use std::{fmt, ops::Range, time::Duration};

use serde::{Serialize, Serializer};

use super::{
    changes::What,
    layout::{DatabaseLayout, Layout},
    operator::Operator,
    redis_data::RedisData,
    test_cluster::{ServerKind, TestCluster},
};
use ServerKind::{Database as OfDatabase, Redis as OfRedis};
use workload::Error;

pub mod clock;
pub mod database;
pub mod database_failover;
pub mod instance;
pub mod link;
pub mod operation;
pub mod redis;
pub mod redis_failover;

use clock::ClockFault;
use database::DatabaseFault;
use database_failover::DatabaseFailover;
use instance::InstanceFault;
use link::LinkFault;
use operation::OperationFault;
use redis::RedisFault;
use redis_failover::RedisFailover;

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
    /// Another server takes the place of a Redis.
    RedisFailover(RedisFailover),
    /// Another server takes the place of the database.
    DatabaseFailover(DatabaseFailover),
}

use Fault::{Clock, Database, Instance, Link, Operation, Redis};

/// A fault, how long it may last in milliseconds (from nearly nothing to beyond the service's time limits; a restart, a
/// recovery or a failover comes on top), and its name.
type Row = (Fault, Range<u64>, &'static str);

/// How many of [`TABLE`] can be drawn where there is one Redis and one database.
const USUAL: usize = 37;

/// Every fault. The order of the [`USUAL`] ones is that of a run's first rounds, which try each once; their number is no
/// multiple of three, so that each of three strategies that take turns meets each first. The failovers are behind them.
static TABLE: [Row; 47] = [
    (Link(LinkFault::LoseCommits), 20..400, "lose commits"),
    (Instance(InstanceFault::Kill(0)), 0..400, "kill -9 instance 1"),
    (Redis(RedisFault::Kill(RedisData::Empty)), 0..400, "kill -9 redis, back empty"),
    (Database(DatabaseFault::Kill), 0..400, "kill -9 database"),
    (Link(LinkFault::LoseCommitReplies), 20..400, "lose commit replies"),
    (Redis(RedisFault::Empty), 0..1, "FLUSHALL"),
    (Database(DatabaseFault::ReadOnly), 50..1_200, "database read-only"),
    (Redis(RedisFault::DeleteStream), 0..1, "delete stream.orders"),
    (Link(LinkFault::HalfOpen(OfDatabase)), 0..1, "half-open connections to database"),
    (Operation(OperationFault::Publish), 0..100, "lose replies on publishing"),
    // What it keeps is claimed after 10 s, which is looked for each second.
    (
        Instance(InstanceFault::StopForTakeover(1)),
        11_500..12_500,
        "stop instance 2 longer than every takeover",
    ),
    (Redis(RedisFault::OutOfMemory), 50..1_200, "redis out of memory"),
    (
        Clock(ClockFault { of: OfDatabase, seconds: 600 }),
        1_100..2_200,
        "step the clock of database 10 minutes on",
    ),
    (Database(DatabaseFault::Full), 50..1_200, "database full"),
    (Redis(RedisFault::Kill(RedisData::Old)), 0..400, "kill -9 redis, back with an old snapshot"),
    (Instance(InstanceFault::Stop(0)), 50..1_500, "stop instance 1"),
    (Operation(OperationFault::AddStock), 0..100, "lose replies on adding stock"),
    (Database(DatabaseFault::ConnectionsExhausted), 50..1_200, "database connections exhausted"),
    (Link(LinkFault::HalfOpen(OfRedis)), 0..1, "half-open connections to redis"),
    (Redis(RedisFault::DeleteKeys), 50..3_000, "delete single keys"),
    (
        Clock(ClockFault { of: OfRedis, seconds: -600 }),
        1_100..2_200,
        "step the clock of redis 10 minutes back",
    ),
    (Database(DatabaseFault::RowHeld), 50..2_500, "a stranger holds the sale's row"),
    (Link(LinkFault::LoseReplies(OfDatabase)), 20..400, "lose database replies"),
    (Operation(OperationFault::Change(What::Pay)), 0..100, "lose replies on paying"),
    (Database(DatabaseFault::Stop), 50..1_500, "stop database"),
    (Instance(InstanceFault::Kill(1)), 0..400, "kill -9 instance 2"),
    (Link(LinkFault::LoseReplies(OfRedis)), 20..400, "lose redis replies"),
    (
        Clock(ClockFault { of: OfDatabase, seconds: -600 }),
        1_100..2_200,
        "step the clock of database 10 minutes back",
    ),
    (Redis(RedisFault::Stop), 50..1_500, "stop redis"),
    (Link(LinkFault::Cut(OfDatabase)), 10..500, "cut database off"),
    (Instance(InstanceFault::Roll), 0..300, "rolling restart"),
    (Redis(RedisFault::Kill(RedisData::Intact)), 0..400, "kill -9 redis, back intact"),
    (Operation(OperationFault::Change(What::Cancel)), 0..100, "lose replies on cancelling"),
    (Link(LinkFault::Cut(OfRedis)), 10..500, "cut redis off"),
    (
        Clock(ClockFault { of: OfRedis, seconds: 600 }),
        1_100..2_200,
        "step the clock of redis 10 minutes on",
    ),
    (Instance(InstanceFault::Stop(1)), 50..1_500, "stop instance 2"),
    (
        Instance(InstanceFault::StopForTakeover(0)),
        11_500..12_500,
        "stop instance 1 longer than every takeover",
    ),
    (
        Fault::RedisFailover(RedisFailover::Kill),
        0..400,
        "kill -9 a redis master, its replica takes over",
    ),
    (
        Fault::RedisFailover(RedisFailover::KillWhileLagging),
        50..1_000,
        "kill -9 a redis master, a lagging replica takes over",
    ),
    (Fault::RedisFailover(RedisFailover::Graceful), 0..1, "graceful failover of redis"),
    (
        Fault::RedisFailover(RedisFailover::Forced),
        50..1_000,
        "forced failover of redis to a lagging replica",
    ),
    (
        Fault::RedisFailover(RedisFailover::Takeover),
        50..1_000,
        "takeover of a redis master by a lagging replica",
    ),
    (
        Fault::RedisFailover(RedisFailover::Partition),
        100..1_500,
        "a redis master partitioned with its clients",
    ),
    (Fault::RedisFailover(RedisFailover::MoveSlot), 50..800, "move a slot"),
    (
        Fault::DatabaseFailover(DatabaseFailover::Kill),
        0..800,
        "kill -9 the database's primary, its replica is promoted",
    ),
    (
        Fault::DatabaseFailover(DatabaseFailover::KillWhileLagging),
        50..800,
        "kill -9 the database's primary, a lagging replica is promoted",
    ),
    (
        Fault::DatabaseFailover(DatabaseFailover::SwitchOver),
        0..1_000,
        "the database's primary and replica change places",
    ),
];

/// The faults of one Redis and one database.
fn usual() -> impl Iterator<Item = Fault> {
    TABLE[..USUAL].iter().map(|(fault, ..)| *fault)
}

/// Everything that can be drawn in a layout, in the order of a run's first rounds: every third begins with a failover,
/// where there are any.
pub fn of(layout: Layout) -> Vec<Fault> {
    let redis = RedisFailover::all(layout.redis).iter().copied().map(Fault::RedisFailover);
    let database = match layout.database {
        DatabaseLayout::Single => &[][..],
        _ => &DatabaseFailover::ALL,
    };
    let database = database.iter().copied().map(Fault::DatabaseFailover);
    let failovers: Vec<Fault> = interleave(redis.collect(), database.collect());
    if failovers.is_empty() {
        return usual().collect();
    }
    let mut failovers = failovers.into_iter().cycle();
    let mut all = Vec::new();
    for (number, fault) in usual().filter(|fault| fault.is_of(layout)).enumerate() {
        if number % 2 == 0 {
            all.extend(failovers.next());
        }
        all.push(fault);
    }
    if all.len() % 3 == 0 {
        all.extend(failovers.next());
    }
    all
}

/// One of each in turn, and then what is left of the longer.
fn interleave(first: Vec<Fault>, second: Vec<Fault>) -> Vec<Fault> {
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut both = Vec::new();
    loop {
        let before = both.len();
        both.extend(first.next());
        both.extend(second.next());
        if both.len() == before {
            return both;
        }
    }
}

/// What a run has besides the servers, without which some faults cannot be injected.
#[derive(Debug, Clone, Copy, Default)]
pub struct Means {
    /// A library that fakes the time.
    pub faketime: bool,
    /// The servers.
    pub layout: Layout,
}

impl Fault {
    /// Why it cannot be drawn, if it cannot.
    pub fn impossible(self, means: Means) -> Option<&'static str> {
        match self {
            Clock(_) if !means.faketime => {
                Some("libfaketime is not installed (package faketime or libfaketime)")
            }
            _ => None,
        }
    }

    /// Whether it makes sense in this layout. A clock is stepped for one Redis alone: several judge each other by theirs.
    fn is_of(self, layout: Layout) -> bool {
        match self {
            Clock(ClockFault { of: OfRedis, .. }) => !layout.redis_fails_over(),
            _ => true,
        }
    }

    /// Whether Redis forgets something that it had confirmed.
    pub fn makes_redis_forget(self, layout: Layout) -> bool {
        match self {
            Redis(fault) => fault.forgets(layout),
            Fault::RedisFailover(fault) => fault.forgets(),
            _ => false,
        }
    }

    /// Whether the database forgets something that it had confirmed.
    pub fn makes_database_forget(self, layout: Layout) -> bool {
        matches!(self, Fault::DatabaseFailover(_))
            && layout.database == DatabaseLayout::Asynchronous
    }

    /// Whether buyers have to sign in again.
    pub fn ends_sessions(self) -> bool {
        matches!(self, Redis(fault) if fault.ends_sessions())
    }

    fn row(self) -> &'static Row {
        TABLE.iter().find(|(fault, ..)| *fault == self).expect("every fault is in the table")
    }

    /// How long it may last, in milliseconds.
    pub fn lasts(self) -> Range<u64> {
        self.row().1.clone()
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
            Fault::RedisFailover(fault) => fault.inject(cluster, sales, lasts).await,
            Fault::DatabaseFailover(fault) => fault.inject(cluster, lasts).await,
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
        f.write_str(self.row().2)
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Every fault of the layout with its name, and why it cannot be drawn here; a line each.
pub fn list(means: Means) -> String {
    let line = |fault: &Fault| match fault.impossible(means) {
        Some(reason) => format!("{fault}  (not drawn: {reason})\n"),
        None => format!("{fault}\n"),
    };
    distinct(means.layout).iter().map(line).collect()
}

/// As [`of`], each once.
pub fn distinct(layout: Layout) -> Vec<Fault> {
    let mut distinct: Vec<Fault> = Vec::new();
    for fault in of(layout) {
        if !distinct.contains(&fault) {
            distinct.push(fault);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::chaos::layout::RedisLayout;

    #[test]
    fn each_of_three_strategies_that_take_turns_meets_each_fault_first() {
        for layout in layouts() {
            assert_ne!(of(layout).len() % 3, 0, "{layout:?}");
        }
    }

    #[test]
    fn one_server_of_each_has_no_failover_and_several_have_every_one() {
        let count = |layout| {
            let is_failover = |fault: &Fault| {
                matches!(fault, Fault::RedisFailover(_) | Fault::DatabaseFailover(_))
            };
            let all = distinct(layout);
            (all.len(), all.into_iter().filter(is_failover).count())
        };
        let layout = |redis, database| Layout { redis, database };
        use RedisLayout::{Cluster, Sentinel};
        assert_eq!(count(Layout::SINGLE), (37, 0));
        assert_eq!(count(layout(Sentinel, DatabaseLayout::Single)), (35 + 5, 5));
        assert_eq!(count(layout(RedisLayout::Single, DatabaseLayout::Replicated)), (37 + 3, 3));
        assert_eq!(count(layout(Cluster, DatabaseLayout::Asynchronous)), (35 + 10, 10));
    }

    fn layouts() -> impl Iterator<Item = Layout> {
        let databases = DatabaseLayout::value_variants();
        RedisLayout::value_variants().iter().flat_map(|redis| {
            databases.iter().map(|database| Layout { redis: *redis, database: *database })
        })
    }

    #[test]
    fn names_are_distinct_and_the_list_says_why_a_fault_is_not_drawn() {
        for layout in layouts() {
            let all = distinct(layout);
            let names: std::collections::BTreeSet<String> =
                all.iter().map(ToString::to_string).collect();
            assert_eq!(names.len(), all.len());
        }
        let nothing = list(Means::default());
        assert_eq!(nothing.lines().count(), USUAL);
        assert_eq!(nothing.matches("not drawn").count(), 4, "{nothing}");
        let everything = list(Means { faketime: true, ..Means::default() });
        assert!(!everything.contains("not drawn"), "{everything}");
    }
}
