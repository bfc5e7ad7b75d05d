//! Time zones: converts between local date-times without an offset, as clients send and read them, and the UTC instants of
//! the database. No other file converts them.
//!
//! Which clock decides what: a sale's window is checked by the **database's** clock (see `voucher/sales.rs`), so that a
//! node whose own clock is wrong cannot open a sale early. The seconds in an order id come from the later of the
//! **node's** clock and the database's. So if an id is older, by the database's clock, than the longest purchase, its order is
//! not on its way any more. Ids are unique whatever the clocks say (see `id/`).

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, NaiveDateTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;

use crate::connection::database_clock::DatabaseClock;

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

    /// As [`Zone::seconds`], by this node's clock or the database's, whichever is later.
    pub fn latest_seconds(self, database: DatabaseClock) -> impl Fn() -> i64 + Send + Sync {
        let node = self.seconds();
        move || match database.now() {
            Some(now) => node().max(self.to_local(now).and_utc().timestamp()),
            None => node(),
        }
    }

    /// The local seconds since 1970 at an instant that is given in µs since 1970.
    pub fn seconds_at(self, instant_us: i64) -> i64 {
        let instant = DateTime::from_timestamp_micros(instant_us).unwrap_or_default();
        self.to_local(instant).and_utc().timestamp()
    }

    /// The local date-time at `instant`.
    pub fn to_local(self, instant: DateTime<Utc>) -> NaiveDateTime {
        instant.with_timezone(&self.0).naive_local()
    }

    /// The latest instant at which a clock may have shown this local date-time. Where clocks are turned back and it names two,
    /// the later. Where they are turned forward and it names none, the instant is taken as if they had not been turned yet.
    pub fn latest_utc(self, local: NaiveDateTime) -> DateTime<Utc> {
        let latest = |local: NaiveDateTime| self.0.from_local_datetime(&local).latest();
        let day = TimeDelta::days(1);
        let instant = latest(local).or_else(|| Some(latest(local - day)? + day));
        // Else the latest in any zone: a date ends last twelve hours behind UTC.
        instant.map_or(local.and_utc() + day / 2, |at| at.with_timezone(&Utc))
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

    #[test]
    fn the_age_of_a_local_time_is_not_overstated_where_clocks_are_turned() {
        let zone = Zone(chrono_tz::Europe::Berlin);
        let latest = |text| zone.latest_utc(local(text)).to_rfc3339();
        assert_eq!(latest("2026-06-01T02:30:00"), "2026-06-01T00:30:00+00:00");
        // The second half past two of that night, after which it is three.
        assert_eq!(latest("2026-10-25T02:30:00"), "2026-10-25T01:30:00+00:00");
        assert_eq!(latest("2026-10-25T03:00:00"), "2026-10-25T02:00:00+00:00");
        // A second before three, local time goes on at three: it is as old as it was.
        assert_eq!(latest("2026-03-29T01:59:59"), "2026-03-29T00:59:59+00:00");
        assert_eq!(latest("2026-03-29T03:00:00"), "2026-03-29T01:00:00+00:00");
        assert_eq!(latest("2026-03-29T02:30:00"), "2026-03-29T01:30:00+00:00");
    }

    #[test]
    fn an_id_is_dated_by_the_later_clock() {
        let zone = Zone(chrono_tz::Asia::Shanghai);
        let database = DatabaseClock::default();
        let seconds = zone.latest_seconds(database.clone());
        let node = zone.seconds();
        assert!(
            seconds() - node() <= 1,
            "nothing is known of the database's"
        );
        let two_minutes = TimeDelta::seconds(120);
        database.set(Utc::now() + two_minutes);
        assert!((119..=121).contains(&(seconds() - node())));
        database.set(Utc::now() - two_minutes);
        assert!(seconds() - node() <= 1);
    }
}
