//! How a sale goes, in closed form. Seconds count from the opening.
//!
//! Attempt `k` of `n` comes after `−over · ln(1 − k / n)`. It waits in one queue, which is emptied at the orders' rate while
//! there is stock, and at the refusals' rate afterwards. The curve of arrivals is convex, so a queue that has become empty
//! stays empty. Therefore attempt `k` leaves either when it comes, or as if the queue had never been empty since the
//! current rate began: Lindley's recursion without its steps.

use crate::plan::options::PlanOptions;

/// For how many attempts the wait is calculated, evenly spread over all.
const SAMPLES: u32 = 10_000;

/// How a sale goes. Seconds.
#[derive(Debug)]
pub struct Outcome {
    /// From the opening to the last order; `None` where stock is left.
    pub sold_out_s: Option<f64>,
    /// From the opening to the last answer.
    pub answered_s: f64,
    /// The 99th percentile of the times in the queue.
    pub p99_s: f64,
}

/// Calculates how a sale goes, from the rates of orders and of refusals a second.
pub fn sale(options: &PlanOptions, orders_per_s: f64, refusals_per_s: f64) -> Outcome {
    let attempts = options.attempts();
    let stock = options.stock as f64;
    let orders = stock.min(attempts);
    // By the formula the last attempt would never come, so the curve is cut off at ten times `over`.
    let comes_s = |k: f64| options.over * -(1.0 - k / attempts).max(4.54e-5).ln();
    let last_order_s = comes_s(orders).max(orders / orders_per_s);
    let leaves_s = |k: f64| {
        let in_turn_s = if k <= orders {
            k / orders_per_s
        } else {
            last_order_s + (k - orders) / refusals_per_s
        };
        in_turn_s.max(comes_s(k))
    };
    let mut waits = Vec::new();
    for sample in 1..=SAMPLES {
        let k = attempts * f64::from(sample) / f64::from(SAMPLES);
        waits.push(leaves_s(k) - comes_s(k));
    }
    waits.sort_by(f64::total_cmp);
    Outcome {
        sold_out_s: (stock <= attempts).then_some(last_order_s),
        answered_s: leaves_s(attempts),
        p99_s: waits[waits.len() * 99 / 100],
    }
}
