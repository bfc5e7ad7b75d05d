//! What `doctor` found, as lines: good, worth a warning, or to be repaired before a start.

use chrono::{DateTime, TimeDelta, Utc};

/// Clocks further apart than this are worth a warning.
const MAX_SKEW: TimeDelta = TimeDelta::seconds(2);

/// Prints findings, and counts those that must be repaired.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) failures: usize,
}

impl Findings {
    pub(super) fn good(&self, what: &str) {
        println!("  ok    {what}");
    }

    pub(super) fn warn(&self, what: &str, advice: &str) {
        println!("  warn  {what}\n        → {advice}");
    }

    pub(super) fn fail(&mut self, what: &str, advice: &str) {
        self.failures += 1;
        println!("  FAIL  {what}\n        → {advice}");
    }

    /// What `check` found, or why it could not go on.
    pub(super) fn end<T>(&mut self, check: anyhow::Result<T>) -> Option<T> {
        check.map_err(|error| self.fail(&format!("{error:#}"), "see the message")).ok()
    }

    /// Compares a server's clock with this node's.
    pub(super) fn clock(&self, whose: &str, now: DateTime<Utc>) {
        let skew = (now - Utc::now()).abs();
        if skew > MAX_SKEW {
            self.warn(
                &format!("{whose}'s clock is {} s away from this node's", skew.num_seconds()),
                "run a time service on every machine; sales follow the database's clock",
            );
        } else {
            self.good(&format!("{whose}'s clock agrees with this node's"));
        }
    }
}
