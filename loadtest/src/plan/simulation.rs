//! A discrete-event simulation of the same sale, which checks the formulas: every attempt waits at every station, with
//! processor times drawn at random, and orders wait for their transaction and for the sale's row.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::plan::{
    fluid::{self, EDGE_DELAY_S, Outcome},
    model::{Commit, Demand, Model},
};

/// Attempts in hand at once at least: with fewer, the stations would wait for each other.
const ADMITTED: f64 = 64.0;
/// Attempts simulated at most. Of a larger sale a part is simulated, with as large a part of stock and servers.
const ATTEMPTS: f64 = 40_000.0;

/// What a processor works on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// An attempt's step.
    Attempt(usize),
    /// A transaction's statements.
    Transaction(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrived(usize),
    Served(usize, Work),
    Committed(usize),
}

/// One attempt.
struct Attempt {
    entered_s: f64,
    is_order: bool,
    step: usize,
}

/// A station: processors, and what waits for one.
struct Station {
    idle: usize,
    /// Of one processor; below 1 where there is less than a whole one.
    speed: f64,
    queue: VecDeque<(Work, f64)>,
}

struct Simulation<'a> {
    model: &'a Model,
    edge: bool,
    random: StdRng,
    now_s: f64,
    /// Time in nanoseconds and a number that keeps the order of equal times.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    stations: Vec<Station>,
    attempts: Vec<Attempt>,
    /// Orders that wait for a transaction.
    queued: VecDeque<usize>,
    transactions: Vec<Vec<usize>>,
    in_flight: usize,
    in_flight_orders: usize,
    /// Transactions that wait for the sale's row.
    at_row: VecDeque<usize>,
    is_row_locked: bool,
    batch: usize,
    stock: u64,
    sold_out_s: Option<f64>,
    answered_s: f64,
    waits: Vec<f64>,
    /// Attempts before the instances.
    outside: VecDeque<usize>,
    in_hand: usize,
    admitted: usize,
    most_waiting: usize,
}

/// Simulates the sale; the same `seed` gives the same result.
pub fn sale(model: &Model, demand: &Demand, seed: u64) -> Outcome {
    let part = (ATTEMPTS / demand.attempts).min(1.0);
    let count = (demand.attempts * part).max(1.0) as usize;
    let mut simulation = Simulation::new(model, demand, part, seed);
    let (mut let_in_s, mut room_s) = (0.0_f64, 0.0_f64);
    for at in 0..count {
        let arrived_s = demand.arrivals.at(at as f64 / count as f64);
        let entered_s = match demand.waiting_room {
            Some(rate) => {
                let_in_s = arrived_s.max(let_in_s + 1.0 / (rate * part));
                let_in_s
            }
            None => arrived_s,
        };
        room_s = room_s.max(entered_s - arrived_s);
        simulation.attempts.push(Attempt { entered_s, is_order: true, step: 0 });
        simulation.at(entered_s, Event::Arrived(at));
    }
    simulation.run();
    let Simulation { waits, sold_out_s, answered_s, most_waiting, .. } = simulation;
    if demand.edge
        && let Some(sold_out_s) = sold_out_s
    {
        // The edge answers those who are still in the waiting room, too.
        room_s = room_s.min(sold_out_s + EDGE_DELAY_S);
    }
    let waits = waits.into_iter().map(|wait| (wait, 1.0)).collect();
    fluid::outcome(waits, sold_out_s, answered_s, room_s, most_waiting as f64 / part)
}

impl<'a> Simulation<'a> {
    fn new(model: &'a Model, demand: &Demand, part: f64, seed: u64) -> Self {
        let station = |servers: f64| {
            let servers = (servers * part).max(1e-9);
            let idle = servers.ceil();
            Station { idle: idle as usize, speed: servers / idle, queue: VecDeque::new() }
        };
        let batch = model.commit.as_ref().map_or(1.0, |commit| commit.batch);
        Self {
            model,
            edge: demand.edge,
            random: StdRng::seed_from_u64(seed),
            now_s: 0.0,
            events: BinaryHeap::new(),
            count: 0,
            stations: model.stations.iter().map(|at| station(at.servers)).collect(),
            attempts: Vec::new(),
            queued: VecDeque::new(),
            transactions: Vec::new(),
            in_flight: 0,
            in_flight_orders: 0,
            at_row: VecDeque::new(),
            is_row_locked: false,
            batch: (batch * part).max(1.0) as usize,
            stock: (demand.stock * part).max(1.0) as u64,
            sold_out_s: None,
            answered_s: 0.0,
            waits: Vec::new(),
            outside: VecDeque::new(),
            in_hand: 0,
            admitted: (model.admitted * part).max(ADMITTED) as usize,
            most_waiting: 0,
        }
    }

    fn at(&mut self, time_s: f64, event: Event) {
        self.count += 1;
        self.events.push(Reverse(((time_s * 1e9) as u64, self.count, event)));
    }

    fn run(&mut self) {
        while let Some(Reverse((time_ns, _, event))) = self.events.pop() {
            self.now_s = time_ns as f64 / 1e9;
            match event {
                Event::Arrived(attempt) => self.arrived(attempt),
                Event::Served(station, work) => {
                    self.stations[station].idle += 1;
                    self.start(station);
                    match work {
                        Work::Attempt(attempt) => self.next_step(attempt),
                        Work::Transaction(transaction) => self.lock_row(transaction),
                    }
                }
                Event::Committed(transaction) => self.committed(transaction),
            }
        }
    }

    fn arrived(&mut self, attempt: usize) {
        if self.edge && self.sold_out_s.is_some_and(|at| self.now_s > at + EDGE_DELAY_S) {
            self.waits.push(0.0);
            return;
        }
        self.outside.push_back(attempt);
        self.most_waiting = self.most_waiting.max(self.outside.len() + self.in_hand);
        self.admit();
    }

    fn admit(&mut self) {
        while self.in_hand < self.admitted
            && let Some(attempt) = self.outside.pop_front()
        {
            self.in_hand += 1;
            self.attempts[attempt].is_order = self.stock > 0;
            self.next_step(attempt);
        }
    }

    fn next_step(&mut self, number: usize) {
        let attempt = &mut self.attempts[number];
        let path = if attempt.is_order { &self.model.order } else { &self.model.refusal };
        let step = attempt.step;
        attempt.step += 1;
        match path.get(step) {
            Some((station, seconds)) => {
                let seconds = self.draw(*seconds);
                self.serve(*station, Work::Attempt(number), seconds);
            }
            None if !self.attempts[number].is_order => self.answer(number),
            None if self.model.commit.is_some() => {
                self.queued.push_back(number);
                self.begin_transactions();
            }
            None => self.sell(number),
        }
    }

    /// A time with this mean, exponentially distributed.
    fn draw(&mut self, mean_s: f64) -> f64 {
        -mean_s * (1.0 - self.random.random::<f64>()).ln()
    }

    fn serve(&mut self, station: usize, work: Work, seconds: f64) {
        self.stations[station].queue.push_back((work, seconds));
        self.start(station);
    }

    fn start(&mut self, number: usize) {
        let station = &mut self.stations[number];
        if station.idle == 0 {
            return;
        }
        let Some((work, seconds)) = station.queue.pop_front() else { return };
        station.idle -= 1;
        let ended_s = self.now_s + seconds / self.stations[number].speed;
        self.at(ended_s, Event::Served(number, work));
    }

    /// Begins transactions as the service does: as many orders as there are, and a further one only for as many as one in
    /// flight has.
    fn begin_transactions(&mut self) {
        let model = self.model;
        let Some(Commit { station, order_s, in_flight, .. }) = &model.commit else { return };
        loop {
            let average = self.in_flight_orders / self.in_flight.max(1);
            if self.queued.len() < average.max(1) || self.in_flight as f64 >= *in_flight {
                return;
            }
            let count = self.queued.len().min(self.batch);
            let orders: Vec<usize> = self.queued.drain(..count).collect();
            self.in_flight += 1;
            self.in_flight_orders += count;
            self.transactions.push(orders);
            let transaction = Work::Transaction(self.transactions.len() - 1);
            self.serve(*station, transaction, *order_s * count as f64);
        }
    }

    fn lock_row(&mut self, transaction: usize) {
        if self.stock == 0 {
            // It changes nothing, and so locks nothing.
            return self.end(transaction);
        }
        self.at_row.push_back(transaction);
        self.commit_next();
    }

    fn commit_next(&mut self) {
        let model = self.model;
        let (Some(commit), false) = (&model.commit, self.is_row_locked) else { return };
        if let Some(transaction) = self.at_row.pop_front() {
            self.is_row_locked = true;
            self.at(self.now_s + commit.row_s, Event::Committed(transaction));
        }
    }

    fn committed(&mut self, transaction: usize) {
        self.is_row_locked = false;
        self.end(transaction);
        self.commit_next();
    }

    fn end(&mut self, transaction: usize) {
        let orders = std::mem::take(&mut self.transactions[transaction]);
        self.in_flight -= 1;
        self.in_flight_orders -= orders.len();
        orders.into_iter().for_each(|order| self.sell(order));
        self.begin_transactions();
    }

    fn sell(&mut self, attempt: usize) {
        if self.stock > 0 {
            self.stock -= 1;
            if self.stock == 0 {
                self.sold_out_s = Some(self.now_s);
            }
        }
        self.answer(attempt);
    }

    fn answer(&mut self, attempt: usize) {
        self.waits.push(self.now_s - self.attempts[attempt].entered_s);
        self.answered_s = self.now_s;
        self.in_hand -= 1;
        self.admit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{
        arrivals::{Arrivals, Curve},
        fluid::Rates,
        model::Station as Place,
    };

    /// A service of 4 processors at 20 µs, a Redis at 5 µs, and a database of 2 at 10 µs an order.
    fn model(commit: Option<Commit>) -> Model {
        let place = |name, servers| Place { name, servers };
        Model {
            stations: vec![place("service", 4.0), place("Redis", 1.0), place("database", 2.0)],
            order: vec![(0, 20e-6), (1, 5e-6)],
            refusal: vec![(0, 16e-6), (1, 4e-6)],
            commit,
            admitted: 2048.0,
        }
    }

    fn group(row_s: f64) -> Commit {
        Commit { station: 2, order_s: 10e-6, row_s, batch: 512.0, in_flight: 4.0 }
    }

    #[track_caller]
    fn agree(model: &Model, demand: &Demand) {
        let formula = fluid::sale(demand, &Rates::of(model));
        let simulated = sale(model, demand, 1);
        let near = |what: &str, a: f64, b: f64| {
            assert!((a / b - 1.0).abs() < 0.1, "{what}: {a} by formula, {b} simulated, {demand:?}");
        };
        let sold_out = [formula, simulated].map(|outcome| outcome.sold_out_s.unwrap_or(1.0));
        near("sold out", sold_out[0], sold_out[1]);
        near("all answered", formula.answered_s, simulated.answered_s);
        near("p99", formula.p99_s, simulated.p99_s);
    }

    #[test]
    fn formulas_and_simulation_agree_where_a_queue_builds_up() {
        let commits = [
            Some(group(0.001)),
            Some(Commit { batch: 1.0, in_flight: 999.0, ..group(5e-4) }),
            None,
        ];
        for model in commits.map(model) {
            for (curve, over_s) in
                [(Curve::AtOnce, 0.0), (Curve::Even, 0.05), (Curve::Decay, 0.025)]
            {
                let arrivals = Arrivals { curve, over_s };
                let (edge, waiting_room) = (false, None);
                let demand =
                    Demand { attempts: 40_000.0, stock: 8_000.0, arrivals, edge, waiting_room };
                agree(&model, &demand);
            }
        }
    }

    #[test]
    fn a_part_of_a_large_sale_stands_for_all_of_it() {
        let arrivals = Arrivals { curve: Curve::AtOnce, over_s: 0.0 };
        let (edge, waiting_room) = (false, None);
        let demand = Demand { attempts: 5e6, stock: 1e6, arrivals, edge, waiting_room };
        agree(&model(Some(group(0.001))), &demand);
    }

    #[test]
    fn the_edge_and_the_waiting_room_take_what_they_are_to_take() {
        let arrivals = Arrivals { curve: Curve::Even, over_s: 20.0 };
        let demand = |edge, waiting_room| Demand {
            attempts: 100_000.0,
            stock: 1_000.0,
            arrivals,
            edge,
            waiting_room,
        };
        let model = model(Some(group(0.001)));
        let rates = Rates::of(&model);
        // Sold out after 0.2 s: who comes after 1.2 s is answered outside.
        for outcome in
            [fluid::sale(&demand(true, None), &rates), sale(&model, &demand(true, None), 1)]
        {
            assert!((1.0..1.5).contains(&outcome.answered_s), "{outcome:?}");
        }
        // 2,500 a second for 40 s: the last one waits for half of it.
        for outcome in [
            fluid::sale(&demand(false, Some(2_500.0)), &rates),
            sale(&model, &demand(false, Some(2_500.0)), 1),
        ] {
            assert!((19.0..21.0).contains(&outcome.room_s), "{outcome:?}");
            assert!((39.0..41.0).contains(&outcome.answered_s), "{outcome:?}");
        }
    }
}
