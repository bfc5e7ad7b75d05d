//! What `doctor` found, as lines: good, worth a warning, or to be repaired before a start.

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

    /// What must be repaired.
    pub(super) fn fail(&mut self, what: &str) {
        self.failures += 1;
        println!("  FAIL  {what}");
    }

    /// The value that a check returned. Where the check failed, prints its message, which says what to repair.
    pub(super) fn value_or_fail<T>(&mut self, check: anyhow::Result<T>) -> Option<T> {
        check.map_err(|error| self.fail(&format!("{error:#}"))).ok()
    }
}
