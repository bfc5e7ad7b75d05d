//! What `doctor` found, as lines: good, worth a warning, or to be repaired before a start.

use std::time::Duration;

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
}

/// Compares a server's clock with this node's.
pub(super) fn skew(findings: &mut Findings, whose: &str, now: DateTime<Utc>) {
    let skew = (now - Utc::now()).abs();
    if skew > MAX_SKEW {
        let skew = Duration::from_millis(skew.num_milliseconds().unsigned_abs());
        findings.warn(
            &format!("{whose}'s clock is {skew:?} away from this node's"),
            "run a time service on every machine; sales follow the database's clock",
        );
    } else {
        findings.good(&format!("{whose}'s clock agrees with this node's"));
    }
}
