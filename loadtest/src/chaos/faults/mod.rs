//! Every fault that a round can draw, in one table: its name, how long it lasts, what it needs, what it loses, and how it is
//! injected. A file for each group does it.

use std::{collections::HashSet, fmt, ops::Range, pin::Pin};

use testkit::proxy::Mode;

use super::{
    changes::What,
    layout::{DatabaseLayout, Layout, RedisLayout},
    redis_data::RedisData,
    test_cluster::ServerKind::{Database, Redis},
};
use workload::Error;

mod clock;
pub(super) mod database;
pub(super) mod database_failover;
pub(super) mod instance;
mod link;
mod operation;
pub(super) mod redis;
pub(super) mod redis_failover;
mod scene;

pub use scene::Scene;

/// A fault while it is injected and undone. Its error: a server that cannot be broken as planned, or does not come back.
pub type Injecting<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
type Inject = for<'a> fn(Scene<'a>) -> Injecting<'a>;

/// A fault that can be injected.
#[derive(Debug)]
pub struct Fault {
    name: &'static str,
    /// How long it may last, in milliseconds: from nearly nothing to beyond the service's time limits.
    pub lasts: Range<u64>,
    needs: &'static [Need],
    effects: &'static [Effect],
    inject: Inject,
}

/// Without which a fault makes no sense, or cannot be injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A library that fakes the time.
    Faketime,
    /// One Redis alone: several judge each other by their clocks.
    OneRedis,
    RedisReplica,
    /// As [`Need::RedisReplica`], watched by sentinels.
    Sentinel,
    /// As [`Need::RedisReplica`], in a cluster.
    Cluster,
    DatabaseReplica,
}

use Need::{Cluster, DatabaseReplica, Faketime, OneRedis, RedisReplica, Sentinel};

/// What a fault does to a round besides breaking what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Redis forgets something that it had confirmed and that nothing but an instance's memory can replace.
    LosesData,
    /// As [`Effect::LosesData`], where a Redis that is away is replaced by one that may not have its last writes.
    LosesDataIfReplaced,
    /// It pays or cancels orders that are there before.
    ChangesOrders,
}

use Effect::{ChangesOrders, LosesData, LosesDataIfReplaced};

/// A fault that needs nothing and has no effect of its own.
pub const fn fault(name: &'static str, lasts: Range<u64>, inject: Inject) -> Fault {
    Fault { name, lasts, needs: &[], effects: &[], inject }
}

/// How many of [`TABLE`] can be drawn where there is one Redis and one database.
const USUAL: usize = 37;

/// Every fault. The order of the [`USUAL`] ones is that of a run's first rounds, which try each once; their number is no
/// multiple of three, so that each of three strategies that take turns meets each first. The failovers are behind them, in
/// the order in which they are drawn.
static TABLE: [Fault; 48] = [
    fault("lose commits", 20..400, |it| Box::pin(link::set(it, Database, Mode::LoseCommit))),
    fault("kill -9 instance 1", 0..400, |it| Box::pin(instance::kill(it, 0))),
    fault("kill -9 redis, back empty", 0..400, |it| Box::pin(redis::kill(it, RedisData::Empty)))
        .effects(&[LosesData]),
    fault("kill -9 database", 0..400, |it| Box::pin(database::kill(it))),
    fault("lose commit replies", 20..400, |it| {
        Box::pin(link::set(it, Database, Mode::LoseCommitReply))
    }),
    fault("FLUSHALL", 0..1, |it| Box::pin(redis::empty(it))).effects(&[LosesData]),
    fault("database read-only", 50..1_200, |it| Box::pin(database::read_only(it))),
    fault("delete stream.orders", 0..1, |it| Box::pin(redis::delete_stream(it)))
        .effects(&[LosesData]),
    fault("half-open connections to database", 0..1, |it| {
        Box::pin(link::set(it, Database, Mode::HalfOpen))
    }),
    fault("lose replies on publishing", 0..100, |it| {
        Box::pin(operation::lose_replies(it, async |operator| operator.publish(0).await))
    }),
    // What it keeps is claimed after 10 s, which is looked for each second.
    fault("stop instance 2 longer than every takeover", 11_500..12_500, |it| {
        Box::pin(instance::stop(it, 1))
    }),
    fault("redis out of memory", 50..1_200, |it| Box::pin(redis::out_of_memory(it))),
    fault("step the clock of database 10 minutes on", 1_100..2_200, |it| {
        Box::pin(clock::step(it, Database, 600))
    })
    .needs(&[Faketime]),
    fault("database full", 50..1_200, |it| Box::pin(database::full(it))),
    fault("kill -9 redis, back with an old snapshot", 0..800, |it| {
        Box::pin(redis::kill(it, RedisData::Old))
    })
    .effects(&[LosesData]),
    fault("stop instance 1", 50..1_500, |it| Box::pin(instance::stop(it, 0))),
    fault("lose replies on adding stock", 0..100, |it| {
        Box::pin(operation::lose_replies(it, async |operator| operator.add_stock(1).await))
    }),
    fault("database connections exhausted", 50..1_200, |it| {
        Box::pin(database::exhaust_connections(it))
    }),
    fault("half-open connections to redis", 0..1, |it| {
        Box::pin(link::set(it, Redis, Mode::HalfOpen))
    }),
    fault("delete single keys", 50..3_000, |it| Box::pin(redis::delete_keys(it))),
    fault("step the clock of redis 10 minutes back", 1_100..2_200, |it| {
        Box::pin(clock::step(it, Redis, -600))
    })
    .needs(&[Faketime, OneRedis]),
    fault("a stranger holds the sale's row", 50..2_500, |it| Box::pin(database::row_held(it))),
    fault("lose database replies", 20..400, |it| {
        Box::pin(link::set(it, Database, Mode::LoseReplies))
    }),
    fault("lose replies on paying", 0..100, |it| {
        Box::pin(operation::lose_replies(it, async |operator| operator.change(What::Pay).await))
    })
    .effects(&[ChangesOrders]),
    fault("stop database", 50..1_500, |it| Box::pin(database::stop(it))),
    fault("kill -9 instance 2", 0..400, |it| Box::pin(instance::kill(it, 1))),
    fault("lose redis replies", 20..400, |it| Box::pin(link::set(it, Redis, Mode::LoseReplies))),
    fault("step the clock of database 10 minutes back", 1_100..2_200, |it| {
        Box::pin(clock::step(it, Database, -600))
    })
    .needs(&[Faketime]),
    fault("stop redis", 50..1_500, |it| Box::pin(redis::stop(it))).effects(&[LosesDataIfReplaced]),
    fault("cut database off", 10..500, |it| Box::pin(link::set(it, Database, Mode::Cut))),
    fault("rolling restart", 0..300, |it| Box::pin(instance::roll(it))),
    fault("kill -9 redis, back intact", 0..400, |it| Box::pin(redis::kill(it, RedisData::Intact)))
        .effects(&[LosesDataIfReplaced]),
    fault("lose replies on cancelling", 0..100, |it| {
        Box::pin(operation::lose_replies(it, async |operator| operator.change(What::Cancel).await))
    })
    .effects(&[ChangesOrders]),
    fault("cut redis off", 10..500, |it| Box::pin(link::set(it, Redis, Mode::Cut))),
    fault("step the clock of redis 10 minutes on", 1_100..2_200, |it| {
        Box::pin(clock::step(it, Redis, 600))
    })
    .needs(&[Faketime, OneRedis]),
    fault("stop instance 2", 50..1_500, |it| Box::pin(instance::stop(it, 1))),
    fault("stop instance 1 longer than every takeover", 11_500..12_500, |it| {
        Box::pin(instance::stop(it, 0))
    }),
    fault("kill -9 a redis master, a lagging replica takes over", 50..1_000, |it| {
        Box::pin(redis_failover::kill_while_lagging(it))
    })
    .needs(&[RedisReplica])
    .effects(&[LosesData]),
    fault("kill -9 the database's primary, its replica is promoted", 0..800, |it| {
        Box::pin(database_failover::kill(it))
    })
    .needs(&[DatabaseReplica]),
    fault("graceful failover of redis", 0..1, |it| Box::pin(redis_failover::hand_over(it)))
        .needs(&[Sentinel]),
    fault("move a slot", 50..800, |it| Box::pin(redis_failover::move_slot(it))).needs(&[Cluster]),
    fault("the database's primary and replica change places", 0..1_000, |it| {
        Box::pin(database_failover::switch_over(it))
    })
    .needs(&[DatabaseReplica]),
    fault("a redis master partitioned with its clients", 100..1_500, |it| {
        Box::pin(redis_failover::partition(it))
    })
    .needs(&[RedisReplica])
    .effects(&[LosesData]),
    fault("kill -9 the database's primary, a lagging replica is promoted", 50..800, |it| {
        Box::pin(database_failover::kill_while_lagging(it))
    })
    .needs(&[DatabaseReplica]),
    fault("forced failover of redis to a lagging replica", 50..1_000, |it| {
        Box::pin(redis_failover::replace_while_lagging(it, "FORCE"))
    })
    .needs(&[RedisReplica])
    .effects(&[LosesData]),
    fault("graceful failover of redis", 0..1, |it| Box::pin(redis_failover::replace(it)))
        .needs(&[Cluster]),
    fault("kill -9 a redis master, its replica takes over", 0..400, |it| {
        Box::pin(redis_failover::kill(it))
    })
    .needs(&[RedisReplica])
    .effects(&[LosesData]),
    fault("takeover of a redis master by a lagging replica", 50..1_000, |it| {
        Box::pin(redis_failover::replace_while_lagging(it, "TAKEOVER"))
    })
    .needs(&[Cluster])
    .effects(&[LosesData]),
];

/// Everything that can be drawn in a layout, in the order of a run's first rounds: every third begins with a failover,
/// where there are any.
pub fn of(layout: Layout) -> Vec<&'static Fault> {
    let (usual, failovers) = TABLE.split_at(USUAL);
    let fits = |fault: &&Fault| fault.fits(layout);
    let mut failovers = failovers.iter().filter(fits).cycle();
    let mut all = Vec::new();
    for (number, fault) in usual.iter().filter(fits).enumerate() {
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

/// As [`of`], each once.
pub fn distinct(layout: Layout) -> Vec<&'static Fault> {
    let (mut all, mut seen) = (of(layout), HashSet::new());
    all.retain(|fault| seen.insert(fault.name));
    all
}

/// Every fault of the layout with its name, and why it cannot be drawn here; a line each.
pub fn list(layout: Layout) -> String {
    let line = |fault: &&Fault| match fault.impossible(layout) {
        Some(reason) => format!("{fault}  (not drawn: {reason})\n"),
        None => format!("{fault}\n"),
    };
    distinct(layout).iter().map(line).collect()
}

impl Fault {
    pub const fn needs(mut self, needs: &'static [Need]) -> Self {
        self.needs = needs;
        self
    }

    pub const fn effects(mut self, effects: &'static [Effect]) -> Self {
        self.effects = effects;
        self
    }

    /// Whether it has this effect.
    pub fn has(&self, effect: Effect) -> bool {
        self.effects.contains(&effect)
    }

    /// Whether it makes sense in this layout.
    pub fn fits(&self, layout: Layout) -> bool {
        self.needs.iter().all(|need| match need {
            Faketime => true,
            OneRedis => !layout.redis_fails_over(),
            RedisReplica => layout.redis_fails_over(),
            Sentinel => layout.redis == RedisLayout::Sentinel,
            Cluster => layout.redis == RedisLayout::Cluster,
            DatabaseReplica => layout.database != DatabaseLayout::Single,
        })
    }

    /// Why it cannot be drawn, if it cannot.
    pub fn impossible(&self, layout: Layout) -> Option<&'static str> {
        let missing = self.needs.contains(&Faketime) && !layout.faketime;
        missing.then_some("libfaketime is not installed (package faketime or libfaketime)")
    }

    /// Whether Redis forgets something that it had confirmed.
    pub fn makes_redis_forget(&self, layout: Layout) -> bool {
        self.has(LosesData) || self.has(LosesDataIfReplaced) && layout.redis_fails_over()
    }

    /// Whether the database forgets something that it had confirmed: each of its failovers may, to an asynchronous replica.
    pub fn makes_database_forget(&self, layout: Layout) -> bool {
        self.needs.contains(&DatabaseReplica) && layout.database == DatabaseLayout::Asynchronous
    }

    /// Injects it, and undoes it.
    pub fn inject<'a>(&self, scene: Scene<'a>) -> Injecting<'a> {
        (self.inject)(scene)
    }
}

/// The names of a layout's faults are distinct.
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
        let databases = [(DatabaseLayout::Single, 0), (DatabaseLayout::Replicated, 3)];
        let redises =
            [(RedisLayout::Single, USUAL), (RedisLayout::Sentinel, 40), (RedisLayout::Cluster, 42)];
        for (redis, faults) in redises {
            for (database, more) in databases {
                let layout = Layout { redis, database, faketime: true };
                assert_eq!(distinct(layout).len(), faults + more, "{layout:?}");
                assert_ne!(of(layout).len() % 3, 0, "{layout:?}");
            }
        }
        assert_eq!(redises.len(), RedisLayout::value_variants().len());
    }

    #[test]
    fn the_list_says_why_a_fault_is_not_drawn() {
        let nothing = list(Layout::default());
        assert_eq!(nothing.lines().count(), USUAL);
        assert_eq!(nothing.matches("not drawn").count(), 4, "{nothing}");
        let everything = list(Layout { faketime: true, ..Layout::default() });
        assert!(!everything.contains("not drawn"), "{everything}");
    }
}
