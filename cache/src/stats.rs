//! What the cache counts: relaxed atomics, read as plain numbers. Counters only ever rise.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident from $cells:ident { $(#[doc = $help:literal] $field:ident,)* }) => {
        #[derive(Debug, Default)]
        pub(super) struct $cells {
            $(pub(super) $field: Count,)*
        }

        impl $cells {
            pub(super) fn read(&self) -> $name {
                $name { $($field: self.$field.get(),)* }
            }
        }

        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name {
            $(#[doc = $help] pub $field: u64,)*
        }

        impl $name {
            /// Every counter with its name and what it counts, for a metrics page.
            pub fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($field), $help.trim_ascii(), self.$field),)*]
            }
        }
    };
}

counters! {
    /// What reads under one [`Policy`](super::Policy) did.
    PolicyStats from PolicyCounters {
        /// Answered from this process's memory.
        local_hits,
        /// Answered by a value from Redis.
        redis_hits,
        /// Answered "does not exist" by a cached null.
        null_hits,
        /// Answered "does not exist" by the Bloom filter.
        filtered,
        /// Loads begun.
        loads,
        /// Loads that failed, took too long, panicked, or got no turn.
        load_failures,
        /// Readers that shared the work of another reader of this process.
        shared,
        /// Answered by a value that was being rebuilt.
        stale_served,
        /// Times somebody looked whether another node's load was done.
        waits,
        /// Loaded values not stored, because the key was invalidated meanwhile.
        refused,
        /// Values in Redis that could not be read and were loaded anew.
        unreadable,
        /// Answered without Redis, because it was away.
        bypassed,
    }
}

counters! {
    /// What the invalidation machinery of one process did.
    CacheCounts from CacheCounters {
        /// Keys this process told the others to forget.
        invalidations_sent,
        /// Keys other processes told this one to forget.
        invalidations_received,
        /// Attempts to deliver an invalidation that failed.
        invalidation_failures,
        /// Times the connection that hears of invalidations was lost.
        listener_losses,
        /// Times Redis was given up by the circuit breaker.
        breaker_opened,
    }
}

/// The state of one process's cache. What reads did is counted by policy:
/// [`Policy::stats`](super::Policy::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStats {
    /// What was counted since the start.
    pub counts: CacheCounts,
    /// Keys whose invalidation could not be delivered yet.
    pub retries_pending: u64,
    /// Whether Redis is being left alone because it failed.
    pub breaker_open: bool,
    /// Whether invalidations are being heard. While they are not, nothing is kept in memory.
    pub local_trusted: bool,
    /// Values in memory, expired ones that were not yet replaced included.
    pub local_entries: u64,
    /// Loads running now.
    pub loads_running: u64,
}
