//! The capacity model: the stations of a sale, how long an order and a refusal occupy each, and how many machines are
//! needed.

use crate::plan::{
    figures::{Cost, Figures},
    options::PlanOptions,
    sale::{Outcome, sale},
};
use workload::{
    Error,
    markdown::{bytes, count, figure, time},
};

/// Orders in one transaction of `group-commit`: the size of its largest batch.
const GROUP_BATCH: f64 = 512.0;
/// Share of a processor that a plan counts on: beyond it, waiting times grow quickly.
const PLANNED_LOAD: f64 = 0.7;

/// The figures of a plan by name, in the order of the report.
pub type Plan = Vec<(&'static str, String)>;

/// A resource that does a limited number of things at once, such as processors or a lock.
struct Station {
    name: &'static str,
    servers: f64,
    /// How long an order occupies one of the servers.
    order_us: f64,
    /// How long a refusal does.
    refusal_us: f64,
}

/// The stations of a sale: three kinds of machines, what a sale has only once, and the batches of orders.
fn stations(figures: &Figures, options: &PlanOptions) -> Result<[Station; 5], Error> {
    let order = figures.cost(&options.strategy)?;
    let refusal = figures.cost("sold-out")?;
    let nodes = f64::from(options.nodes);
    let commit_us = 1e3 * figures.commit_ms;
    let share_us = commit_us / GROUP_BATCH;
    let (once, once_us, batch_us) = match options.strategy.as_str() {
        // All that an order asks of Redis, but for its session, as a refusal does.
        "stream" => ("the sale's shard", order.redis_us - refusal.redis_us, 0.0),
        "group-commit" => ("the sale's row", share_us, share_us + order.database_us),
        _ => ("the sale's row", commit_us, 0.0),
    };
    // Buyers of a real sale come once, so each attempt is counted with a look-up of its session.
    let machines = |name, servers, takes_us: fn(&Cost) -> f64| Station {
        name,
        servers,
        order_us: takes_us(order) + takes_us(&figures.session),
        refusal_us: takes_us(refusal) + takes_us(&figures.session),
    };
    let cores = nodes * options.node_cores;
    Ok([
        machines("instances", cores, |cost| cost.service_us),
        machines("Redis", options.redis_shards.into(), |cost| cost.redis_us),
        machines("database", options.database_cores, |cost| cost.database_us),
        Station {
            name: once,
            servers: 1.0,
            order_us: once_us,
            refusal_us: 0.0,
        },
        Station {
            name: "batches, one at a time on each instance",
            servers: nodes,
            order_us: batch_us,
            refusal_us: 0.0,
        },
    ])
}

/// The highest rate a second that all stations allow to what occupies each of them so long, and the station that allows no
/// more.
fn limit(stations: &[Station], takes_us: fn(&Station) -> f64) -> (f64, &'static str) {
    let mut lowest = (f64::INFINITY, "nothing");
    for station in stations {
        let rate = 1e6 * station.servers / takes_us(station);
        if rate < lowest.0 {
            lowest = (rate, station.name);
        }
    }
    lowest
}

/// Calculates the plan of one sale.
pub fn plan(figures: &Figures, options: &PlanOptions) -> Result<Plan, Error> {
    let stations = stations(figures, options)?;
    let (orders_per_s, orders_limit) = limit(&stations, |station| station.order_us);
    let (refusals_per_s, refusals_limit) = limit(&stations, |station| station.refusal_us);
    let orders_at_most = format!("{} by {orders_limit}", figure(orders_per_s));
    let refusals_at_most = format!("{} by {refusals_limit}", figure(refusals_per_s));
    let Outcome {
        sold_out_s,
        answered_s,
        p99_s,
    } = sale(options, orders_per_s, refusals_per_s);
    let mut plan = vec![
        ("sold out after", sold_out_s.map_or("–".to_owned(), time)),
        ("all answered after", time(answered_s)),
        ("99 % wait at most", time(p99_s)),
        ("orders/s at most", orders_at_most),
        ("refusals/s at most", refusals_at_most),
    ];
    plan.extend(needed(options, &stations));
    let sessions = options.buyers as f64 * figures.session_bytes;
    plan.push(("sessions", bytes(sessions)));
    Ok(plan)
}

/// What answers each attempt of the first second within a second, and what there is too little of, by the largest factor.
fn needed(options: &PlanOptions, stations: &[Station; 5]) -> Plan {
    let attempts_per_s = options.attempts() * (1.0 - (-1.0 / options.over).exp());
    let orders_per_s = attempts_per_s.min(options.stock as f64);
    let refusals_per_s = attempts_per_s - orders_per_s;
    let servers = stations.each_ref().map(|station| {
        let busy_us = orders_per_s * station.order_us + refusals_per_s * station.refusal_us;
        busy_us / 1e6 / PLANNED_LOAD
    });
    let mut scarcest = (1.0, "nothing");
    for (station, servers) in stations.iter().zip(servers) {
        let times = servers / station.servers;
        if times > scarcest.0 {
            scarcest = (times, station.name);
        }
    }
    let gives_way = match scarcest {
        (times, name) if times > 1.0 => format!("{name} ({})", figure(times)),
        (_, name) => name.to_owned(),
    };
    let [cores, redis, database_cores, ..] = servers;
    let instances = (cores / options.node_cores).ceil();
    vec![
        ("gives way first (times as much is needed)", gives_way),
        ("answers/s needed", figure(attempts_per_s)),
        ("instances", count(instances as u64)),
        ("Redis", count(redis.ceil() as u64)),
        ("database cores", figure(database_cores)),
    ]
}
