//! The check of an overload: goodput, refusals, memory.

use super::report::Report;
use crate::scenario::check_result::CheckResult;

/// Share of the peak that must still get through.
pub const GOODPUT: f64 = 0.8;
/// Memory may grow under overload by this share of what it was, and by [`MEMORY_BYTES`].
pub const MEMORY_SHARE: f64 = 0.25;
/// See [`MEMORY_SHARE`]: a small process may double without harm.
pub const MEMORY_BYTES: u64 = 64 << 20;
/// More than this share of the attempts unsent, or of users who were still busy, and the tool was the
/// bottleneck.
const UNSENT: f64 = 0.05;

/// Checks a run.
pub fn check(report: &Report) -> CheckResult {
    let load = &report.overload;
    let mut violations: Vec<String> =
        report.violations.iter().map(|(invariant, count)| format!("{invariant} {count}")).collect();
    if load.failed > 0 {
        violations.push(format!("{} attempts neither accepted nor refused", load.failed));
    }
    if load.without_retry_after > 0 {
        violations.push(format!("{} refusals without Retry-After", load.without_retry_after));
    }
    if let Some((before, most)) = load.memory {
        let allowed = before + MEMORY_BYTES + (before as f64 * MEMORY_SHARE) as u64;
        if most > allowed {
            violations.push(format!("memory grew from {} to {} MB", before >> 20, most >> 20));
        }
    }
    let sent_enough = load.unsent as f64 <= UNSENT * (load.unsent + load.requests) as f64;
    if report.goodput < GOODPUT && sent_enough {
        violations.push(format!("{:.2} of the peak got through", report.goodput));
    }
    if !violations.is_empty() {
        return CheckResult::of(violations);
    }
    if report.peak.accepted == 0 {
        return CheckResult::Unclear("nothing was sold".to_owned());
    }
    if !sent_enough {
        let unsent = load.unsent;
        return CheckResult::Unclear(format!(
            "{unsent} attempts were never made, as all connections were busy: use more --connections"
        ));
    }
    if load.busy as f64 > UNSENT * load.requests as f64 {
        let busy = load.busy;
        return CheckResult::Unclear(format!("{busy} users were still busy: use more --buyers"));
    }
    if load.refused == 0 {
        return CheckResult::DidNotShow("nothing was refused: this was no overload".to_owned());
    }
    CheckResult::Holds
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::scenario::overload::report::Load;
    use workload::latency::Latency;

    fn load(accepted: u64, refused: u64) -> Load {
        Load {
            offered_per_s: None,
            requests: accepted + refused,
            unsent: 0,
            orders_per_s: accepted as f64 / 10.0,
            accepted,
            refused,
            without_retry_after: 0,
            busy: 0,
            failed: 0,
            replies: BTreeMap::new(),
            latency_accepted: Latency::default(),
            latency_refused: Latency::default(),
            memory: Some((100 << 20, 110 << 20)),
        }
    }

    fn checked(change: impl FnOnce(&mut Report)) -> CheckResult {
        let mut report = Report {
            scenario: "overload",
            strategy: String::new(),
            targets: Vec::new(),
            buyers: 1,
            sales: 1,
            factor: 3.0,
            peak: load(1000, 0),
            overload: load(900, 2100),
            goodput: 0.9,
            violations: BTreeMap::new(),
            check: CheckResult::Holds,
        };
        change(&mut report);
        check(&report)
    }

    #[test]
    fn an_overload_that_is_shed_well_holds() {
        assert_eq!(checked(|_| ()), CheckResult::Holds);
    }

    #[test]
    fn each_violation_is_found() {
        for (found, result) in [
            ("0.79 of the peak", checked(|report| report.goodput = 0.79)),
            ("Retry-After", checked(|report| report.overload.without_retry_after = 1)),
            ("neither", checked(|report| report.overload.failed = 1)),
            ("memory", checked(|report| report.overload.memory = Some((100 << 20, 200 << 20)))),
            ("lost 1", checked(|report| report.violations = BTreeMap::from([("lost", 1)]))),
        ] {
            assert!(result.is_violation() && result.text().contains(found), "{result:?}");
        }
    }

    #[test]
    fn what_was_no_overload_proves_nothing() {
        for result in [
            checked(|report| report.overload.refused = 0),
            checked(|report| report.overload.unsent = 1000),
            checked(|report| report.overload.busy = 1000),
            checked(|report| report.peak.accepted = 0),
        ] {
            assert!(!result.is_violation() && !result.is_proof(), "{result:?}");
        }
    }
}
