//! Wall-clock time in the configured zone. The wire speaks zone-less local date-times, the database
//! stores UTC instants; this is the one place that converts. No I/O may come in here.
//!
//! Which clock decides what: a sale's window is judged by the **database's** clock (see
//! [`crate::voucher::sales`]), so a node whose own clock is wrong cannot open a sale early. The
//! seconds in an order id come from the **node's** clock; ids stay unique whatever it says (see
//! [`crate::id`]).

use chrono::{DateTime, NaiveDateTime, TimeZone, Utc};
use chrono_tz::Tz;

/// The zone in which date-times are read and written on the wire, and in which the id day changes.
#[derive(Clone, Copy, Debug)]
pub struct Zone(pub Tz);

impl Zone {
    /// The wall clock of this zone, now, by this node's own clock.
    pub fn now(self) -> NaiveDateTime {
        self.to_local(Utc::now())
    }

    /// The wall clock of this zone at `instant`.
    pub fn to_local(self, instant: DateTime<Utc>) -> NaiveDateTime {
        instant.with_timezone(&self.0).naive_local()
    }

    /// The instant a local date-time means. Where clocks are turned back and it names two instants,
    /// the earlier; where they are turned forward and it names none, `None`.
    pub fn to_utc(self, local: NaiveDateTime) -> Option<DateTime<Utc>> {
        self.0.from_local_datetime(&local).earliest().map(|at| at.with_timezone(&Utc))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(text: &str) -> NaiveDateTime {
        text.parse().unwrap()
    }

    #[test]
    fn shanghai_is_eight_hours_ahead_both_ways() {
        let zone = Zone(chrono_tz::Asia::Shanghai);
        let at = zone.to_utc(local("2022-01-04T09:42:39")).unwrap();
        assert_eq!(at.to_rfc3339(), "2022-01-04T01:42:39+00:00");
        assert_eq!(zone.to_local(at), local("2022-01-04T09:42:39"));
    }

    #[test]
    fn a_skipped_hour_names_no_instant_and_a_repeated_one_names_the_earlier() {
        let zone = Zone(chrono_tz::Europe::Berlin);
        assert!(zone.to_utc(local("2026-03-29T02:30:00")).is_none());
        let earlier = zone.to_utc(local("2026-10-25T02:30:00")).unwrap();
        assert_eq!(earlier.to_rfc3339(), "2026-10-25T00:30:00+00:00");
    }
}
