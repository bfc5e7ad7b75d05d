//! How a sale goes: attempts as a fluid through one queue that is emptied at the orders' rate while there is stock, and at
//! the refusals' rate afterwards (Lindley's recursion). Seconds count from the opening.

use crate::plan::options::PlanOptions;

/// Steps of the recursion for the attempts that find stock, and for the others.
const STEPS: f64 = 2_000.0;
/// How long after the end of the stock the edge goes on asking the service, seconds.
const EDGE_DELAY_S: f64 = 1.0;

/// Rates of a sale, and the times of an answer without waiting.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    pub orders: f64,
    pub refusals: f64,
    /// Time of an order and of a refusal without waiting, seconds.
    pub alone_s: [f64; 2],
}

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

/// When this share (0 to 1) of the attempts has come. The last of them would never come: the curve ends at ten times its
/// length.
fn arrival_s(options: &PlanOptions, share: f64) -> f64 {
    options.over * -(1.0 - share).max(4.54e-5).ln()
}

/// Calculates how a sale goes.
pub fn sale(options: &PlanOptions, rates: &Rates) -> Outcome {
    let (attempts, stock) = (options.attempts(), options.stock as f64);
    let orders = stock.min(attempts);
    let parts = [
        (orders, rates.orders, rates.alone_s[0]),
        (attempts - orders, rates.refusals, rates.alone_s[1]),
    ];
    let (mut free_s, mut room_s, mut let_in_s) = (0.0_f64, 0.0_f64, 0.0_f64);
    let (mut done, mut arrived_before_s, mut sold_out_s) = (0.0, 0.0_f64, None::<f64>);
    // Each with the number of attempts that had it.
    let mut waits: Vec<(f64, f64)> = Vec::new();
    for (count, rate, alone_s) in parts {
        let steps = count.clamp(1.0, STEPS).ceil();
        let width = count / steps;
        for _ in 0..steps as u64 {
            done += width;
            let arrived_s = arrival_s(options, (done / attempts).min(1.0));
            let (mut begin_s, mut entered_s) = (arrived_before_s, arrived_s);
            if let Some(rate) = options.waiting_room {
                begin_s = begin_s.max(let_in_s);
                let_in_s = (begin_s + width / rate).max(arrived_s);
                entered_s = let_in_s;
            }
            arrived_before_s = arrived_s;
            if options.edge && sold_out_s.is_some_and(|at| begin_s > at + EDGE_DELAY_S) {
                waits.push((0.0, width));
                continue;
            }
            room_s = room_s.max(entered_s - arrived_s);
            free_s = entered_s.max(begin_s.max(free_s) + width / rate);
            waits.push((free_s - entered_s + alone_s, width));
        }
        if sold_out_s.is_none() && stock <= attempts {
            sold_out_s = Some(free_s + alone_s);
        }
    }
    waits.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = waits.iter().map(|(_, count)| count).sum();
    let mut below = 0.0;
    let p99 = waits.iter().find(|(_, count)| {
        below += count;
        below >= 0.99 * all
    });
    let p99_s = p99.map_or(0.0, |(wait, _)| *wait);
    let room_s = options.waiting_room.map(|_| room_s);
    Outcome { sold_out_s, answered_s: free_s + rates.alone_s[1], p99_s, room_s }
}

/// The least rate of answers, orders at most at `orders` a second, at which the 99th percentile stays within the target;
/// `None` where no rate is enough.
pub fn needed_rate(options: &PlanOptions, orders: f64) -> Option<f64> {
    let is_enough = |rate: f64| {
        let rates = Rates { orders: rate.min(orders), refusals: rate, alone_s: [0.0; 2] };
        sale(options, &rates).p99_s <= options.target
    };
    let (mut low, mut high) = (0.0, 2.0 * options.attempts() / options.target.min(1.0));
    if !is_enough(high) {
        return None;
    }
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if is_enough(middle) { high = middle } else { low = middle }
    }
    Some(high)
}
