//! The check of updates: which reads are stale, by how much, and what of it is allowed.
//!
//! Version *v* was superseded when the first higher version was confirmed. A read that was sent
//! later than that and returned *v* is stale by the time between the two. A read that was sent
//! before may return either: the change had not been confirmed yet.

use std::time::{Duration, Instant};

use super::report::Report;
use crate::scenario::check_result::CheckResult;

/// The versions written so far.
#[derive(Debug, Default)]
pub struct Versions {
    issued: u64,
    /// Versions and the instants of their confirmation, both rising.
    confirmed: Vec<(u64, Instant)>,
}

impl Versions {
    /// This version is about to be written.
    pub fn issue(&mut self, version: u64) {
        self.issued = version;
    }

    /// The service has confirmed this version.
    pub fn confirm(&mut self, version: u64, at: Instant) {
        self.confirmed.push((version, at));
    }

    /// How many versions were confirmed.
    pub fn confirmed(&self) -> u64 {
        self.confirmed.len() as u64
    }

    /// By how much a read sent at `sent` was too late to return `version`; `None`: it was not.
    pub fn stale_by(&self, version: u64, sent: Instant) -> Option<Duration> {
        let next = self.confirmed.partition_point(|(confirmed, _)| *confirmed <= version);
        let (_, superseded) = self.confirmed.get(next)?;
        sent.checked_duration_since(*superseded).filter(|by| !by.is_zero())
    }
}

/// What the readers found.
#[derive(Debug, Clone)]
pub struct Findings {
    /// Stale reads.
    pub stale: u64,
    /// The worst staleness on each instance.
    pub worst: Vec<Duration>,
    /// Stale reads beyond the bound; known after [`Findings::close`].
    pub beyond: u64,
    /// Reads of a version that was not issued yet, or of a name that is no version.
    pub foreign: u64,
    /// Reads of each instance sent after the latest confirmation so far, and fresh.
    pub tail: Vec<u64>,
    /// Every staleness, until the end.
    all: Vec<Duration>,
}

impl Findings {
    /// For so many instances.
    pub fn new(instances: usize) -> Self {
        Self {
            stale: 0,
            worst: vec![Duration::ZERO; instances],
            beyond: 0,
            foreign: 0,
            tail: vec![0; instances],
            all: Vec::new(),
        }
    }

    /// Takes one read of a shop; returns its staleness, if it was stale.
    pub fn take(
        &mut self,
        versions: &Versions,
        instance: usize,
        sent: Instant,
        version: Option<u64>,
    ) -> Option<Duration> {
        let Some(version) = version.filter(|version| *version <= versions.issued) else {
            self.foreign += 1;
            return None;
        };
        let Some(stale) = versions.stale_by(version, sent) else {
            if versions.confirmed.last().is_some_and(|(last, at)| *last <= version && *at < sent) {
                self.tail[instance] += 1;
            }
            return None;
        };
        self.stale += 1;
        self.worst[instance] = self.worst[instance].max(stale);
        self.all.push(stale);
        Some(stale)
    }

    /// Counts what lies beyond the bound.
    pub fn close(&mut self, bound: Duration) {
        self.beyond = self.all.iter().filter(|stale| **stale > bound).count() as u64;
    }
}

/// Checks a run by its figures.
pub fn check(report: &Report) -> CheckResult {
    let mut violations = Vec::new();
    if report.beyond > 0 {
        let worst = report.worst_ms.iter().copied().fold(0.0, f64::max);
        violations.push(format!(
            "{} reads returned an old value more than {} ms after its change was confirmed, the \
             worst {worst:.0} ms",
            report.beyond, report.bound_ms
        ));
    }
    if report.foreign > 0 {
        violations.push(format!("{} reads of a name that was not written", report.foreign));
    }
    // A rate limit per shop is no violation: those readers were told to come back.
    if report.reads.found + report.reads.throttled < report.reads.total() {
        violations.push(format!("not every read got the shop: {}", report.reads.text()));
    }
    if !violations.is_empty() {
        return CheckResult::of(violations);
    }
    if report.confirmed <= report.unconfirmed {
        return CheckResult::Unclear(format!("{} changes were not confirmed", report.unconfirmed));
    }
    if report.tail_reads.contains(&0) {
        return CheckResult::Unclear("an instance was not read often enough".to_owned());
    }
    if report.cut_every > 0 && report.connections_cut == 0 {
        return CheckResult::Unclear("there was no invalidation connection to cut".to_owned());
    }
    CheckResult::Holds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reads::answer::Tally;
    use workload::latency::Latency;

    const MS: Duration = Duration::from_millis(1);

    /// Versions 1 and 3 are confirmed at 10 and 30 ms; 2 was not confirmed; 4 is under way.
    fn versions(begin: Instant) -> Versions {
        let mut versions = Versions::default();
        for version in 1..=4 {
            versions.issue(version);
            if version % 2 == 1 {
                versions.confirm(version, begin + 10 * version as u32 * MS);
            }
        }
        versions
    }

    #[test]
    fn staleness_counts_from_the_first_higher_version_confirmed() {
        let begin = Instant::now();
        let versions = versions(begin);
        let stale = |version, ms: u32| versions.stale_by(version, begin + ms * MS);
        assert_eq!(stale(0, 9), None, "before the change was confirmed");
        assert_eq!(stale(0, 10), None, "at that very instant");
        assert_eq!(stale(0, 15), Some(5 * MS));
        assert_eq!(stale(0, 500), Some(490 * MS));
        assert_eq!(stale(1, 29), None, "2 was never confirmed");
        assert_eq!(stale(1, 31), Some(MS));
        assert_eq!(stale(2, 31), Some(MS));
        assert_eq!((stale(3, 500), stale(4, 500)), (None, None));
    }

    #[test]
    fn findings_keep_the_worst_of_each_instance_and_foreign_names() {
        let begin = Instant::now();
        let versions = versions(begin);
        let mut findings = Findings::new(2);
        let mut take =
            |node, ms: u32, version| findings.take(&versions, node, begin + ms * MS, version);
        assert_eq!(take(0, 40, Some(1)), Some(10 * MS));
        assert_eq!(take(0, 35, Some(2)), Some(5 * MS));
        assert_eq!(take(1, 40, Some(3)), None);
        assert_eq!(take(1, 40, Some(5)), None);
        assert_eq!(take(1, 40, None), None);
        findings.close(5 * MS);
        assert_eq!((findings.stale, findings.beyond, findings.foreign), (2, 1, 2));
        assert_eq!(findings.worst, [10 * MS, Duration::ZERO]);
        assert_eq!(findings.tail, [0, 1]);
    }

    fn report() -> Report {
        Report {
            scenario: "updates",
            targets: Vec::new(),
            read_strategy: String::new(),
            shop_id: 1,
            confirmed: 1000,
            unconfirmed: 0,
            put: Latency::default(),
            cuts: 10,
            connections_cut: 20,
            cut_every: 100,
            bound_ms: 1000,
            reads: Tally { found: 5000, ..Tally::default() },
            latency: Latency::default(),
            stale: 3,
            staleness: Latency::default(),
            worst_ms: vec![900.0, 3.0],
            tail_reads: vec![10, 10],
            beyond: 0,
            foreign: 0,
            check: CheckResult::Holds,
        }
    }

    #[test]
    fn one_read_beyond_the_bound_is_a_violation() {
        assert_eq!(check(&report()), CheckResult::Holds);
        assert!(check(&Report { beyond: 1, ..report() }).is_violation());
        assert!(check(&Report { foreign: 1, ..report() }).is_violation());
        let reads = Tally { found: 5000, server_errors: 1, ..Tally::default() };
        assert!(check(&Report { reads, ..report() }).is_violation());
        let reads = Tally { found: 5000, throttled: 1, ..Tally::default() };
        assert_eq!(check(&Report { reads, ..report() }), CheckResult::Holds);
    }

    #[test]
    fn a_run_that_tried_nothing_proves_nothing() {
        for idle in [
            Report { confirmed: 1, unconfirmed: 999, ..report() },
            Report { tail_reads: vec![10, 0], ..report() },
            Report { connections_cut: 0, ..report() },
        ] {
            assert!(matches!(check(&idle), CheckResult::Unclear(_)), "{idle:?}");
        }
    }
}
