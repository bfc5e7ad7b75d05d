//! The check of steady reads: which seconds failed, and how many may.

use super::report::Report;
use crate::scenario::check_result::CheckResult;

/// Checks a run by its timeline.
pub fn check(report: &Report) -> CheckResult {
    let failed = report.failed_seconds();
    let mut violations = Vec::new();
    if failed.len() > report.tolerate_seconds {
        let (count, allowed) = (failed.len(), report.tolerate_seconds);
        let named: Vec<_> = failed.iter().take(10).map(usize::to_string).collect();
        let more = if count > 10 { ", …" } else { "" };
        violations.push(format!(
            "{} failures in {count} seconds, {allowed} allowed (seconds {}{more})",
            report.answers.failures(),
            named.join(", ")
        ));
    }
    if report.answers.odd > 0 {
        violations.push(format!("{} unexpected answers", report.answers.odd));
    }
    // All ids that are read as existing do exist, and all others do not.
    if report.absent == 0.0 && report.answers.absent > 0 {
        let count = report.answers.absent;
        violations.push(format!("{count} answers deny a shop that exists"));
    }
    if !violations.is_empty() {
        return CheckResult::of(violations);
    }
    if report.answers.total() == 0 {
        return CheckResult::Unclear("nothing was read".to_owned());
    }
    if report.unsent > 0 {
        return CheckResult::Unclear(format!(
            "{} requests were never sent: use a lower --rate or more --connections",
            report.unsent
        ));
    }
    CheckResult::Holds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        reads::{Layers, answer::Tally},
        scenario::read::report::Second,
    };
    use workload::latency::Latency;

    fn report(failures: &[u64], tolerate_seconds: usize) -> Report {
        let timeline: Vec<_> = failures
            .iter()
            .map(|count| Second {
                answers: Tally { found: 100, server_errors: *count, ..Tally::default() },
                ..Second::default()
            })
            .collect();
        let mut answers = Tally::default();
        timeline.iter().for_each(|second| answers.add(&second.answers));
        Report {
            scenario: "read",
            targets: Vec::new(),
            read_strategy: String::new(),
            rate: None,
            connections: 1,
            ids: 1,
            zipf: 1.0,
            absent: 0.0,
            elapsed_s: 3.0,
            requests_per_s: 100.0,
            unsent: 0,
            answers,
            latency: Latency::default(),
            layers: Layers::default(),
            expired: 0,
            timeline,
            tolerate_seconds,
            check: CheckResult::Holds,
        }
    }

    #[test]
    fn seconds_with_failures_are_counted_and_named() {
        assert_eq!(check(&report(&[0, 0, 0], 0)), CheckResult::Holds);
        let result = check(&report(&[0, 1, 0], 0));
        assert!(result.is_violation() && result.text().contains("seconds 1"), "{result:?}");
        assert_eq!(check(&report(&[0, 70, 0], 1)), CheckResult::Holds);
        assert!(check(&report(&[0, 70, 1], 1)).is_violation());
        let silent = Tally { no_answer: 1, ..Tally::default() };
        let mut lost = report(&[0], 0);
        lost.timeline[0].answers = silent;
        assert!(check(&lost).is_violation(), "no answer is a failure, too");
    }

    #[test]
    fn wrong_answers_are_found() {
        let mut odd = report(&[0], 0);
        odd.answers.odd = 1;
        assert!(check(&odd).is_violation());
        let mut denied = report(&[0], 0);
        denied.answers.absent = 1;
        assert!(check(&denied).is_violation());
        denied.absent = 0.01;
        assert_eq!(check(&denied), CheckResult::Holds);
    }

    #[test]
    fn a_rate_that_was_not_kept_proves_nothing() {
        let slow = Report { unsent: 1, ..report(&[0], 0) };
        assert!(matches!(check(&slow), CheckResult::Unclear(_)));
        assert!(matches!(check(&report(&[], 0)), CheckResult::Unclear(_)));
    }
}
