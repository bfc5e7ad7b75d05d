//! Cost as it grows (`./dev bench --scale`): processor time of an order and of a refusal with more instances, open sales,
//! orders and sessions, each size beside the smallest, in interleaved rounds; memory; and a whole sale, with which the
//! capacity plan is compared.
//!
//! Things grow one after the other, so that only a few instances run at once.

use std::time::Instant;

use crate::plan::figures::{Figures, Memory};
use crate::plan::tables;
use anyhow::Context;
use workload::markdown;

use crate::bench::conditions;
use crate::bench::environment::{BUYERS, Databases, Environment};
use crate::bench::micro;
use crate::bench::settings::{Settings, say};

mod answers;
mod growth;
mod memory;
mod one_instance;

use answers::FEW_SESSIONS;
use growth::{Size, grow};

/// A Redis of its own, unlike that of the ratios: nodes of others may use that one.
const SMALL: Databases = Databases { database: "seckill_bench", redis: 12, keeps_orders: false };
/// Tables that hold orders already.
const LARGE: Databases =
    Databases { database: "seckill_bench_large", redis: 10, keeps_orders: true };
const HUGE: Databases = Databases { database: "seckill_bench_huge", redis: 11, keeps_orders: true };
const MANY: Databases = Databases { database: "seckill_bench", redis: 13, keeps_orders: false };
pub const DATABASES: [Databases; 4] = [SMALL, LARGE, HUGE, MANY];

/// One of everything.
const ONE: Size = Size {
    count: 1,
    databases: SMALL,
    orders: 0,
    buyers: BUYERS,
    instances: 0..1,
    sales: 1,
    part: None,
};

/// Measures everything, and prints the tables.
pub async fn run(settings: &Settings) -> anyhow::Result<()> {
    let figures = measure(settings).await?;
    let text = serde_json::to_string_pretty(&figures)? + "\n";
    let file = settings.folder.join("scale.json");
    std::fs::write(&file, &text)?;
    for (_, _, table) in tables::all(&figures)? {
        println!("{table}");
    }
    println!("Figures: {}", file.display());
    if settings.write {
        std::fs::write(markdown::path("scale.json"), &text)?;
        tables::write(&figures)?;
        println!(
            "Written: docs/scale.json, and the tables of docs/BENCHMARKS.md and docs/SCALING.md"
        );
    }
    Ok(())
}

async fn measure(settings: &Settings) -> anyhow::Result<Figures> {
    let began = Instant::now();
    let main = Environment::open(settings, SMALL, BUYERS).await.context("preparing")?;
    say("one instance");
    let (answers, sale) = one_instance::measure(&main).await?;
    let commit_ms = micro::commit_ms(&main.pool).await?;
    say("memory");
    let memory = memory::measure(&main).await?;

    let [some, many] = if settings.quick { [100_000, 1_000_000] } else { [1_000_000, 10_000_000] };
    let sessions: usize = if settings.quick { 100_000 } else { 1_000_000 };
    // An instance that had more sales before would not be measured with one.
    let open_sales = [(1, 0..1), (100, 1..2), (10_000, 2..3)];
    let orders = [(0, SMALL), (some, LARGE), (many, HUGE)];
    let sessions = [(FEW_SESSIONS, SMALL), (sessions, MANY)];
    let mut growth = Vec::new();
    let instances = [1, 2, 4, 8].map(|count| Size { count, instances: 0..count as usize, ..ONE });
    growth.extend(grow(settings, "instances", &instances).await?.levels);
    let sales = open_sales.map(|(count, instances)| Size { count, instances, sales: count, ..ONE });
    growth.extend(grow(settings, "open sales", &sales).await?.levels);
    let orders = orders.map(|(count, databases)| Size { count, databases, orders: count, ..ONE });
    let orders = grow(settings, "orders in the table", &orders).await?;
    growth.extend(orders.levels);
    let sessions = sessions.map(|(buyers, databases)| {
        let (count, part) = (buyers as u64, Some(FEW_SESSIONS));
        Size { count, databases, buyers, part, ..ONE }
    });
    let sessions = grow(settings, "sessions", &sessions).await?;
    growth.extend(sessions.levels);

    Ok(Figures {
        conditions: conditions::text(&main, began.elapsed()).await?,
        quick: settings.quick,
        cores: conditions::cores(),
        growth,
        answers,
        commit_ms,
        memory: Memory {
            session_redis: sessions.session_bytes,
            order_database: orders.order_bytes.context("the size of an order in the database")?,
            ..memory
        },
        sale,
    })
}
