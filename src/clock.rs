//! Time zones: converts between local date-times without an offset, as clients send and read them, and the UTC instants of
//! the database. Only here.
//!
//! Which clock decides what: a sale's window is checked by the **database's** clock (see `voucher/sales.rs`), so that a
//! node whose own clock is wrong cannot open a sale early. The seconds in an order id come from the **node's** clock;
//! ids are unique whatever it says (see `id/`).

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, NaiveDateTime, TimeZone, Utc};
use chrono_tz::Tz;

/// The time zone of date-times in requests and replies, and of the day that an order id's counter belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Zone(pub Tz);

impl Zone {
    /// The local date-time now, by this node's clock.
    pub fn now(self) -> NaiveDateTime {
        self.to_local(Utc::now())
    }

    /// A clock that shows the local seconds since 1970, by this node's clock; before 1970 it stands still.
    pub fn seconds(self) -> impl Fn() -> i64 + Send + Sync {
        let known = KnownOffset::new();
        move || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let utc = since.as_secs() as i64;
            utc + known.at(utc, |minute| self.offset(minute))
        }
    }

    /// The zone's offset at an instant, in seconds; zero for one that no calendar has.
    fn offset(self, seconds: i64) -> i64 {
        let local = DateTime::from_timestamp(seconds, 0).map(|at| self.to_local(at).and_utc());
        local.map_or(0, |local| local.timestamp() - seconds)
    }

    /// The local date-time at `instant`.
    pub fn to_local(self, instant: DateTime<Utc>) -> NaiveDateTime {
        instant.with_timezone(&self.0).naive_local()
    }

    /// The instant of a local date-time. Where clocks are turned back and it names two, the earlier; where they are
    /// turned forward and it names none, `None`.
    pub fn to_utc(self, local: NaiveDateTime) -> Option<DateTime<Utc>> {
        self.0.from_local_datetime(&local).earliest().map(|at| at.with_timezone(&Utc))
    }
}

/// The offset that was looked up last, in seconds, with the minute in which it is valid: no zone has changed its offset
/// within a minute since 1972.
struct KnownOffset(AtomicI64);

impl KnownOffset {
    /// Bits of the offset, which is stored with a day added, so that it is positive.
    const BITS: u32 = 18;
    const DAY: i64 = 86_400;

    fn new() -> Self {
        Self(AtomicI64::new(i64::MIN))
    }

    /// The offset at `seconds`; `look_up` is called for the first of each minute.
    fn at(&self, seconds: i64, look_up: impl Fn(i64) -> i64) -> i64 {
        let minute = seconds.div_euclid(60);
        let mut known = self.0.load(Relaxed);
        if known >> Self::BITS != minute {
            known = minute << Self::BITS | (look_up(minute * 60) + Self::DAY);
            self.0.store(known, Relaxed);
        }
        (known & ((1 << Self::BITS) - 1)) - Self::DAY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(text: &str) -> NaiveDateTime {
        text.parse().unwrap()
    }

    #[test]
    fn a_known_offset_changes_with_the_zone() {
        for (zone, change) in [
            (chrono_tz::Europe::Berlin, "2026-03-29T01:00:00"),
            (chrono_tz::America::St_Johns, "2026-11-01T04:30:00"),
            (chrono_tz::Pacific::Apia, "2011-12-30T10:00:00"),
        ] {
            let (known, change) = (KnownOffset::new(), local(change).and_utc().timestamp());
            let offset = |seconds| Zone(zone).offset(seconds);
            assert_ne!(offset(change - 1), offset(change));
            for seconds in change - 100..change + 100 {
                assert_eq!(known.at(seconds, offset), offset(seconds));
            }
        }
    }

    #[test]
    fn a_skipped_hour_names_no_instant_and_a_repeated_one_names_the_earlier() {
        let zone = Zone(chrono_tz::Europe::Berlin);
        assert!(zone.to_utc(local("2026-03-29T02:30:00")).is_none());
        let earlier = zone.to_utc(local("2026-10-25T02:30:00")).unwrap();
        assert_eq!(earlier.to_rfc3339(), "2026-10-25T00:30:00+00:00");
    }
}
