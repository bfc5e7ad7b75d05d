//! What a round measures, in its order, and how each run of it is made.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use strategies::Strategy;
use tokio::time::{MissedTickBehavior, interval};
use workload::Target;
use workload::http::{Call, Connection};

use crate::bench::environment::Environment;
use crate::bench::micro;
use crate::bench::options::say;
use crate::bench::plan::{Plan, Stock};
use crate::bench::ratios::*;
use crate::bench::run::Run;
use crate::bench::servers::{Servers, instance};

/// The runs of a round. Pairs are compared closely: they are made A B B A in one round and B A A B in the next, so that a
/// drift of the machine affects both alike.
const ROUND: &[&[&str]] = &[
    &[ORDERS, BARE],
    &[
        LOCKED,
        LOCKED_16,
        LOCKED_1024,
        TRANSACTION,
        ORDERS_16,
        ORDERS_1024,
        COMMIT,
        ORDERS_OPEN,
    ],
    &[ORDERS_BESIDE, STREAM],
    &[ORDERS_UNKNOWN, ORDERS_KNOWN],
    &[SOLD_OUT, BARE_SOLD_OUT],
    &[ORDERS_DIRECT, ORDERS_PROXIED],
    &[BARE_DIRECT, BARE_PROXIED],
    &[PEAK, OVERLOAD, OVERLOAD, PEAK, STREAM_64],
    &[ORDERS_QUIET, ORDERS_MONITORED],
    &[BARE_SHOP, SHOP_MEMORY, SHOP_REDIS, RAW_GETS],
    &[RAW_ADMISSIONS, LOCK_PAIRS, RAW_LOCK_PAIRS],
];

/// Open loops: name, multiple, name of a peak. Attempts arrive at this multiple of the orders per second of the round's last
/// run of the peak.
const OPEN_LOOPS: [(&str, f64, &str); 2] = [(ORDERS_OPEN, 0.7, ORDERS), (OVERLOAD, 3.0, PEAK)];

/// Time limit of a sale that is to end when all its buyers have had their turn.
const LONGEST_SALE: Duration = Duration::from_secs(20);

/// Longest run of the warm-up.
const WARM_UP: Duration = Duration::from_millis(400);

/// Runs of no ratio, made if all are asked for.
const BESIDE_RATIOS: [&str; 2] = [LOCKED_16, LOCKED_1024];

/// Makes in each round the runs that are needed for the ratios asked for. If all ratios are asked for, a round also has
/// [`BESIDE_RATIOS`], and the last one a run of each other safe strategy.
pub async fn measure(
    environment: &Environment,
    servers: &Servers,
) -> anyhow::Result<Vec<Vec<Run>>> {
    let args = &environment.args;
    let ratios = RATIOS.iter().filter(|ratio| ratio.is_asked_for(&args.only));
    let mut needed: BTreeSet<_> = ratios.flat_map(|ratio| ratio.runs()).collect();
    for (name, _, peak) in OPEN_LOOPS {
        if needed.contains(name) {
            needed.insert(peak);
        }
    }
    if args.only.is_empty() {
        needed.extend(BESIDE_RATIOS);
    }
    let mut rounds = args
        .interleaved(&[()], async |round, (): &()| {
            measure_round(environment, servers, &needed, round).await
        })
        .await?;
    Ok(rounds.pop().unwrap_or_default())
}

async fn measure_round(
    environment: &Environment,
    servers: &Servers,
    needed: &BTreeSet<&'static str>,
    round: usize,
) -> anyhow::Result<Vec<Run>> {
    let args = &environment.args;
    let longest = if round == 0 { WARM_UP } else { args.duration() };
    let duration = args.duration().min(longest);
    let mut runs = Vec::new();
    for name in run_names(round).filter(|name| needed.contains(name)) {
        let made = run(environment, servers, name, &runs, duration).await?;
        runs.push(made);
    }
    if round == args.rounds() && args.only.is_empty() {
        for strategy in Strategy::ALL
            .into_iter()
            .filter(|strategy| !strategy.is_unsafe())
        {
            let name = strategy.name();
            if !needed.contains(name) {
                let plan = Plan::new(name, environment, &servers.instances[0]);
                runs.push(plan.run().await?);
            }
        }
    }
    Ok(runs)
}

/// The names of a round's runs, in their order.
fn run_names(round: usize) -> impl Iterator<Item = &'static str> {
    ROUND
        .iter()
        .flat_map(move |group| match (*group, round.is_multiple_of(2)) {
            ([a, b], true) => vec![*b, *a, *a, *b],
            ([a, b], false) => vec![*a, *b, *b, *a],
            (group, _) => group.to_vec(),
        })
}

/// Makes the run `name`; `earlier` are the runs of the round so far.
async fn run(
    environment: &Environment,
    servers: &Servers,
    name: &'static str,
    earlier: &[Run],
    duration: Duration,
) -> anyhow::Result<Run> {
    if matches!(name, ORDERS_UNKNOWN | ORDERS_KNOWN) {
        return run_of_buyers(environment, name, duration).await;
    }
    let Some(plan) = http_plan(environment, servers, name, duration) else {
        let run = micro::measure(name, environment, duration).await?;
        say(&format!("    {run}"));
        return Ok(run);
    };
    let rate = match OPEN_LOOPS.iter().find(|(open, ..)| *open == name) {
        Some((_, multiple, peak)) => {
            let peak = earlier.iter().rfind(|run| run.name == *peak);
            Some(peak.context("the peak was not measured")?.orders_per_s * multiple)
        }
        None => None,
    };
    let plan = Plan { rate, ..plan };
    match name {
        ORDERS_MONITORED => tokio::select! {
            ran = plan.run() => ran,
            () = monitor(&servers.instances[0].target) => unreachable!("it polls without end"),
        },
        _ => plan.run().await,
    }
}

/// The plan of the run `name`; `None` where it is a measurement without HTTP.
fn http_plan<'a>(
    environment: &'a Environment,
    servers: &'a Servers,
    name: &'static str,
    duration: Duration,
) -> Option<Plan<'a>> {
    let first = &servers.instances[0];
    let strict = &servers.strict;
    let bare = &servers.bare[0];
    let group_commit = || Plan {
        name,
        duration,
        ..Plan::new("group-commit", environment, first)
    };
    let by_strategy = |strategy| Plan {
        strategy,
        ..group_commit()
    };
    let on_server = |server| Plan {
        servers: vec![server],
        ..group_commit()
    };
    let with_clients = |clients, plan| Plan { clients, ..plan };
    let instead = |path, server| Plan {
        instead: Some(path),
        ..on_server(server)
    };
    let buy = "POST /voucher-order/seckill/1";
    // This shop was made when the first sale was published.
    let read = |server| with_clients(micro::CLIENTS, instead("GET /shop/1", server));
    Some(match name {
        ORDERS | ORDERS_BESIDE | ORDERS_MONITORED => group_commit(),
        ORDERS_16 => with_clients(16, group_commit()),
        ORDERS_1024 | ORDERS_OPEN => with_clients(1024, group_commit()),
        ORDERS_DIRECT => Plan {
            servers: servers.instances.iter().collect(),
            ..group_commit()
        },
        ORDERS_PROXIED => on_server(&servers.nginx),
        ORDERS_QUIET => on_server(&servers.quiet),
        PEAK => on_server(strict),
        OVERLOAD => with_clients(1024, on_server(strict)),
        LOCKED => by_strategy("reentrant-lock"),
        LOCKED_16 => with_clients(16, by_strategy("reentrant-lock")),
        LOCKED_1024 => with_clients(1024, by_strategy("reentrant-lock")),
        TRANSACTION => Plan {
            servers: vec![&servers.transaction],
            ..by_strategy("reentrant-lock")
        },
        STREAM => by_strategy("stream"),
        STREAM_64 => with_clients(micro::CLIENTS, by_strategy("stream")),
        SOLD_OUT => Plan {
            stock: Stock::SoldOut,
            ..group_commit()
        },
        BARE => instead(buy, bare),
        BARE_DIRECT => Plan {
            servers: servers.bare.iter().collect(),
            ..instead(buy, bare)
        },
        BARE_PROXIED => instead(buy, &servers.nginx_bare),
        BARE_SOLD_OUT => instead("POST /sold-out/voucher-order/seckill/1", bare),
        BARE_SHOP => read(bare),
        SHOP_MEMORY => read(first),
        SHOP_REDIS => read(strict),
        _ => return None,
    })
}

/// A sale whose buyers come once each, on an instance that was just started and has sold only to others; or, for
/// [`ORDERS_KNOWN`], also to the same buyers.
async fn run_of_buyers(
    environment: &Environment,
    name: &'static str,
    duration: Duration,
) -> anyhow::Result<Run> {
    const BUYERS: usize = 20_000;
    const OTHERS: usize = 2_000;
    let server = instance(environment, "new", &[]).await?;
    let sale = |name, count, turn| Plan {
        name,
        part: Some((count, turn)),
        duration,
        ..Plan::new("group-commit", environment, &server)
    };
    sale("to others", OTHERS, 1).run().await?;
    if name == ORDERS_KNOWN {
        // This sale goes on to its end, so that the instance then knows all of the buyers.
        let first = Plan {
            duration: LONGEST_SALE,
            ..sale("to the buyers", BUYERS, 0)
        };
        first.run().await?;
    }
    sale(name, BUYERS, 0).run().await
}

/// Scrapes the metrics and polls a shop's page, each every second, and polls the lab's page four times a second.
/// (Prometheus scrapes every 15 s by default.) A failed request does not matter to the sale.
async fn monitor(target: &Target) {
    const PATHS: [&str; 3] = ["/lab/runs", "/metrics", "/voucher/list/1"];
    let mut connection = Connection::new(target.clone(), Duration::from_secs(5));
    let mut tick = interval(Duration::from_millis(250));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in 0_u64.. {
        tick.tick().await;
        let count = if turn.is_multiple_of(4) {
            PATHS.len()
        } else {
            1
        };
        for path in &PATHS[..count] {
            connection.send(&Call::get(*path)).await.ok();
        }
    }
}
