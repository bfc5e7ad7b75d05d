//! Every fault that a round can draw, in one table. A file for each group injects them.

use std::{fmt, ops::Range, time::Duration};

use anyhow::Result;
use futures_util::future::LocalBoxFuture;
use testkit::{
    proxy::Mode::{Cut, HalfOpen, LoseCommit, LoseCommitReply, LoseReplies},
    replicated_database::Replication,
};

use super::{
    changes::What,
    operator::Scene,
    options::{Layout, RedisLayout},
    redis_data::RedisData,
    test_cluster::ServerKind::{Database, Redis},
};
mod database;
mod redis;
mod service;

/// A fault that can be injected.
#[derive(Debug)]
pub struct Fault {
    name: &'static str,
    /// How long it may last, in milliseconds: from nearly nothing to beyond the service's time limits.
    pub lasts: Range<u64>,
    needs: Needs,
    effect: Effect,
    /// Injects it and undoes it. The error: a server that cannot be broken as planned, or does not come back.
    pub inject: for<'a> fn(Scene<'a>) -> LocalBoxFuture<'a, Result<()>>,
}

/// Where a fault makes sense, and can be injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A library that fakes the time.
    Faketime,
    /// The same, and a database that runs with it.
    DatabaseFaketime,
    /// Statements and files that OceanBase does not have.
    InnoDb,
    /// A library that fakes the time, and one Redis alone: several judge each other by their clocks.
    OneRedisFaketime,
    RedisReplica,
    /// A replica of Redis, in a cluster.
    RedisCluster,
    DatabaseReplica,
}

/// What a fault does to a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// It breaks what is in flight.
    Breaks,
    /// The clock of an instance is ahead of all others from the first buyer on, and so are its ids.
    ClockAhead,
    /// The clock of an instance is behind all others from the first buyer on.
    ClockBehind,
    /// The clock of a server is ahead of all others for a moment, and ids are dated by it.
    ServerAhead,
    /// Redis forgets something that it had confirmed and that nothing but an instance's memory can replace.
    Loses,
    /// The same, but only in a layout where a Redis that is away is replaced by one that may lack its last writes.
    LosesIfReplaced,
}

/// Faults, each by its name, how long it lasts, what it needs, what it does to a round, and how it is injected.
macro_rules! table {
    ($($name:literal, $lasts:expr, $needs:ident, $effect:ident, $scene:ident => $inject:expr;)*) => {
        &[$(Fault {
            name: $name,
            lasts: $lasts,
            needs: Needs::$needs,
            effect: Effect::$effect,
            inject: |$scene| Box::pin($inject),
        }),*]
    };
}

/// By how many seconds the clock of an instance is wrong.
const WRONG_BY: i32 = 120;

/// By how many seconds the clock of a server is ahead.
const SERVER_AHEAD_BY: i32 = 600;

/// The faults that need no replica, in the order in which a run's first rounds begin with each once. Their number is no
/// multiple of three: three strategies take turns, so that sooner or later a round of each strategy begins with each fault.
static USUAL: &[Fault] = table! {
    "lose commits", 20..400, Nothing, Breaks, scene => service::link(scene, Database, LoseCommit);
    "kill -9 instance 1", 0..400, Nothing, Breaks, scene => service::kill(scene, 0);
    "requests to redis arrive late", 300..4_000, Nothing, Breaks, scene => service::deliver_late(scene, Redis);
    "kill -9 redis, back empty", 0..400, Nothing, Loses, scene => redis::kill(scene, RedisData::Empty);
    "kill -9 database", 0..400, Nothing, Breaks, scene => database::kill(scene);
    "lose commit replies", 20..400, Nothing, Breaks, scene => service::link(scene, Database, LoseCommitReply);
    "the clock of instance 1 is 120 s ahead", 3_000..8_000, Faketime, ClockAhead,
        scene => service::step_clock_of_instance(scene, 0, WRONG_BY);
    "FLUSHALL", 0..1, Nothing, Loses, scene => redis::empty(scene);
    "database read-only", 50..1_200, Nothing, Breaks, scene => database::read_only(scene);
    "requests to database arrive late", 300..4_000, Nothing, Breaks, scene => service::deliver_late(scene, Database);
    "delete stream.orders", 0..1, Nothing, Loses, scene => redis::delete_stream(scene);
    "half-open connections to database", 0..1, Nothing, Breaks, scene => service::link(scene, Database, HalfOpen);
    "lose replies on publishing", 0..100, Nothing, Breaks,
        scene => service::lose_replies(scene, scene.operator.publish(0));
    // Others claim the entries that it keeps after 10 s, and look for such entries every second.
    "stop instance 2 longer than every takeover", 11_500..12_500, Nothing, Breaks, scene => service::stop(scene, 1);
    "redis out of memory", 50..1_200, Nothing, Breaks, scene => redis::out_of_memory(scene);
    "step the clock of database 10 minutes on", 1_100..2_200, DatabaseFaketime, ServerAhead,
        scene => service::step_clock_on(scene, Database, SERVER_AHEAD_BY);
    "database full", 50..1_200, InnoDb, Breaks, scene => database::full(scene);
    "kill -9 redis, back with an old snapshot", 0..800, Nothing, Loses, scene => redis::kill(scene, RedisData::Old);
    "stop instance 1", 50..1_500, Nothing, Breaks, scene => service::stop(scene, 0);
    "requests to redis arrive very late", 4_000..20_000, Nothing, Breaks, scene => service::deliver_late(scene, Redis);
    "lose replies on adding stock", 0..100, Nothing, Breaks,
        scene => service::lose_replies(scene, scene.operator.add_stock(1));
    "database connections exhausted", 50..1_200, InnoDb, Breaks, scene => database::exhaust_connections(scene);
    "half-open connections to redis", 0..1, Nothing, Breaks, scene => service::link(scene, Redis, HalfOpen);
    "delete single keys", 50..3_000, Nothing, Breaks, scene => redis::delete_keys(scene);
    "the clock of instance 2 is 120 s behind", 3_000..8_000, Faketime, ClockBehind,
        scene => service::step_clock_of_instance(scene, 1, -WRONG_BY);
    "step the clock of redis 10 minutes back", 1_100..2_200, OneRedisFaketime, Breaks,
        scene => service::step_clock(scene, Redis, -600);
    "a stranger holds the sale's row", 50..2_500, Nothing, Breaks, scene => database::row_held(scene);
    "lose database replies", 20..400, Nothing, Breaks, scene => service::link(scene, Database, LoseReplies);
    "lose replies on paying", 0..100, Nothing, Breaks, scene => service::lose_replies_on(scene, What::Pay);
    "requests to database arrive very late", 4_000..20_000, Nothing, Breaks,
        scene => service::deliver_late(scene, Database);
    "stop database", 50..1_500, Nothing, Breaks, scene => database::stop(scene);
    "kill -9 instance 2", 0..400, Nothing, Breaks, scene => service::kill(scene, 1);
    "lose redis replies", 20..400, Nothing, Breaks, scene => service::link(scene, Redis, LoseReplies);
    "step the clock of database 10 minutes back", 1_100..2_200, DatabaseFaketime, Breaks,
        scene => service::step_clock(scene, Database, -600);
    "stop redis", 50..1_500, Nothing, LosesIfReplaced, scene => redis::stop(scene);
    "cut database off", 10..500, Nothing, Breaks, scene => service::link(scene, Database, Cut);
    "rolling restart", 0..300, Nothing, Breaks, scene => service::roll(scene);
    "kill -9 redis, back intact", 0..400, Nothing, LosesIfReplaced, scene => redis::kill(scene, RedisData::Intact);
    "lose replies on cancelling", 0..100, Nothing, Breaks, scene => service::lose_replies_on(scene, What::Cancel);
    "cut redis off", 10..500, Nothing, Breaks, scene => service::link(scene, Redis, Cut);
    "step the clock of redis 10 minutes on", 1_100..2_200, OneRedisFaketime, ServerAhead,
        scene => service::step_clock_on(scene, Redis, SERVER_AHEAD_BY);
    "stop instance 2", 50..1_500, Nothing, Breaks, scene => service::stop(scene, 1);
    "stop instance 1 longer than every takeover", 11_500..12_500, Nothing, Breaks, scene => service::stop(scene, 0);
};

/// The faults that need a replica.
static FAILOVERS: &[Fault] = table! {
    "kill -9 a redis master, a lagging replica takes over", 50..1_000, RedisReplica, Loses,
        scene => redis::kill_master(scene, true);
    "kill -9 the database's primary, its replica is promoted", 0..800, DatabaseReplica, Breaks,
        scene => database::kill_primary(scene, false);
    "move a slot", 50..800, RedisCluster, Breaks, scene => redis::move_slot(scene);
    "the database's primary and replica change places", 0..1_000, DatabaseReplica, Breaks,
        scene => database::switch_over(scene);
    "graceful failover of redis", 0..1, RedisReplica, Breaks, scene => redis::hand_over(scene);
    "a redis master partitioned with its clients", 100..1_500, RedisReplica, Loses,
        scene => redis::partition(scene);
    "kill -9 the database's primary, a lagging replica is promoted", 50..800, DatabaseReplica, Breaks,
        scene => database::kill_primary(scene, true);
    "forced failover of redis to a lagging replica", 50..1_000, RedisReplica, Loses,
        scene => redis::replace_while_lagging(scene, "FORCE");
    "kill -9 a redis master, its replica takes over", 0..400, RedisReplica, Loses,
        scene => redis::kill_master(scene, false);
    "takeover of a redis master by a lagging replica", 50..1_000, RedisCluster, Loses,
        scene => redis::replace_while_lagging(scene, "TAKEOVER");
};

/// The faults after which recovery is measured.
const RECOVERIES: [&str; 4] = [
    "kill -9 instance 1",
    "kill -9 redis, back empty",
    "kill -9 a redis master, its replica takes over",
    "kill -9 the database's primary, its replica is promoted",
];

/// Everything that can be drawn in a layout, in the order in which a run's first rounds begin with it: every third round
/// begins with a failover, where there are any.
pub fn draw_order(layout: Layout) -> Vec<&'static Fault> {
    let mut failovers = fitting(FAILOVERS, layout).cycle();
    let mut all = Vec::new();
    for (number, fault) in fitting(USUAL, layout).enumerate() {
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

/// The faults of a layout after which recovery is measured.
pub fn recoveries(layout: Layout) -> impl Iterator<Item = &'static Fault> {
    distinct(layout).filter(|fault| RECOVERIES.contains(&fault.name))
}

fn fitting(
    table: &'static [Fault],
    layout: Layout,
) -> impl Iterator<Item = &'static Fault> + Clone {
    table.iter().filter(move |fault| fault.fits(layout))
}

/// Everything that can be drawn in a layout, each fault once.
pub fn distinct(layout: Layout) -> impl Iterator<Item = &'static Fault> {
    fitting(USUAL, layout).chain(fitting(FAILOVERS, layout))
}

/// Every fault of the layout, a line each.
pub fn list(layout: Layout) -> String {
    distinct(layout)
        .map(|fault| fault.described(layout) + "\n")
        .collect()
}

impl Fault {
    /// Whether it makes sense in this layout.
    fn fits(&self, layout: Layout) -> bool {
        match self.needs {
            Needs::Nothing | Needs::Faketime | Needs::DatabaseFaketime | Needs::InnoDb => true,
            Needs::OneRedisFaketime => !layout.redis_fails_over(),
            Needs::RedisReplica => layout.redis_fails_over(),
            Needs::RedisCluster => layout.redis == RedisLayout::Cluster,
            Needs::DatabaseReplica => layout.database != Replication::None,
        }
    }

    /// Whether this machine can do it.
    pub fn is_possible(&self, layout: Layout) -> bool {
        self.reason_against(layout).is_none()
    }

    fn reason_against(&self, layout: Layout) -> Option<&'static str> {
        match self.needs {
            Needs::Faketime | Needs::DatabaseFaketime | Needs::OneRedisFaketime
                if !layout.faketime =>
            {
                Some("libfaketime is not installed (package faketime or libfaketime)")
            }
            Needs::DatabaseFaketime if layout.oceanbase => {
                Some("OceanBase does not start with libfaketime")
            }
            Needs::InnoDb if layout.oceanbase => Some("OceanBase has other files and statements"),
            _ => None,
        }
    }

    /// Its name, and why it cannot be drawn here.
    pub fn described(&self, layout: Layout) -> String {
        match self.reason_against(layout) {
            None => self.to_string(),
            Some(reason) => format!("{self}  (not drawn: {reason})"),
        }
    }

    /// Whether an instance's clock is wrong, from the beginning of the sale.
    pub fn is_wrong_clock(&self) -> bool {
        matches!(self.effect, Effect::ClockAhead | Effect::ClockBehind)
    }

    /// How far the time in the ids of orders is ahead.
    pub fn puts_ids_ahead(&self) -> Duration {
        let seconds = match self.effect {
            Effect::ClockAhead => WRONG_BY,
            Effect::ServerAhead => SERVER_AHEAD_BY,
            _ => 0,
        };
        Duration::from_secs(seconds.unsigned_abs().into())
    }

    /// Whether Redis forgets something that it had confirmed.
    pub fn makes_redis_forget(&self, layout: Layout) -> bool {
        match self.effect {
            Effect::Breaks | Effect::ClockAhead | Effect::ClockBehind | Effect::ServerAhead => {
                false
            }
            Effect::Loses => true,
            Effect::LosesIfReplaced => layout.redis_fails_over(),
        }
    }

    /// Whether the database forgets something that it had confirmed: each of its failovers may, to an asynchronous replica.
    pub fn makes_database_forget(&self, layout: Layout) -> bool {
        self.needs == Needs::DatabaseReplica && layout.database == Replication::Asynchronous
    }
}

/// Faults are told apart by their names.
impl PartialEq for Fault {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_layout_has_its_faults_once_and_each_of_three_strategies_meets_each_first() {
        let databases = [(Replication::None, 0), (Replication::SemiSynchronous, 3)];
        let redises = [
            (RedisLayout::Single, 43),
            (RedisLayout::Sentinel, 46),
            (RedisLayout::Cluster, 48),
        ];
        for (redis, faults) in redises {
            for (database, database_failovers) in databases {
                let layout = Layout {
                    redis,
                    database,
                    faketime: true,
                    oceanbase: false,
                };
                let count = distinct(layout).count();
                assert_eq!(count, faults + database_failovers, "{layout:?}");
                let has_replica = [layout.redis_fails_over(), database_failovers > 0];
                let replicas = has_replica.map(usize::from);
                assert_eq!(recoveries(layout).count(), 2 + replicas[0] + replicas[1]);
                assert_ne!(draw_order(layout).len() % 3, 0, "{layout:?}");
            }
        }
        assert_eq!(redises.len(), RedisLayout::value_variants().len());
    }

    #[test]
    fn the_list_says_why_a_fault_is_not_drawn() {
        let nothing = list(Layout::default());
        assert_eq!(nothing.lines().count(), USUAL.len());
        assert_eq!(nothing.matches("not drawn").count(), 6, "{nothing}");
        let everything = list(Layout {
            faketime: true,
            ..Layout::default()
        });
        assert!(!everything.contains("not drawn"), "{everything}");
    }
}
