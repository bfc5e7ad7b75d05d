//! The check of a penetration run: how many loads a pass over absent ids may cause.

use super::report::Pass;
use crate::{reads::ReadStrategy, scenario::check_result::CheckResult};

/// Statements of other clients that the database may count during a pass.
const OTHERS: u64 = 100;

/// Checks a pass by its counts.
pub fn check(pass: &Pass) -> CheckResult {
    let mut violations = Vec::new();
    let loads = pass.layers.loads;
    if pass.answers.found > 0 {
        violations.push(format!("{} shops found that do not exist", pass.answers.found));
    }
    let Some(most) = pass.most_loads else {
        if !violations.is_empty() {
            return CheckResult::of(violations);
        }
        let share = 100.0 * loads as f64 / pass.requests.max(1) as f64;
        return CheckResult::Shown(format!("{share:.0} % of all requests reach the database"));
    };
    if pass.answers.unanswered() > 0 {
        violations.push(format!("not answered: {}", pass.answers.text()));
    }
    if loads > most {
        violations.push(format!("{loads} loads, at most {most} are allowed"));
    }
    if pass.statements > most + OTHERS {
        violations.push(format!("the database executed {} statements", pass.statements));
    }
    let unfiltered = pass.requests as u64 - pass.layers.filtered.min(pass.requests as u64);
    if violations.is_empty()
        && pass.strategy == ReadStrategy::NullCaching
        && unfiltered < pass.requests as u64 / 2
    {
        let filtered = pass.layers.filtered;
        return CheckResult::Unclear(format!(
            "the filter answered {filtered} of {} requests before any cached null could",
            pass.requests
        ));
    }
    CheckResult::of(violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reads::{Layers, answer::Tally};
    use workload::latency::Latency;

    fn pass(strategy: ReadStrategy, most_loads: Option<u64>, loads: u64) -> Pass {
        Pass {
            strategy,
            filter: strategy == ReadStrategy::Layered,
            requests: 1000,
            distinct: 100,
            elapsed_s: 1.0,
            most_loads,
            layers: Layers { loads, ..Layers::default() },
            statements: loads,
            answers: Tally { absent: 1000, ..Tally::default() },
            latency: Latency::default(),
            check: CheckResult::Holds,
        }
    }

    #[test]
    fn one_load_too_many_is_found() {
        for (strategy, most) in [(ReadStrategy::Layered, 10), (ReadStrategy::NullCaching, 100)] {
            assert_eq!(check(&pass(strategy, Some(most), most)), CheckResult::Holds);
            assert!(check(&pass(strategy, Some(most), most + 1)).is_violation());
            let lying = Pass { statements: 1000, ..pass(strategy, Some(most), 1) };
            assert!(check(&lying).is_violation(), "the database counts, too");
        }
    }

    #[test]
    fn missing_and_wrong_answers_are_found() {
        let tally = Tally { absent: 999, server_errors: 1, ..Tally::default() };
        let failing = Pass { answers: tally, ..pass(ReadStrategy::Layered, Some(10), 1) };
        assert!(check(&failing).is_violation());
        let tally = Tally { absent: 999, found: 1, ..Tally::default() };
        for most in [Some(10), None] {
            let phantom = Pass { answers: tally, ..pass(ReadStrategy::Layered, most, 1) };
            assert!(check(&phantom).is_violation());
        }
    }

    #[test]
    fn filtered_requests_prove_nothing_about_cached_nulls() {
        let mut idle = pass(ReadStrategy::NullCaching, Some(100), 5);
        idle.layers.filtered = 900;
        assert!(matches!(check(&idle), CheckResult::Unclear(_)));
        assert!(check(&pass(ReadStrategy::CacheAside, None, 1000)).is_proof());
    }
}
