//! The formulas: attempts as a fluid through one queue that is emptied at the orders' rate while there is stock, and at
//! the refusals' rate afterwards (Lindley's recursion).

use serde::Serialize;

use crate::plan::model::{Demand, Model};

/// Steps of the recursion for the attempts that find stock, and for the others.
const STEPS: f64 = 2_000.0;
/// How long after the end of the stock the edge goes on asking the service, seconds.
pub const EDGE_DELAY_S: f64 = 1.0;

/// How a sale goes. Seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    /// From the opening to the last order; `None` where stock is left.
    pub sold_out_s: Option<f64>,
    /// From the opening to the last answer.
    pub answered_s: f64,
    /// Of the waiting times, from an attempt (behind the waiting room) to its answer, the median.
    pub p50_s: f64,
    /// And the 99th percentile.
    pub p99_s: f64,
    /// The longest wait in the waiting room.
    pub room_s: f64,
    /// Attempts waiting at once at most.
    pub waiting: f64,
}

/// Rates of a sale and the time of an answer without waiting.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Orders a second.
    pub orders: f64,
    /// Refusals a second.
    pub refusals: f64,
    /// Time of an order and of a refusal without waiting, seconds.
    pub alone_s: [f64; 2],
}

impl Rates {
    /// The most that `model` does.
    pub fn of(model: &Model) -> Self {
        let (orders, refusals) = (model.orders_per_s().0, model.refusals_per_s().0);
        Self { orders, refusals, alone_s: [model.order_s(), model.refusal_s()] }
    }
}

/// Calculates how a sale goes.
pub fn sale(demand: &Demand, rates: &Rates) -> Outcome {
    let orders = demand.stock.min(demand.attempts);
    let parts = [
        (orders, rates.orders, rates.alone_s[0]),
        (demand.attempts - orders, rates.refusals, rates.alone_s[1]),
    ];
    let (mut free_s, mut room_s, mut waiting) = (0.0_f64, 0.0_f64, 0.0_f64);
    let (mut let_in_s, mut sold_out_s, mut waits) = (0.0_f64, None, Vec::new());
    let (mut done, mut arrived_before_s) = (0.0, demand.arrivals.at(0.0));
    for (count, rate, alone_s) in parts {
        let steps = count.clamp(1.0, STEPS).ceil();
        let width = count / steps;
        for _ in 0..steps as u64 {
            done += width;
            let arrived_s = demand.arrivals.at((done / demand.attempts).min(1.0));
            let (begin_s, entered_s) = match demand.waiting_room {
                Some(rate) => {
                    let begin_s = arrived_before_s.max(let_in_s);
                    let_in_s = (begin_s + width / rate).max(arrived_s);
                    (begin_s, let_in_s)
                }
                None => (arrived_before_s, arrived_s),
            };
            arrived_before_s = arrived_s;
            if demand.edge && sold_out_s.is_some_and(|at| begin_s > at + EDGE_DELAY_S) {
                waits.push((0.0, width));
                continue;
            }
            room_s = room_s.max(entered_s - arrived_s);
            free_s = entered_s.max(begin_s.max(free_s) + width / rate);
            let queued_s = free_s - entered_s;
            waiting = waiting.max(queued_s * rate);
            waits.push((queued_s + alone_s, width));
        }
        if sold_out_s.is_none() && demand.stock <= demand.attempts {
            sold_out_s = Some(free_s + alone_s);
        }
    }
    outcome(waits, sold_out_s, free_s + rates.alone_s[1], room_s, waiting)
}

/// Sums up waiting times, each with the number of attempts that had it.
pub fn outcome(
    mut waits: Vec<(f64, f64)>,
    sold_out_s: Option<f64>,
    answered_s: f64,
    room_s: f64,
    waiting: f64,
) -> Outcome {
    waits.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = waits.iter().map(|(_, count)| count).sum();
    let at = |share: f64| {
        let mut below = 0.0;
        let found = waits.iter().find(|(_, count)| {
            below += count;
            below >= all * share
        });
        found.map_or(0.0, |(wait, _)| *wait)
    };
    Outcome { sold_out_s, answered_s, p50_s: at(0.5), p99_s: at(0.99), room_s, waiting }
}

/// The least rate of answers, orders at most at `orders` a second, at which the 99th percentile is at most `target_s`;
/// `None` where no rate is enough.
pub fn needed_rate(demand: &Demand, orders: f64, target_s: f64) -> Option<f64> {
    let p99_s = |rate: f64| {
        let rates = Rates { orders: rate.min(orders), refusals: rate, alone_s: [0.0; 2] };
        sale(demand, &rates).p99_s
    };
    let (mut low, mut high) = (0.0, 2.0 * demand.attempts / target_s.min(1.0));
    if p99_s(high) > target_s {
        return None;
    }
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if p99_s(middle) <= target_s { high = middle } else { low = middle }
    }
    Some(high)
}
