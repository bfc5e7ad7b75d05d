//! Counters: relaxed atomics, read as plain numbers. They only ever rise.

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A struct of atomic counters, and the public struct of plain numbers that it is read as.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident from $atomics:ident { $(#[doc = $help:literal] $field:ident,)* }) => {
        #[doc = concat!("The counters that are read as [`", stringify!($name), "`].")]
        #[derive(Debug, Default)]
        pub struct $atomics {
            $(pub(crate) $field: Counter,)*
        }

        impl $atomics {
            pub(crate) fn read(&self) -> $name {
                $name { $($field: self.$field.get(),)* }
            }
        }

        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $(#[doc = $help] pub $field: u64,)*
        }

        impl $name {
            /// Every counter with its name and description, for a metrics page.
            pub fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($field), $help.trim_ascii(), self.$field),)*]
            }
        }
    };
}

counters! {
    /// Counts of reads under one [`CachePolicy`](crate::CachePolicy).
    PolicyStats from PolicyCounters {
        /// Reads answered from this process's memory.
        local_hits,
        /// Reads answered by a value from Redis.
        redis_hits,
        /// Reads answered "does not exist" by a cached null.
        null_hits,
        /// Reads answered "does not exist" by the Bloom filter.
        filtered,
        /// Loads started. More than keys that expire: a read strategy without a mutex.
        loads,
        /// Loads that failed, timed out, panicked, or did not start because too many were running; the log says which.
        load_failures,
        /// Reads that shared the load of another reader of this process.
        shared,
        /// Reads answered by a stale value while it was being rebuilt.
        stale_served,
        /// Polls for the result of another node's load. Many: it loads slowly.
        waits,
        /// Loaded values not stored, because the key was invalidated meanwhile: the newer value won.
        refused,
        /// Values in Redis that could not be decoded and were loaded again: another program writes these keys, which the log names.
        unreadable,
        /// Reads answered without Redis, because it was unavailable.
        bypassed,
        /// Loaded values that Redis did not confirm to have stored: it is slow or away, and the next read loads again.
        not_stored,
    }
}

counters! {
    /// Counts of invalidations, and of losses of Redis, in one process.
    CacheCounts from CacheCounters {
        /// Keys this process invalidated; as many as its writes.
        invalidations_sent,
        /// Keys other processes invalidated.
        invalidations_received,
        /// Failed attempts to send an invalidation; each is retried.
        invalidation_failures,
        /// Times the subscription to invalidations was lost: Redis restarted, or disconnects subscribers.
        subscription_losses,
        /// Times the circuit breaker opened: Redis failed several times in a row.
        breaker_opened,
    }
}

/// The state of one process's cache. Reads are counted by policy, in
/// [`CachePolicy::stats`](crate::CachePolicy::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Counts since the start.
    pub counts: CacheCounts,
    /// Keys whose invalidation Redis has not confirmed yet.
    pub pending_invalidations: u64,
    /// Whether the circuit breaker is open: Redis failed and is not used.
    pub breaker_open: bool,
    /// Whether the memory is in use. It is disabled while the subscription to invalidations is down.
    pub local_enabled: bool,
    /// Values in memory, including expired ones that were not replaced yet.
    pub local_entries: u64,
    /// Loads running now.
    pub loads_running: u64,
}
