//! Which seconds of a run count as failed, and how many of them are allowed. Pure.

use super::{Report, Second};
use crate::scenario::standing::Standing;

/// The seconds, counted from 0, in which a read got a 5xx or no answer.
pub fn failed_seconds(timeline: &[Second]) -> Vec<usize> {
    let failed = |(second, bin): (usize, &Second)| (bin.answers.failures() > 0).then_some(second);
    timeline.iter().enumerate().filter_map(failed).collect()
}

/// Judges a run by its timeline.
pub fn judge(report: &Report) -> Standing {
    let failed = failed_seconds(&report.timeline);
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
        return Standing::of(violations);
    }
    if report.answers.total() == 0 {
        return Standing::Unclear("nothing was read".to_owned());
    }
    if report.unsent > 0 {
        return Standing::Unclear(format!(
            "{} requests were never sent: use a lower --rate or more --connections",
            report.unsent
        ));
    }
    Standing::Holds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        reads::{Layers, answer::Tally},
        scenario::standing::Outcome,
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
            policy: String::new(),
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
            standing: Standing::Holds,
            outcome: Outcome::Clean,
        }
    }

    #[test]
    fn seconds_with_failures_are_counted_and_named() {
        assert_eq!(judge(&report(&[0, 0, 0], 0)), Standing::Holds);
        let standing = judge(&report(&[0, 1, 0], 0));
        assert!(standing.is_violation() && standing.text().contains("seconds 1"), "{standing:?}");
        assert_eq!(judge(&report(&[0, 70, 0], 1)), Standing::Holds);
        assert!(judge(&report(&[0, 70, 1], 1)).is_violation());
        let silent = Tally { no_answer: 1, ..Tally::default() };
        let mut lost = report(&[0], 0);
        lost.timeline[0].answers = silent;
        assert!(judge(&lost).is_violation(), "no answer is a failure, too");
    }

    #[test]
    fn wrong_answers_are_found() {
        let mut odd = report(&[0], 0);
        odd.answers.odd = 1;
        assert!(judge(&odd).is_violation());
        let mut denied = report(&[0], 0);
        denied.answers.absent = 1;
        assert!(judge(&denied).is_violation());
        denied.absent = 0.01;
        assert_eq!(judge(&denied), Standing::Holds);
    }

    #[test]
    fn a_rate_that_was_not_kept_proves_nothing() {
        let slow = Report { unsent: 1, ..report(&[0], 0) };
        assert!(matches!(judge(&slow), Standing::Unclear(_)));
        assert!(matches!(judge(&report(&[], 0)), Standing::Unclear(_)));
    }
}
