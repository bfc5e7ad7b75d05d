//! [`DatabaseClock`]: what time it is by the database's clock, without asking it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Instant;

use chrono::{DateTime, Utc};

/// The time by the database's clock, reckoned from its last reply. It is never ahead of that clock while that runs evenly.
/// Cheap to clone.
#[derive(Clone)]
pub struct DatabaseClock(Arc<Reading>);

struct Reading {
    began: Instant,
    /// The database's time at `began`, µs since 1970; 0 before the first reply.
    offset_us: AtomicI64,
}

impl Default for DatabaseClock {
    fn default() -> Self {
        DatabaseClock(Arc::new(Reading {
            began: Instant::now(),
            offset_us: AtomicI64::new(0),
        }))
    }
}

impl DatabaseClock {
    fn elapsed_us(&self) -> i64 {
        let elapsed = self.0.began.elapsed().as_micros();
        elapsed.try_into().unwrap_or(i64::MAX)
    }

    /// A reply that has just come says that it is `now`.
    pub fn set(&self, now: DateTime<Utc>) {
        let offset = now.timestamp_micros() - self.elapsed_us();
        self.0.offset_us.store(offset, Relaxed);
    }

    /// `None` before the first reply.
    pub fn now(&self) -> Option<DateTime<Utc>> {
        match self.0.offset_us.load(Relaxed) {
            0 => None,
            offset => DateTime::from_timestamp_micros(offset + self.elapsed_us()),
        }
    }
}
