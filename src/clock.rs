//! Time zones: converts between local date-times without an offset, as clients send and read them, and the UTC instants of
//! the database. Only here.
//!
//! Which clock decides what: a sale's window is checked by the **database's** clock (see `voucher/sales.rs`), so that a
//! node whose own clock is wrong cannot open a sale early. The seconds in an order id come from the **node's** clock;
//! ids are unique whatever it says (see `id/`).

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
        move || {
            let now = SystemTime::now().max(UNIX_EPOCH);
            self.to_local(now.into()).and_utc().timestamp()
        }
    }

    /// The local date-time at `instant`.
    pub fn to_local(self, instant: DateTime<Utc>) -> NaiveDateTime {
        instant.with_timezone(&self.0).naive_local()
    }

    /// The instant of a local date-time. Where clocks are turned back and it names two, the earlier; where they are
    /// turned forward and it names none, `None`.
    pub fn to_utc(self, local: NaiveDateTime) -> Option<DateTime<Utc>> {
        self.0
            .from_local_datetime(&local)
            .earliest()
            .map(|at| at.with_timezone(&Utc))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(text: &str) -> NaiveDateTime {
        text.parse().unwrap()
    }

    #[test]
    fn a_skipped_hour_names_no_instant_and_a_repeated_one_names_the_earlier() {
        let zone = Zone(chrono_tz::Europe::Berlin);
        assert!(zone.to_utc(local("2026-03-29T02:30:00")).is_none());
        let earlier = zone.to_utc(local("2026-10-25T02:30:00")).unwrap();
        assert_eq!(earlier.to_rfc3339(), "2026-10-25T00:30:00+00:00");
    }
}
