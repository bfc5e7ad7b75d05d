//! How a sale goes, in closed form. Seconds count from the opening.
//!
//! Attempt `k` of `n` comes after `−over · ln(1 − k / n)`. It waits in one queue, which is emptied at the orders' rate while
//! there is stock, and at the refusals' rate afterwards. The curve of arrivals is convex, so a queue that has become empty
//! stays empty. Therefore attempt `k` leaves either when it comes, or as if the queue had never been empty since the
//! current rate began: Lindley's recursion without its steps. The same holds for a waiting room before the queue.

use crate::plan::options::PlanOptions;

/// For how many attempts the wait is calculated: so many of those that find stock, and as many of the others.
const SAMPLES: u32 = 2_000;
/// How long attempts still reach the service after the last order, where the edge answers "sold out", seconds.
const EDGE_DELAY_S: f64 = 1.0;
/// Within how many seconds 99 % of the answers must come; what a sale needs is calculated for this target.
pub const TARGET_S: f64 = 1.0;

/// How a sale goes. Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// From the opening to the last order; `None` where stock is left.
    pub sold_out_s: Option<f64>,
    /// From the opening to the last answer.
    pub answered_s: f64,
    /// The 99th percentile of the times from an attempt (behind the waiting room) to its answer.
    pub p99_s: f64,
    /// The longest wait in the waiting room, where there is one.
    pub room_s: Option<f64>,
}

/// Calculates how a sale goes, from the rates of orders and of refusals a second, and their times without waiting, seconds.
pub fn sale(
    options: &PlanOptions,
    [orders_per_s, refusals_per_s]: [f64; 2],
    [order_s, refusal_s]: [f64; 2],
) -> Outcome {
    let attempts = options.attempts();
    let stock = options.stock as f64;
    let orders = stock.min(attempts);
    // By the formula the last attempt would never come, so the curve is cut off at ten times `over`.
    let comes_s = |k: f64| options.over * -(1.0 - k / attempts).max(4.54e-5).ln();
    let enters_s = |k: f64| {
        options
            .waiting_room
            .map_or(0.0, |rate| k / rate)
            .max(comes_s(k))
    };
    let last_order_s = enters_s(orders).max(orders / orders_per_s);
    let leaves_s = |k: f64| {
        let queue_s = if k <= orders {
            k / orders_per_s
        } else {
            last_order_s + (k - orders) / refusals_per_s
        };
        enters_s(k).max(queue_s)
    };
    let sold_out_s = (stock <= attempts).then_some(last_order_s + order_s);
    // Attempts that the service answers; the edge answers the others.
    let served = match sold_out_s {
        Some(sold_out_s) if options.edge => {
            let until_s = sold_out_s + EDGE_DELAY_S;
            let come = attempts * (1.0 - (-until_s / options.over).exp());
            options
                .waiting_room
                .map_or(come, |rate| come.min(rate * until_s))
                .max(orders)
        }
        _ => attempts,
    };
    let mut answered_s = 0.0_f64;
    let mut room_s = 0.0_f64;
    // Each wait with the number of attempts that it stands for; those that the edge answers do not wait.
    let mut waits = vec![(0.0, attempts - served)];
    for (first, count, alone_s) in [(0.0, orders, order_s), (orders, served - orders, refusal_s)] {
        let width = count / f64::from(SAMPLES);
        for k in (1..=SAMPLES).map(|sample| first + width * f64::from(sample)) {
            let entered_s = enters_s(k);
            let left_s = leaves_s(k) + alone_s;
            waits.push((left_s - entered_s, width));
            answered_s = answered_s.max(left_s);
            room_s = room_s.max(entered_s - comes_s(k));
        }
    }
    waits.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut below = 0.0;
    let p99 = waits.iter().find(|(_, count)| {
        below += count;
        below >= 0.99 * attempts
    });
    let p99_s = p99.map_or(0.0, |(wait, _)| *wait);
    Outcome {
        sold_out_s,
        answered_s,
        p99_s,
        room_s: options.waiting_room.map(|_| room_s),
    }
}

/// The lowest rate of answers a second at which the 99th percentile stays within [`TARGET_S`], if at most
/// `most_orders_per_s` of them are orders; `None` where no rate is enough.
pub fn needed_rate(options: &PlanOptions, most_orders_per_s: f64) -> Option<f64> {
    let is_enough =
        |rate: f64| sale(options, [rate.min(most_orders_per_s), rate], [0.0; 2]).p99_s <= TARGET_S;
    let mut low = 0.0;
    let mut high = 2.0 * options.attempts() / TARGET_S;
    if !is_enough(high) {
        return None;
    }
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if is_enough(middle) {
            high = middle
        } else {
            low = middle
        }
    }
    Some(high)
}
