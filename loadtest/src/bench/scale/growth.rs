//! The sizes of one thing beside each other.

use std::ops::Range;

use crate::plan::figures::Level;

use super::answers::{answer, answers, asking};
use crate::bench::environment::{Databases, Environment};
use crate::bench::plan::Plan;
use crate::bench::rounds::interleaved;
use crate::bench::run::Run;
use crate::bench::sales;
use crate::bench::servers::{self, Server};
use crate::bench::settings::{Settings, say};

/// What is measured beside other sizes.
#[derive(Debug, Clone)]
pub struct Size {
    /// How many there are of what grows.
    pub count: u64,
    pub databases: Databases,
    /// Orders in the table already.
    pub orders: u64,
    pub buyers: usize,
    /// Which of the instances on these databases are asked.
    pub instances: Range<usize>,
    /// Sales that are open at once.
    pub sales: u64,
    /// Of the buyers so many in a run, others each time; all where there is none.
    pub part: Option<usize>,
}

pub struct Grown {
    pub levels: Vec<Level>,
    /// Bytes of the database for an order, and of Redis for a session, at the largest size.
    pub order_bytes: Option<f64>,
    pub session_bytes: f64,
}

/// Databases with all the instances on them.
struct Place {
    databases: Databases,
    environment: Environment,
    servers: Vec<Server>,
}

impl Place {
    async fn open(settings: &Settings, size: &Size) -> anyhow::Result<Self> {
        let (databases, orders) = (size.databases, size.orders);
        let environment = Environment::open(settings, databases, size.buyers).await?;
        if orders > 0 {
            say(&format!("making {orders} orders"));
            sales::past_orders(&environment.pool, orders).await?;
        }
        Ok(Self { databases, environment, servers: Vec::new() })
    }
}

/// Measures all `sizes` in interleaved rounds.
pub async fn grow(settings: &Settings, what: &str, sizes: &[Size]) -> anyhow::Result<Grown> {
    say(what);
    let mut places: Vec<Place> = Vec::new();
    for size in sizes {
        let known = places.iter().position(|place| place.databases == size.databases);
        let at = match known {
            Some(at) => at,
            None => {
                places.push(Place::open(settings, size).await?);
                places.len() - 1
            }
        };
        let Place { environment, servers, .. } = &mut places[at];
        while servers.len() < size.instances.end {
            let name = format!("scale-{}-{}", size.databases.redis, servers.len());
            servers.push(servers::instance(environment, &name, &[]).await?);
        }
    }
    let asked = |size: &Size| {
        let place = places.iter().find(|place| place.databases == size.databases)?;
        let servers = place.servers.get(size.instances.clone())?.iter().collect();
        let part = size.part.map(|count| (count, 0));
        Some(Plan { part, ..asking(&place.environment, servers, size.sales) })
    };
    let asked: Vec<_> = sizes.iter().filter_map(asked).collect();
    let one = async |round, plan: &Plan<'_>| {
        anyhow::Ok((answers(plan, round, true).await?.0, answers(plan, round, false).await?.0))
    };
    let runs = interleaved(settings.rounds, &asked, one).await?;
    let runs: Vec<(Vec<Run>, Vec<Run>)> =
        runs.into_iter().map(|runs| runs.into_iter().unzip()).collect();
    let level = |(size, (orders, refusals)): (&Size, &(Vec<Run>, Vec<Run>))| Level {
        dimension: what.to_owned(),
        count: size.count,
        order: answer(orders, &runs[0].0, |run| run.orders_per_s),
        refusal: answer(refusals, &runs[0].1, |run| run.answers_per_s),
    };
    let levels = sizes.iter().zip(&runs).map(level).collect();
    let Some(Place { environment, .. }) = places.last() else {
        anyhow::bail!("{what}: nothing was measured");
    };
    let order_bytes = sales::bytes_per_order(&environment.pool).await?;
    Ok(Grown { levels, order_bytes, session_bytes: environment.session_bytes })
}
