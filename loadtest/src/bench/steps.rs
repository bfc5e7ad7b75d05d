//! What a round measures, in its order.

use std::time::Duration;

use anyhow::Context;
use workload::Target;

use crate::bench::against::Node;
use crate::bench::environment::Environment;
use crate::bench::micro;
use crate::bench::monitoring::monitored;
use crate::bench::plan::{Plan, Stock};
use crate::bench::ratios as names;
use crate::bench::run::Run;
use crate::bench::servers::{self, Servers};
use crate::bench::settings::say;

/// Clients of the open loops.
const OPEN_CLIENTS: usize = 1024;
/// Attempts at overload and below the peak, as multiples of the peak's orders.
const OVERLOAD: f64 = 3.0;
const BELOW_PEAK: f64 = 0.7;

/// Where and how the ratios are measured.
pub struct Place<'a> {
    /// Database, Redis and buyers.
    pub environment: &'a Environment,
    /// The instance that publishes sales.
    pub publisher: &'a Target,
    /// Everything that is asked.
    pub servers: &'a Servers,
    /// Nodes of others.
    pub against: &'a [Node],
    pub shop: u64,
}

/// One measurement of a round.
pub struct Step<'a> {
    /// The run for which it is needed: its own, or the one that it stands beside.
    pub of: &'static str,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Plan(Plan<'a>),
    /// Attempts arrive at a multiple of the orders per second of the round's last run of this name.
    OpenLoop(Plan<'a>, f64, &'static str),
    /// While metrics are scraped and pages are open.
    Monitored(Plan<'a>),
    /// On an instance started for it, with these flags.
    Instance(Plan<'a>, Vec<&'static str>),
    /// Without HTTP.
    Micro(Duration),
}

impl Step<'_> {
    /// Another run that it needs earlier in the round.
    pub fn needs(&self) -> Option<&'static str> {
        match &self.kind {
            Kind::OpenLoop(_, _, peak) => Some(*peak),
            _ => None,
        }
    }

    /// Measures it; `earlier` are the runs of the round so far.
    pub async fn run(&self, place: &Place<'_>, earlier: &[Run]) -> anyhow::Result<Vec<Run>> {
        let run = match &self.kind {
            Kind::Plan(plan) => plan.run().await?.0,
            Kind::OpenLoop(plan, multiple, peak) => {
                let peak = earlier.iter().rfind(|run| run.name == *peak);
                let rate = peak.context("the peak was not measured")?.orders_per_s * multiple;
                Plan { rate: Some(rate), ..plan.clone() }.run().await?.0
            }
            Kind::Monitored(plan) => monitored(&place.servers.one.target, plan.run()).await?.0,
            Kind::Instance(plan, flags) => {
                let server = servers::instance(place.environment, "shops", flags).await?;
                Plan { servers: vec![&server], ..plan.clone() }.run().await?.0
            }
            Kind::Micro(duration) => {
                let runs =
                    micro::measure(self.of, place.environment, place.shop, *duration).await?;
                runs.iter().for_each(|run| say(&format!("    {run}")));
                return Ok(runs);
            }
        };
        Ok(vec![run])
    }
}

/// All steps of a round, with runs of this duration. Pairs that are compared closely stand A B B A in one round and
/// B A A B in the next, so that a drift of the machine affects both alike.
pub fn steps<'a>(place: &Place<'a>, round: usize, duration: Duration) -> Vec<Step<'a>> {
    let Place { environment, publisher, servers, against, shop } = *place;
    let plan = |name, strategy| {
        let plan = Plan::new(strategy, environment, &servers.one);
        Plan { name, publisher, duration, ..plan }
    };
    let orders = |name| plan(name, "group-commit");
    let on = |plan: Plan<'a>, servers| Plan { servers, ..plan };
    let clients = |plan: Plan<'a>, clients| Plan { clients, ..plan };
    let sold_out = |plan: Plan<'a>| Plan { stock: Stock::SoldOut, repeat: true, ..plan };
    let bare = |name, prefix| Plan {
        prefix,
        stock: Stock::NoSale,
        repeat: true,
        ..on(orders(name), vec![&servers.bare])
    };
    let read = |name| Plan { shop: Some(shop), ..clients(bare(name, ""), micro::CLIENTS) };
    let step = |plan: Plan<'a>| Step { of: plan.name, kind: Kind::Plan(plan) };
    let open = |plan: Plan<'a>, multiple, peak| Step {
        of: plan.name,
        kind: Kind::OpenLoop(clients(plan, OPEN_CLIENTS), multiple, peak),
    };
    let in_turn = |pair: [&dyn Fn() -> Step<'a>; 2]| {
        let order = if round.is_multiple_of(2) { [1, 0, 0, 1] } else { [0, 1, 1, 0] };
        order.map(|at| pair[at]())
    };
    let others = |of, run: usize, change: &dyn Fn(Plan<'a>) -> Plan<'a>| {
        let node = |node: &'a Node| {
            let plan = Plan { prefix: node.prefix, ..plan(node.runs[run], node.strategy) };
            Step { of, kind: Kind::Plan(change(on(plan, vec![&node.server]))) }
        };
        against.iter().map(node).collect::<Vec<_>>()
    };
    let micro = |of| Step { of, kind: Kind::Micro(duration) };
    let instance = |plan: Plan<'a>, flags: &[&'static str]| {
        // All reads are of one shop, which would be limited.
        let flags = [&["--per-shop-per-second", "0"][..], flags].concat();
        Step { of: plan.name, kind: Kind::Instance(plan, flags) }
    };
    let strict = |name| on(orders(name), vec![&servers.strict]);
    let two = || vec![&servers.one, &servers.two];
    let bare_two = || vec![&servers.bare, &servers.bare_two];

    let mut steps = vec![step(orders(names::ORDERS))];
    steps.extend(others(names::ORDERS, 0, &|plan| plan));
    steps.extend([
        step(bare(names::BARE, "")),
        step(plan(names::LOCKED, "reentrant-lock")),
        step(on(plan(names::TRANSACTION, "reentrant-lock"), vec![&servers.transaction])),
        step(clients(orders(names::ORDERS_16), 16)),
        step(clients(orders(names::ORDERS_1024), 1024)),
    ]);
    steps.extend(in_turn([&|| step(orders(names::ORDERS_BESIDE)), &|| {
        step(plan(names::STREAM, "stream"))
    }]));
    steps.extend([
        micro(names::COMMIT),
        open(orders(names::ORDERS_OPEN), BELOW_PEAK, names::ORDERS),
        step(sold_out(orders(names::SOLD_OUT))),
    ]);
    steps.extend(others(names::SOLD_OUT, 1, &sold_out));
    steps.push(step(bare(names::BARE_SOLD_OUT, "/sold-out")));
    steps.extend(in_turn([&|| step(on(orders(names::ORDERS_DIRECT), two())), &|| {
        step(on(orders(names::ORDERS_PROXIED), vec![&servers.nginx]))
    }]));
    steps.extend(in_turn([&|| step(on(bare(names::BARE_DIRECT, ""), bare_two())), &|| {
        step(on(bare(names::BARE_PROXIED, ""), vec![&servers.nginx_bare]))
    }]));
    let overload = || open(strict(names::OVERLOAD), OVERLOAD, names::PEAK);
    steps.extend([step(strict(names::PEAK)), overload(), overload(), step(strict(names::PEAK))]);
    steps.push(step(clients(plan(names::STREAM_64, "stream"), micro::CLIENTS)));
    let monitored = || Step {
        of: names::ORDERS_MONITORED,
        kind: Kind::Monitored(orders(names::ORDERS_MONITORED)),
    };
    let quiet = || step(on(orders(names::ORDERS_QUIET), vec![&servers.quiet]));
    steps.extend(in_turn([&quiet, &monitored]));
    steps.extend([
        step(read(names::BARE_SHOP)),
        instance(read(names::SHOP_MEMORY), &[]),
        // This read strategy keeps nothing in memory.
        instance(read(names::SHOP_REDIS), &["--shop-cache", "mutex"]),
        micro(names::RAW_GETS),
        micro(names::HAND_OVER),
        micro(names::RAW_ADMISSIONS),
        micro(names::LOCK_PAIRS),
        micro(names::RAW_LOCK_PAIRS),
    ]);
    steps
}
