//! The capacity model: the stations of a sale, how long an order and a refusal occupy each, and how many machines are
//! needed.

use crate::plan::{
    figures::Figures,
    options::PlanOptions,
    sale::{self, Outcome, TARGET_S},
};
use workload::{
    Error,
    markdown::{bytes, count, figure, time},
};

/// Orders in one transaction of `group-commit`: the size of its largest batch.
const GROUP_BATCH: f64 = 512.0;
/// Transactions of `group-commit` that an instance runs at once: the default of `--group-in-flight`.
const GROUP_IN_FLIGHT: f64 = 1.0;
/// Share of a processor that a plan counts on: beyond it, waiting times grow quickly.
const PLANNED_LOAD: f64 = 0.7;

const SERVICE: &str = "service";
const REDIS: &str = "Redis";
const DATABASE: &str = "database";
/// Stations of which a sale has exactly one, however many servers there are.
const SALE_SHARD: &str = "the sale's Redis shard";
const ROW: &str = "the lock of the sale's row";

/// A resource that does a limited number of things at once, such as processors or a lock.
#[derive(Debug)]
struct Station {
    name: &'static str,
    servers: f64,
    /// How long an order, and a refusal, occupies one of the servers, seconds.
    takes_s: [f64; 2],
}

/// The stations of a sale, and the time of an order and of a refusal without waiting, seconds.
fn stations(figures: &Figures, options: &PlanOptions) -> Result<(Vec<Station>, [f64; 2]), Error> {
    let strategy = options.strategy.as_str();
    let order = figures.cost(strategy)?;
    let refusal = figures.cost("sold-out")?;
    // A refusal asks Redis for the session and nothing else. So its cost is also what an order's session costs there.
    let lookups_per_attempt = if options.session_memory {
        1.0 / options.tries.max(1.0)
    } else {
        1.0
    };
    let session_us = refusal.redis_us * lookups_per_attempt;
    let admission_us = (order.redis_us - refusal.redis_us).max(0.0);
    // On `stream` one sale's keys are on one shard, which does one thing at a time.
    let (spread_us, sale_shard_us) = if strategy == "stream" {
        (0.0, admission_us)
    } else {
        (admission_us, 0.0)
    };
    let nodes = f64::from(options.nodes);
    let station = |name, servers, takes_us: [f64; 2]| Station {
        name,
        servers,
        takes_s: takes_us.map(|us| us / 1e6),
    };
    let mut stations = vec![
        station(
            SERVICE,
            nodes * options.node_cores,
            [order.service_us, refusal.service_us],
        ),
        station(
            REDIS,
            options.redis_shards.into(),
            [session_us + spread_us, session_us],
        ),
        station(SALE_SHARD, 1.0, [sale_shard_us, 0.0]),
        station(
            DATABASE,
            options.database_cores,
            [order.database_us, refusal.database_us],
        ),
    ];
    let mut alone_s = [0, 1].map(|kind| {
        stations
            .iter()
            .map(|station| station.takes_s[kind])
            .sum::<f64>()
    });
    // `stream` answers when Redis has admitted the order; its row comes later.
    if strategy != "stream" {
        let is_group = strategy == "group-commit";
        // The sale's row is locked for a transaction's commit, one at a time.
        let commit_us = 1e3 * figures.commit_ms;
        let locked_us = commit_us / if is_group { GROUP_BATCH } else { 1.0 };
        stations.push(station(ROW, 1.0, [locked_us, 0.0]));
        if is_group {
            let takes_us = [locked_us + order.database_us, 0.0];
            stations.push(station(
                "transactions in flight",
                nodes * GROUP_IN_FLIGHT,
                takes_us,
            ));
        }
        alone_s[0] += commit_us / 1e6;
    }
    Ok((stations, alone_s))
}

/// The lowest rate of orders (`kind` 0) or refusals (1) a second that any of the stations allows, and that station's name.
fn lowest_rate<'a>(
    stations: impl IntoIterator<Item = &'a Station>,
    kind: usize,
) -> (f64, &'static str) {
    let used = stations
        .into_iter()
        .filter(|station| station.takes_s[kind] > 0.0);
    let limits = used.map(|station| (station.servers / station.takes_s[kind], station.name));
    limits
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap_or((f64::INFINITY, "nothing"))
}

/// Calculates the plan of one sale: its figures by name, in the order of the report.
pub fn plan(
    figures: &Figures,
    options: &PlanOptions,
) -> Result<Vec<(&'static str, String)>, Error> {
    let (stations, alone_s) = stations(figures, options)?;
    let limits = [0, 1].map(|kind| lowest_rate(&stations, kind));
    let Outcome {
        sold_out_s,
        answered_s,
        p99_s,
        room_s,
    } = sale::sale(options, limits.map(|(rate, _)| rate), alone_s);
    let [orders, refusals] = limits.map(|(rate, what)| format!("{} by {what}", figure(rate)));
    let mut plan = vec![
        (
            "sold out after",
            sold_out_s.map_or_else(|| "–".to_owned(), time),
        ),
        ("all answered after", time(answered_s)),
        ("99 % wait at most", time(p99_s)),
        ("orders/s at most", orders),
        ("refusals/s at most", refusals),
    ];
    plan.extend(room_s.map(|longest| ("longest in the waiting room", time(longest))));
    // Orders a second that one sale can have, however many servers there are.
    let sale_stations = stations
        .iter()
        .filter(|station| [SALE_SHARD, ROW].contains(&station.name));
    let (sale_orders_per_s, _) = lowest_rate(sale_stations, 0);
    let gives_way_first = match sale::needed_rate(options, sale_orders_per_s) {
        // No number of machines is enough: the orders of one sale have a limit of their own.
        None => "the sale itself".to_owned(),
        Some(rate) => {
            let rates = [rate.min(sale_orders_per_s), rate];
            let machines = Machines::needed(options, &stations, rates);
            plan.extend([
                ("answers/s needed", figure(rate)),
                ("instances", count(machines.instances as u64)),
                ("Redis", count(machines.redis as u64)),
                ("database cores", figure(machines.database_cores)),
                (
                    "sessions",
                    bytes(options.buyers as f64 * figures.memory.session_redis),
                ),
                ("requests at once", figure(rate * TARGET_S)),
            ]);
            machines.first_to_give_way(options)
        }
    };
    plan.push(("gives way first (times as much is needed)", gives_way_first));
    Ok(plan)
}

/// How many machines a target needs.
struct Machines {
    instances: f64,
    redis: f64,
    database_cores: f64,
}

impl Machines {
    /// How many machines these rates of orders and of refusals a second need.
    fn needed(
        options: &PlanOptions,
        stations: &[Station],
        [orders_per_s, refusals_per_s]: [f64; 2],
    ) -> Self {
        let servers = |name: &str| {
            let found = stations.iter().filter(|station| station.name == name);
            let busy = found.map(|station| {
                let [order_s, refusal_s] = station.takes_s;
                (orders_per_s * order_s).max(refusals_per_s * refusal_s)
            });
            busy.sum::<f64>() / PLANNED_LOAD
        };
        Self {
            instances: (servers(SERVICE) / options.node_cores).ceil(),
            redis: (servers(REDIS) + servers(SALE_SHARD)).ceil(),
            database_cores: servers(DATABASE),
        }
    }

    /// The kind of machine of which there are too few by the largest factor, and that factor.
    fn first_to_give_way(&self, options: &PlanOptions) -> String {
        let times = [
            ("instances", self.instances / f64::from(options.nodes)),
            ("Redis", self.redis / f64::from(options.redis_shards)),
            ("database", self.database_cores / options.database_cores),
        ];
        match times.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((name, times)) if times > 1.0 => format!("{name} ({})", figure(times)),
            _ => "nothing".to_owned(),
        }
    }
}
