//! Cost as it grows (`./dev bench --scale`): processor time of an order and of a refusal with more instances, open sales,
//! orders and sessions, each size beside the smallest, in interleaved rounds; memory; and a whole sale, with which the
//! capacity plan is compared.
//!
//! Things grow one after the other, so that only a few instances run at once.

use std::time::Instant;

use crate::plan::figures::{Figures, Level, Memory};
use crate::plan::tables;
use anyhow::Context;
use workload::markdown;

use crate::bench::conditions;
use crate::bench::environment::{BUYERS, Databases, Environment};
use crate::bench::micro;
use crate::bench::options::{BenchArgs, say};
use crate::bench::plan::Plan;
use crate::bench::sales;
use crate::bench::servers::{self, Server};

mod growth;
mod memory;
mod one_instance;

use growth::{FEW_SESSIONS, asking, grow};

const SMALL: Databases = Databases { database: "seckill_bench", redis: 12, keeps_orders: false };
/// Tables that hold orders already.
const LARGE: Databases =
    Databases { database: "seckill_bench_large", redis: 10, keeps_orders: true };
const HUGE: Databases = Databases { database: "seckill_bench_huge", redis: 11, keeps_orders: true };
const MANY: Databases = Databases { database: "seckill_bench", redis: 13, keeps_orders: false };
pub const DATABASES: [Databases; 4] = [SMALL, LARGE, HUGE, MANY];

/// Measures everything, and prints the tables.
pub async fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let figures = measure(args).await?;
    let text = serde_json::to_string_pretty(&figures)? + "\n";
    let file = args.out.join("scale.json");
    std::fs::write(&file, &text)?;
    for (_, _, table) in tables::all(&figures)? {
        println!("{table}");
    }
    println!("Figures: {}", file.display());
    if args.write {
        std::fs::write(markdown::path("scale.json"), &text)?;
        tables::write(&figures)?;
        println!(
            "Written: docs/scale.json, and the tables of docs/BENCHMARKS.md and docs/SCALING.md"
        );
    }
    Ok(())
}

async fn measure(args: &BenchArgs) -> anyhow::Result<Figures> {
    let began = Instant::now();
    let main = Environment::open(args, SMALL, BUYERS).await.context("preparing")?;
    say("one instance");
    let (answers, sale) = one_instance::measure(&main).await?;
    let commit_ms = micro::commit_ms(&main.pool).await?;
    say("memory");
    let memory = memory::measure(&main).await?;

    let mut growth = {
        let servers = instances(&main, 8).await?;
        let sizes =
            [1_usize, 2, 4, 8].map(|count| (count as u64, asking(&main, &servers[..count], 1)));
        grow("instances", &sizes).await?
    };
    growth.extend({
        // An instance that had more sales before would not be measured with one.
        let servers = instances(&main, 3).await?;
        let sizes = [1, 100, 10_000].into_iter().zip(servers.chunks(1));
        let sizes = sizes.map(|(count, server)| (count, asking(&main, server, count)));
        grow("open sales", &sizes.collect::<Vec<_>>()).await?
    });
    let [some, many] = if args.quick { [100_000, 1_000_000] } else { [1_000_000, 10_000_000] };
    let large = with_orders(args, LARGE, some).await?;
    let huge = with_orders(args, HUGE, many).await?;
    let sizes = [(0, &main), (some, &large), (many, &huge)];
    growth.extend(grow_databases("orders in the table", &sizes, None).await?);
    let order_bytes = sales::bytes_per_order(&huge.pool).await?;

    let sessions: usize = if args.quick { 100_000 } else { 1_000_000 };
    let few = Environment::open(args, SMALL, FEW_SESSIONS).await?;
    let many = Environment::open(args, MANY, sessions).await?;
    let sizes = [(FEW_SESSIONS as u64, &few), (sessions as u64, &many)];
    growth.extend(grow_databases("sessions", &sizes, Some((FEW_SESSIONS, 0))).await?);

    Ok(Figures {
        conditions: conditions::text(&main, began.elapsed()).await?,
        quick: args.quick,
        cores: conditions::cores(),
        growth,
        answers,
        commit_ms,
        memory: Memory {
            session_redis: many.session_bytes,
            order_database: order_bytes.context("the size of an order in the database")?,
            ..memory
        },
        sale,
    })
}

/// Starts so many instances.
async fn instances(environment: &Environment, count: usize) -> anyhow::Result<Vec<Server>> {
    let mut servers = Vec::new();
    for number in 0..count {
        let name = format!("scale-{}-{number}", environment.databases.redis);
        servers.push(servers::instance(environment, &name, &[]).await?);
    }
    Ok(servers)
}

async fn with_orders(
    args: &BenchArgs,
    databases: Databases,
    orders: u64,
) -> anyhow::Result<Environment> {
    let environment = Environment::open(args, databases, BUYERS).await?;
    say(&format!("making {orders} orders"));
    sales::past_orders(&environment.pool, orders).await?;
    Ok(environment)
}

/// Measures sizes that have databases of their own, with an instance on each.
async fn grow_databases(
    what: &str,
    sizes: &[(u64, &Environment)],
    part: Option<(usize, usize)>,
) -> anyhow::Result<Vec<Level>> {
    let mut servers = Vec::new();
    for (_, environment) in sizes {
        servers.push(instances(environment, 1).await?);
    }
    let mut plans = Vec::new();
    for ((count, environment), servers) in sizes.iter().zip(&servers) {
        plans.push((*count, Plan { part, ..asking(environment, servers, 1) }));
    }
    grow(what, &plans).await
}
