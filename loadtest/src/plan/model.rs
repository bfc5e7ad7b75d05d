//! The capacity model: stations, what an order and a refusal take of each; and what a target needs of them.

use crate::plan::{
    figures::Figures,
    options::PlanOptions,
    sale::{self, Outcome},
};
use workload::{
    Error,
    markdown::{bytes, count, figure, time},
};

/// Orders in one transaction of `group-commit`, and its transactions of an instance at once: the size of a batch, and the
/// default of `--group-in-flight`.
const GROUP_BATCH: f64 = 512.0;
const GROUP_IN_FLIGHT: f64 = 2.0;
/// Purchases in flight in an instance: the default of `--max-purchases`.
const MAX_PURCHASES: f64 = 1024.0;
/// Share of a processor that a plan counts on: beyond it, waiting times grow quickly.
const PLANNED_LOAD: f64 = 0.7;

const SERVICE: &str = "service";
const REDIS: &str = "Redis";
const DATABASE: &str = "database";
/// What one sale has for itself, however many servers there are.
const SALE_SHARD: &str = "the sale's Redis shard";
const ROW: &str = "the lock of the sale's row";

/// A rate, and what limits it.
type Limit = (f64, &'static str);

/// The figures of a plan by name, in the order of the report.
pub type Plan = Vec<(&'static str, String)>;

/// Processors, or what else does so many things at once.
#[derive(Debug)]
struct Station {
    name: &'static str,
    servers: f64,
    /// How long an order, and a refusal, takes one of them, seconds.
    takes_s: [f64; 2],
}

/// A sale on its machines.
#[derive(Debug)]
pub struct Model<'a> {
    options: &'a PlanOptions,
    stations: Vec<Station>,
    /// Time of an order and of a refusal without waiting, seconds.
    alone_s: [f64; 2],
}

impl<'a> Model<'a> {
    /// The model of a sale.
    pub fn new(figures: &Figures, options: &'a PlanOptions) -> Result<Self, Error> {
        let strategy = options.strategy.as_str();
        let (order, refusal) = (figures.answer(strategy)?.cost, figures.answer("sold-out")?.cost);
        // A refusal asks Redis for the session and nothing else, so that is also an order's part of it.
        let asked = if options.session_memory { 1.0 / options.tries.max(1.0) } else { 1.0 };
        let session = refusal.redis_us * asked;
        let rest = (order.redis_us - refusal.redis_us).max(0.0);
        // On `stream` one sale's keys are on one shard, which does one thing at a time.
        let (spread, own) = if strategy == "stream" { (0.0, rest) } else { (rest, 0.0) };
        let nodes = f64::from(options.nodes);
        let station = |name, servers, takes_us: [f64; 2]| Station {
            name,
            servers,
            takes_s: takes_us.map(|us| us / 1e6),
        };
        let mut stations = vec![
            station(SERVICE, nodes * options.node_cores, [order.service_us, refusal.service_us]),
            station(REDIS, options.redis_shards.into(), [session + spread, session]),
            station(SALE_SHARD, 1.0, [own, 0.0]),
            station(DATABASE, options.database_cores, [order.database_us, refusal.database_us]),
        ];
        let mut alone_s =
            [0, 1].map(|of| stations.iter().map(|station| station.takes_s[of]).sum::<f64>());
        if let Some(cores) = options.one_machine {
            alone_s[0] += order.client_us / 1e6;
            alone_s[1] += refusal.client_us / 1e6;
            stations = vec![Station { name: "the machine", servers: cores, takes_s: alone_s }];
        }
        // Of `stream` the rows come later: Redis has admitted the order.
        if strategy != "stream" {
            let (batch, in_flight) = match strategy {
                "group-commit" => (GROUP_BATCH, GROUP_IN_FLIGHT),
                _ => (1.0, MAX_PURCHASES),
            };
            // The sale's row is locked for a transaction's commit, one at a time.
            let commit_us = 1e3 * options.commit_ms.unwrap_or(figures.commit_ms);
            let locked_us = commit_us / batch;
            let transaction_us = locked_us + order.database_us;
            let in_flight = nodes * in_flight;
            stations.push(station(ROW, 1.0, [locked_us, 0.0]));
            stations.push(station("transactions in flight", in_flight, [transaction_us, 0.0]));
            alone_s[0] += commit_us / 1e6;
        }
        Ok(Self { options, stations, alone_s })
    }

    /// Orders a second of one sale at most, and refusals.
    fn limits(&self) -> [Limit; 2] {
        [0, 1].map(|of| lowest(&self.stations, of))
    }

    /// Orders a second that one sale can have, however many servers there are.
    fn own_orders_per_s(&self) -> f64 {
        let is_own = |station: &&Station| [SALE_SHARD, ROW].contains(&station.name);
        lowest(self.stations.iter().filter(is_own), 0).0
    }

    /// How the sale goes, by the formula.
    pub fn formula(&self) -> Outcome {
        let rates = self.limits().map(|(rate, _)| rate);
        sale::sale(self.options, rates, self.alone_s)
    }

    /// Instances of the given size, Redis servers, and processors of the database that are needed for so many answers a
    /// second.
    fn needed(&self, answers_per_s: f64) -> [f64; 3] {
        let orders_per_s = answers_per_s.min(self.own_orders_per_s());
        let needed = |name: &str| {
            let found = self.stations.iter().filter(|station| station.name == name);
            let busy = found.map(|Station { takes_s: [order_s, refusal_s], .. }| {
                (orders_per_s * order_s).max(answers_per_s * refusal_s)
            });
            busy.sum::<f64>() / PLANNED_LOAD
        };
        [
            (needed(SERVICE) / self.options.node_cores).ceil(),
            (needed(REDIS) + needed(SALE_SHARD)).ceil(),
            needed(DATABASE),
        ]
    }
}

/// Calculates the plan of one sale.
pub fn plan(figures: &Figures, options: &PlanOptions) -> Result<Plan, Error> {
    let model = Model::new(figures, options)?;
    let Outcome { sold_out_s, answered_s, p99_s, room_s } = model.formula();
    let [orders, refusals] =
        model.limits().map(|(rate, what)| format!("{} by {what}", figure(rate)));
    let mut plan = vec![
        ("sold out after", sold_out_s.map_or_else(|| "–".to_owned(), time)),
        ("all answered after", time(answered_s)),
        ("99 % wait at most", time(p99_s)),
        ("orders/s at most", orders),
        ("refusals/s at most", refusals),
    ];
    plan.extend(room_s.map(|longest| ("longest in the waiting room", time(longest))));
    let gives_way_first = match sale::needed_rate(options, model.own_orders_per_s()) {
        // The orders of one sale have a limit of their own.
        None => "the sale itself".to_owned(),
        Some(rate) => {
            let [instances, redis, database] = model.needed(rate);
            let sessions = options.buyers as f64 * figures.memory.session_redis;
            plan.extend([
                ("answers/s needed", figure(rate)),
                ("instances", count(instances as u64)),
                ("Redis", count(redis as u64)),
                ("database cores", figure(database)),
                ("sessions", bytes(sessions)),
                ("requests at once", figure(rate * options.target)),
            ]);
            let times = [
                ("instances", instances / f64::from(options.nodes)),
                ("Redis", redis / f64::from(options.redis_shards)),
                ("database", database / options.database_cores),
            ];
            match times.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
                Some((name, times)) if times > 1.0 => format!("{name} ({})", figure(times)),
                _ => "nothing".to_owned(),
            }
        }
    };
    plan.push(("gives way first (times as much is needed)", gives_way_first));
    Ok(plan)
}

/// What allows the lowest rate of orders (0) or refusals (1).
fn lowest<'a>(stations: impl IntoIterator<Item = &'a Station>, of: usize) -> Limit {
    let used = stations.into_iter().filter(|station| station.takes_s[of] > 0.0);
    let limits = used.map(|station| (station.servers / station.takes_s[of], station.name));
    limits.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, "nothing"))
}
