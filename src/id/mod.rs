//! Id generator: 64-bit ids of a timestamp and a counter in Redis, `(local seconds since 2022) << 32 |
//! the day's counter`. Unique across nodes, Java nodes included, and rising per node. The counter is
//! `icr:order:{yyyy:MM:dd}`.
//!
//! A Java node takes one number per id. This service leases a block of numbers with a single `INCRBY` (the
//! hi/lo algorithm) and hands them out from memory, so an id rarely costs a round trip. Three rules keep ids unique:
//! - A lease never crosses local midnight: a number belongs to the day whose counter it came from.
//! - The seconds never step back within a node, whatever its clock does. If the counter started over, they step forward
//!   instead of repeating an id.
//! - A counter begins at a random number in the lower half of its range where it is missing, and where Redis may have lost
//!   data or be another server (`lua/id_lease.lua`). So a number that was given before does not come again in the same
//!   second. A Java node begins the counter at 1: if that gives a number twice, the database refuses the second row, and the
//!   caller calls [`IdGenerator::abandon_lease`].

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime};
use parking_lot::Mutex;

use crate::connection::fresh_cache::FreshCache;
use crate::connection::redis::RoutedConnection;
use crate::keys::Keys;
use crate::scripts::ID_LEASE;

/// Seconds from 1970 to 2022-01-01T00:00:00, the zero of the timestamp part.
pub const EPOCH_SECONDS: i64 = 1_640_995_200;

/// Bits of the counter part.
pub const SEQUENCE_BITS: u32 = 32;

/// The local date-time in an id.
pub fn local_time(id: i64) -> NaiveDateTime {
    let seconds = (id >> SEQUENCE_BITS) + EPOCH_SECONDS;
    DateTime::from_timestamp(seconds, 0)
        .unwrap_or_default()
        .naive_utc()
}

const SECONDS_PER_DAY: i64 = 86_400;

/// Why no id could be generated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Redis did not lease a block. Nothing was handed out.
    #[error("the id counter cannot be reached: {0}")]
    Unavailable(#[from] redis::RedisError),
    /// More ids in one day than the counter has numbers.
    #[error("the day's counter is exhausted")]
    Exhausted,
    /// The node's clock is before 2022 or after 2090.
    #[error("this node's clock is out of the range of ids: {0} s since 1970")]
    ClockOutOfRange(i64),
}

/// The clock whose seconds ids contain: local ones since 1970, as of [`Zone::seconds`](crate::clock::Zone::seconds).
pub type LocalClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// A generator of order ids. Share one among all tasks of a process.
pub struct IdGenerator {
    redis: RoutedConnection,
    clock: LocalClock,
    keys: Keys,
    block_size: u32,
    lease: Mutex<Lease>,
    /// The request for a block that is under way, shared by all who wait for one.
    leases: FreshCache<(), (), Error>,
}

/// The leased block: numbers `next..=last` of `day`'s counter, and the latest id handed out.
#[derive(Debug, Default)]
struct Lease {
    day: i64,
    next: i64,
    last: i64,
    latest_id: i64,
    /// Number of abandoned leases: a block that was requested before the last of them is not used.
    abandoned: u64,
}

impl IdGenerator {
    /// Ids from the counters of these keys, leased in blocks of `block_size` (at least one).
    pub fn new(redis: RoutedConnection, clock: LocalClock, keys: Keys, block_size: u32) -> Self {
        IdGenerator {
            redis,
            clock,
            keys,
            block_size: block_size.max(1),
            // An empty block: the first caller leases one.
            lease: Mutex::new(Lease {
                last: -1,
                ..Lease::default()
            }),
            leases: FreshCache::new(Duration::ZERO, 8),
        }
    }

    /// The next id, from memory except once per block.
    ///
    /// # Errors
    /// See [`Error`]. If the future is dropped, a block that was being leased is lost, and no id repeats.
    pub async fn next(&self) -> Result<i64, Error> {
        self.next_not_before(i64::MIN).await
    }

    /// As [`IdGenerator::next`], with an id whose second is not before `seconds`, which another clock shows. A clock that is a
    /// day or more ahead of ours is not followed.
    ///
    /// # Errors
    /// As of [`IdGenerator::next`].
    pub async fn next_not_before(&self, seconds: i64) -> Result<i64, Error> {
        let mut id = [0];
        self.fill_not_before(&mut id, seconds).await?;
        Ok(id[0])
    }

    /// Fills `ids` with the next ids. Reads the clock, and locks the lease, only once for those of a block.
    ///
    /// # Errors
    /// As of [`IdGenerator::next`]; ids that were handed out until then are lost.
    pub async fn fill(&self, ids: &mut [i64]) -> Result<(), Error> {
        self.fill_not_before(ids, i64::MIN).await
    }

    async fn fill_not_before(&self, ids: &mut [i64], not_before: i64) -> Result<(), Error> {
        let mut free = ids.iter_mut();
        let mut slot = free.next();
        loop {
            let mut seconds = (self.clock)();
            if not_before < seconds + SECONDS_PER_DAY {
                seconds = seconds.max(not_before);
            }
            let day = {
                let mut lease = self.lease.lock();
                loop {
                    let Some(id) = slot.as_deref_mut() else {
                        return Ok(());
                    };
                    match lease.next_id(seconds)? {
                        NextId::Id(next) => *id = next,
                        NextId::NeedsBlock(day) => break day,
                    }
                    slot = free.next();
                }
            };
            // All who wait for a block share the request for it, and its failure. Otherwise each would wait for a time limit of
            // its own, one after the other.
            self.leases
                .get((), async || self.lease_block(day).await)
                .await?;
        }
    }

    /// Leases a block of this day's numbers, unless one is there.
    async fn lease_block(&self, day: i64) -> Result<(), Error> {
        let abandoned = {
            let lease = self.lease.lock();
            if !lease.is_empty_for(day) {
                return Ok(());
            }
            lease.abandoned
        };
        let last = self.next_numbers(day).await?;
        let mut lease = self.lease.lock();
        if lease.abandoned == abandoned {
            lease.day = day;
            lease.next = last - i64::from(self.block_size) + 1;
            lease.last = last;
        }
        Ok(())
    }

    /// Discards the current block; the next id comes from a new one. Call it if the database already
    /// holds an id of this block: the counter was lost, and another node was given the same numbers.
    pub fn abandon_lease(&self) {
        let mut lease = self.lease.lock();
        lease.last = -1;
        lease.abandoned += 1;
    }

    /// Leases numbers of the day's counter; returns the last of them.
    async fn next_numbers(&self, day: i64) -> Result<i64, Error> {
        let midnight = DateTime::from_timestamp(day * SECONDS_PER_DAY, 0)
            .ok_or(Error::ClockOutOfRange(day * SECONDS_PER_DAY))?;
        let mut lease = ID_LEASE.key(&*self.keys.stream);
        lease
            .key(&*self.keys.pending)
            .key(self.keys.ids(midnight.format("%Y:%m:%d")));
        lease
            .arg(rand::random_range(0..1_u32 << (SEQUENCE_BITS - 1)))
            .arg(self.block_size);
        let last: i64 = lease.invoke_async(&mut self.redis.clone()).await?;
        if (0..1 << SEQUENCE_BITS).contains(&last) {
            Ok(last)
        } else {
            Err(Error::Exhausted)
        }
    }
}

enum NextId {
    Id(i64),
    /// No numbers left for this day (local days since 1970).
    NeedsBlock(i64),
}

impl Lease {
    fn is_empty_for(&self, day: i64) -> bool {
        self.day != day || self.next > self.last
    }

    /// The next id, with a second that is never before an earlier id's.
    fn next_id(&mut self, clock_seconds: i64) -> Result<NextId, Error> {
        let latest_second = (self.latest_id >> SEQUENCE_BITS) + EPOCH_SECONDS;
        let mut seconds = if self.latest_id == 0 {
            clock_seconds
        } else {
            clock_seconds.max(latest_second)
        };
        if seconds == latest_second && self.next <= self.latest_id & i64::from(u32::MAX) {
            // The counter started over: this second may have had the number already.
            seconds += 1;
        }
        let since_epoch = seconds - EPOCH_SECONDS;
        if !(0..1 << 31).contains(&since_epoch) {
            return Err(Error::ClockOutOfRange(seconds));
        }
        let day = seconds.div_euclid(SECONDS_PER_DAY);
        if self.is_empty_for(day) {
            return Ok(NextId::NeedsBlock(day));
        }
        self.latest_id = since_epoch << SEQUENCE_BITS | self.next;
        self.next += 1;
        Ok(NextId::Id(self.latest_id))
    }
}
