//! What a round measures, in its order, and how each run of it is made.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use workload::ladder::Strategy;

use crate::bench::environment::Environment;
use crate::bench::micro;
use crate::bench::monitoring::monitored;
use crate::bench::options::say;
use crate::bench::plan::{Plan, Stock};
use crate::bench::ratios::*;
use crate::bench::run::Run;
use crate::bench::servers::{self, Servers};

/// The runs of a round. Pairs are compared closely: they are made A B B A in one round and B A A B in the next, so that a
/// drift of the machine affects both alike.
const ROUND: &[&[&str]] = &[
    &[ORDERS, BARE, LOCKED, TRANSACTION, ORDERS_16, ORDERS_1024],
    &[ORDERS_BESIDE, STREAM],
    &[COMMIT, ORDERS_OPEN, SOLD_OUT, BARE_SOLD_OUT],
    &[ORDERS_DIRECT, ORDERS_PROXIED],
    &[BARE_DIRECT, BARE_PROXIED],
    &[PEAK, OVERLOAD, OVERLOAD, PEAK, STREAM_64],
    &[ORDERS_QUIET, ORDERS_MONITORED],
    &[BARE_SHOP, SHOP_MEMORY, SHOP_REDIS, RAW_GETS],
    &[HAND_OVER, RAW_ADMISSIONS, LOCK_PAIRS, RAW_LOCK_PAIRS],
];

/// Open loops: attempts arrive at a multiple of the orders per second of the round's last run of another name.
const OPEN_LOOPS: [(&str, f64, &str); 2] = [(ORDERS_OPEN, 0.7, ORDERS), (OVERLOAD, 3.0, PEAK)];
const OPEN_CLIENTS: usize = 1024;

/// Longest run of the warm-up.
const WARM_UP: Duration = Duration::from_millis(400);

/// Where the ratios are measured.
pub struct Place<'a> {
    /// Database, Redis and buyers.
    pub environment: &'a Environment,
    /// Everything that is asked.
    pub servers: &'a Servers,
    pub shop: u64,
}

/// The runs of each round that the ratios asked for need.
pub async fn measure(place: &Place<'_>, only: &[String]) -> anyhow::Result<Vec<Vec<Run>>> {
    let args = &place.environment.args;
    let asked = RATIOS.iter().filter(|ratio| ratio.is_asked_for(only));
    let mut needed: BTreeSet<_> = asked.flat_map(|ratio| ratio.runs()).collect();
    for (name, _, peak) in OPEN_LOOPS {
        if needed.contains(name) {
            needed.insert(peak);
        }
    }
    let one_round = async |round: usize, (): &()| {
        let duration = args.duration();
        let duration = if round == 0 { duration.min(WARM_UP) } else { duration };
        let mut runs = Vec::new();
        for name in order(round).filter(|name| needed.contains(name)) {
            let more = run(place, name, &runs, duration).await?;
            runs.extend(more);
        }
        Ok(runs)
    };
    Ok(args.interleaved(&[()], one_round).await?.pop().unwrap_or_default())
}

fn order(round: usize) -> impl Iterator<Item = &'static str> {
    ROUND.iter().flat_map(move |group| match (*group, round.is_multiple_of(2)) {
        ([a, b], true) => vec![*b, *a, *a, *b],
        ([a, b], false) => vec![*a, *b, *b, *a],
        (group, _) => group.to_vec(),
    })
}

/// Makes the run `name`, after those of the round that were `earlier`. Hand-overs come with the PINGs between them.
async fn run(
    place: &Place<'_>,
    name: &'static str,
    earlier: &[Run],
    duration: Duration,
) -> anyhow::Result<Vec<Run>> {
    let Place { environment, servers, shop } = *place;
    let shops;
    let one = || Plan { name, duration, ..Plan::new("group-commit", environment, &servers.one) };
    let by = |strategy| Plan { strategy, ..one() };
    let on = |servers| Plan { servers, ..one() };
    let clients = |clients, plan| Plan { clients, ..plan };
    let instead = |path, servers| Plan { instead: Some(path), ..on(servers) };
    let bare = |servers| instead("POST /voucher-order/seckill/1".to_owned(), servers);
    let read = |server| clients(micro::CLIENTS, instead(format!("GET /shop/{shop}"), vec![server]));
    let plan = match name {
        ORDERS | ORDERS_BESIDE | ORDERS_MONITORED => one(),
        ORDERS_16 => clients(16, one()),
        ORDERS_1024 => clients(1024, one()),
        ORDERS_OPEN => clients(OPEN_CLIENTS, one()),
        ORDERS_DIRECT => on(vec![&servers.one, &servers.two]),
        ORDERS_PROXIED => on(vec![&servers.nginx]),
        ORDERS_QUIET => on(vec![&servers.quiet]),
        PEAK => on(vec![&servers.strict]),
        OVERLOAD => clients(OPEN_CLIENTS, on(vec![&servers.strict])),
        LOCKED => by("reentrant-lock"),
        TRANSACTION => Plan { servers: vec![&servers.transaction], ..by("reentrant-lock") },
        STREAM => by("stream"),
        STREAM_64 => clients(micro::CLIENTS, by("stream")),
        SOLD_OUT => Plan { stock: Stock::SoldOut, ..one() },
        BARE => bare(vec![&servers.bare]),
        BARE_DIRECT => bare(vec![&servers.bare, &servers.bare_two]),
        BARE_PROXIED => bare(vec![&servers.nginx_bare]),
        BARE_SOLD_OUT => {
            instead("POST /sold-out/voucher-order/seckill/1".to_owned(), vec![&servers.bare])
        }
        BARE_SHOP => read(&servers.bare),
        SHOP_MEMORY | SHOP_REDIS => {
            // All reads are of one shop, which would be limited. `mutex` keeps nothing in memory.
            let strategy: &[&str] =
                if name == SHOP_REDIS { &["--shop-cache", "mutex"] } else { &[] };
            let flags = [&["--per-shop-per-second", "0"][..], strategy].concat();
            shops = servers::instance(environment, "shops", &flags).await?;
            read(&shops)
        }
        _ => {
            let runs = micro::measure(name, environment, shop, duration).await?;
            runs.iter().for_each(|run| say(&format!("    {run}")));
            return Ok(runs);
        }
    };
    let rate = match OPEN_LOOPS.iter().find(|(open, ..)| *open == name) {
        Some((_, multiple, peak)) => {
            let peak = earlier.iter().rfind(|run| run.name == *peak);
            Some(peak.context("the peak was not measured")?.orders_per_s * multiple)
        }
        None => None,
    };
    let plan = Plan { rate, ..plan };
    let (run, _) = match name {
        ORDERS_MONITORED => monitored(&servers.one.target, plan.run()).await?,
        _ => plan.run().await?,
    };
    Ok(vec![run])
}

/// A run of each safe strategy that no ratio is about, for the table of runs.
pub async fn other_strategies(place: &Place<'_>, known: &[Run]) -> anyhow::Result<Vec<Run>> {
    say("the other strategies");
    let mut runs = Vec::new();
    for strategy in Strategy::ALL.into_iter().filter(|strategy| !strategy.is_unsafe()) {
        let name = strategy.name();
        if !known.iter().any(|run| run.name == name) {
            runs.push(Plan::new(name, place.environment, &place.servers.one).run().await?.0);
        }
    }
    Ok(runs)
}
