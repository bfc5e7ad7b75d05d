//! What a pass over absent ids may cost. Pure.

use super::Pass;
use crate::{reads::Way, scenario::standing::Standing};

/// Statements of others that the witness may count during a pass.
const OTHERS: u64 = 100;

/// Judges a pass by its counts.
pub fn judge(pass: &Pass) -> Standing {
    let mut violations = Vec::new();
    let loads = pass.layers.loads;
    if pass.answers.found > 0 {
        violations.push(format!("{} shops found that do not exist", pass.answers.found));
    }
    let Some(most) = pass.most_loads else {
        if !violations.is_empty() {
            return Standing::of(violations);
        }
        let share = 100.0 * loads as f64 / pass.requests.max(1) as f64;
        return Standing::Shown(format!("{share:.0} % of all requests reach the database"));
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
        && pass.way == Way::NullCaching
        && unfiltered < pass.requests as u64 / 2
    {
        let filtered = pass.layers.filtered;
        return Standing::Unclear(format!(
            "the filter answered {filtered} of {} requests before any cached null could",
            pass.requests
        ));
    }
    Standing::of(violations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reads::{Layers, answer::Tally};
    use workload::latency::Latency;

    fn pass(way: Way, most_loads: Option<u64>, loads: u64) -> Pass {
        Pass {
            way,
            filter: way == Way::Layered,
            requests: 1000,
            distinct: 100,
            elapsed_s: 1.0,
            most_loads,
            layers: Layers { loads, ..Layers::default() },
            statements: loads,
            answers: Tally { absent: 1000, ..Tally::default() },
            latency: Latency::default(),
            standing: Standing::Holds,
        }
    }

    #[test]
    fn one_load_too_many_is_found() {
        for (way, most) in [(Way::Layered, 10), (Way::NullCaching, 100)] {
            assert_eq!(judge(&pass(way, Some(most), most)), Standing::Holds);
            assert!(judge(&pass(way, Some(most), most + 1)).is_violation());
            let lying = Pass { statements: 1000, ..pass(way, Some(most), 1) };
            assert!(judge(&lying).is_violation(), "the witness is heard");
        }
    }

    #[test]
    fn answers_that_are_none_or_wrong_are_found() {
        let tally = Tally { absent: 999, server_errors: 1, ..Tally::default() };
        let failing = Pass { answers: tally, ..pass(Way::Layered, Some(10), 1) };
        assert!(judge(&failing).is_violation());
        let tally = Tally { absent: 999, found: 1, ..Tally::default() };
        for most in [Some(10), None] {
            let phantom = Pass { answers: tally, ..pass(Way::Layered, most, 1) };
            assert!(judge(&phantom).is_violation());
        }
    }

    #[test]
    fn nulls_that_nobody_asked_prove_nothing() {
        let mut idle = pass(Way::NullCaching, Some(100), 5);
        idle.layers.filtered = 900;
        assert!(matches!(judge(&idle), Standing::Unclear(_)));
        assert!(judge(&pass(Way::CacheAside, None, 1000)).is_proof());
    }
}
