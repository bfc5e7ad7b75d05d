//! Interleaved rounds: every side once, one after the other, then again (A B C A B C …), so that other load on the
//! machine affects all of them alike. The first round fills connection pools, statement caches and blocks of ids, and
//! does not count.

use crate::bench::settings::say;

/// Measures each of `sides` in every round; the results of each side.
pub async fn interleaved<S, R>(
    rounds: usize,
    sides: &[S],
    measure: impl AsyncFn(usize, &S) -> anyhow::Result<R>,
) -> anyhow::Result<Vec<Vec<R>>> {
    let mut results: Vec<Vec<R>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        say(&match round {
            0 => "warming up (not counted)".to_owned(),
            round => format!("round {round} of {rounds}"),
        });
        for (side, results) in sides.iter().zip(&mut results) {
            let result = measure(round, side).await?;
            if round > 0 {
                results.push(result);
            }
        }
    }
    Ok(results)
}
