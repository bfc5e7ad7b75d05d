//! Fault plans: what is done to the servers in the middle of a sale, and when, drawn from a seed.

use std::{fmt, ops::Range, time::Duration};

use rand::{Rng, seq::IndexedRandom};
use serde::Serialize;

use super::redis_data::RedisData;

/// Instances of the service.
pub const INSTANCES: usize = 2;

/// A fault that is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL of an instance, which is then started again.
    KillInstance(usize),
    /// SIGSTOP of an instance, then SIGCONT.
    StopInstance(usize),
    /// SIGKILL of Redis, which is then started again with this data.
    KillRedis(RedisData),
    /// SIGSTOP of Redis, then SIGCONT.
    StopRedis,
    /// FLUSHALL.
    EmptyRedis,
    /// Every connection to Redis is closed, new ones too.
    CutRedis,
    /// What is asked of Redis happens, and the reply is lost.
    LoseRedisReplies,
    /// SIGKILL of the database, which then recovers.
    KillDatabase,
    /// SIGSTOP of the database, then SIGCONT.
    StopDatabase,
    /// Every connection to the database is closed, new ones too.
    CutDatabase,
    /// What is asked of the database happens, and the reply is lost.
    LoseDatabaseReplies,
    /// A COMMIT is lost on its way to the database.
    LoseCommits,
    /// A COMMIT happens, and its reply is lost.
    LoseCommitReplies,
}

use Fault::{
    CutDatabase, CutRedis, EmptyRedis, KillDatabase, KillInstance, KillRedis, LoseCommitReplies,
    LoseCommits, LoseDatabaseReplies, LoseRedisReplies, StopDatabase, StopInstance, StopRedis,
};

/// Everything that can be drawn. The order is that of a run's first rounds, which try each once.
const ALL: [Fault; 17] = [
    LoseCommits,
    KillInstance(0),
    KillRedis(RedisData::Empty),
    KillDatabase,
    LoseCommitReplies,
    EmptyRedis,
    KillRedis(RedisData::Old),
    StopInstance(0),
    LoseDatabaseReplies,
    StopDatabase,
    KillInstance(1),
    LoseRedisReplies,
    StopRedis,
    CutDatabase,
    KillRedis(RedisData::Intact),
    CutRedis,
    StopInstance(1),
];

/// Most faults in one sale.
const MOST: u32 = 3;

impl Fault {
    /// Whether Redis forgets something that it had confirmed.
    pub fn makes_redis_forget(self) -> bool {
        matches!(self, KillRedis(RedisData::Old | RedisData::Empty) | EmptyRedis)
    }

    /// Whether an instance loses its memory.
    pub fn kills_an_instance(self) -> bool {
        matches!(self, KillInstance(_))
    }

    /// How long it may last, in milliseconds: from nearly nothing to beyond the service's time limits.
    fn lasts(self) -> Range<u64> {
        match self {
            KillInstance(_) | KillRedis(_) | KillDatabase => 0..400,
            StopInstance(_) | StopRedis | StopDatabase => 50..1_500,
            EmptyRedis => 0..1,
            CutRedis | CutDatabase => 10..500,
            LoseRedisReplies | LoseDatabaseReplies | LoseCommits | LoseCommitReplies => 20..400,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KillInstance(which) => write!(f, "kill -9 instance {}", which + 1),
            StopInstance(which) => write!(f, "stop instance {}", which + 1),
            KillRedis(RedisData::Intact) => f.write_str("kill -9 redis, back intact"),
            KillRedis(RedisData::Old) => f.write_str("kill -9 redis, back with an old snapshot"),
            KillRedis(RedisData::Empty) => f.write_str("kill -9 redis, back empty"),
            StopRedis => f.write_str("stop redis"),
            EmptyRedis => f.write_str("FLUSHALL"),
            CutRedis => f.write_str("cut redis off"),
            LoseRedisReplies => f.write_str("lose redis replies"),
            KillDatabase => f.write_str("kill -9 database"),
            StopDatabase => f.write_str("stop database"),
            CutDatabase => f.write_str("cut database off"),
            LoseDatabaseReplies => f.write_str("lose database replies"),
            LoseCommits => f.write_str("lose commits"),
            LoseCommitReplies => f.write_str("lose commit replies"),
        }
    }
}

/// A fault with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// When it begins, from the beginning of the sale.
    pub at: Duration,
    /// How long it lasts; a restart or a recovery comes on top.
    pub lasts: Duration,
    /// What is done.
    pub what: Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, lasts) = (self.at.as_secs_f32(), self.lasts.as_millis());
        write!(f, "{at:.3} s {}", self.what)?;
        if lasts > 0 { write!(f, " ({lasts} ms)") } else { Ok(()) }
    }
}

/// Draws the faults of a sale that lasts `sale` and whose buyers come in waves every `wave`. The first is
/// the `number`-th of all kinds. Three in four meet a wave in its middle, where most is under way.
///
/// A strategy that `admits_first` keeps admitted orders in Redis and in its processes' memory until they are
/// in the database. It outlives the loss of either, but of both at once no strategy could: such a sale gets one
/// or the other.
pub fn draw(
    rng: &mut impl Rng,
    number: usize,
    sale: Duration,
    wave: Duration,
    admits_first: bool,
) -> Vec<Planned> {
    let mut drawn: Vec<Planned> = Vec::new();
    for index in 0..rng.random_range(1..=MOST) {
        let any = ALL.choose(rng).copied();
        let what = if index == 0 { Some(ALL[number % ALL.len()]) } else { any };
        let wave_ms = u64::try_from(wave.as_millis()).unwrap_or(u64::MAX).max(1);
        let sale_ms = u64::try_from(sale.as_millis()).unwrap_or(u64::MAX).max(2);
        let mut at = Duration::from_millis(rng.random_range(1..sale_ms));
        if rng.random_bool(0.75) {
            let waves = rng.random_range(1..=(sale_ms / wave_ms).max(1)) - 1;
            at = Duration::from_micros(waves * wave_ms * 1_000 + rng.random_range(0..12_000));
        }
        let Some(what) = what else { continue };
        let lasts = Duration::from_millis(rng.random_range(what.lasts()));
        let forgets = |what: Fault| what.makes_redis_forget();
        let dies = |what: Fault| what.kills_an_instance();
        let both = drawn
            .iter()
            .any(|other| forgets(other.what) && dies(what) || dies(other.what) && forgets(what));
        if !(admits_first && both) {
            drawn.push(Planned { at, lasts, what });
        }
    }
    drawn.sort_unstable_by_key(|planned| planned.at);
    drawn
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    const SALE: Duration = Duration::from_millis(1_500);
    const WAVE: Duration = Duration::from_millis(50);

    #[test]
    fn a_seed_draws_the_same_faults_again() {
        let draw = |seed| draw(&mut StdRng::seed_from_u64(seed), 3, SALE, WAVE, false);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn every_kind_is_drawn_and_lies_within_the_sale() {
        let rng = &mut StdRng::seed_from_u64(1);
        let drawn: Vec<Planned> =
            (0..ALL.len()).flat_map(|number| draw(rng, number, SALE, WAVE, false)).collect();
        for what in ALL {
            assert!(drawn.iter().any(|planned| planned.what == what), "{what} was never drawn");
        }
        assert!(drawn.iter().all(|planned| planned.at < SALE + WAVE));
    }

    #[test]
    fn a_strategy_that_admits_first_loses_redis_or_a_process_but_not_both() {
        let rng = &mut StdRng::seed_from_u64(1);
        let both = |planned: &[Planned]| {
            planned.iter().any(|planned| planned.what.makes_redis_forget())
                && planned.iter().any(|planned| planned.what.kills_an_instance())
        };
        assert!((0..500).any(|number| both(&draw(rng, number, SALE, WAVE, false))));
        assert!(!(0..500).any(|number| both(&draw(rng, number, SALE, WAVE, true))));
    }
}
