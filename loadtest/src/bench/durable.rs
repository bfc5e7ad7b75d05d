//! The price of durability (`./dev bench --durable`): the same sales on three databases of its own, beside each other, in
//! interleaved rounds. The databases differ in what a confirmed order survives; all flush the log at each commit.

use std::time::Instant;

use testkit::{database_server::Product, replicated_database::Replication};
use workload::markdown::{self, figure};

use crate::bench::environment::{BUYERS, Database, Environment, PLAIN};
use crate::bench::micro;
use crate::bench::options::{BenchArgs, say};
use crate::bench::plan::Plan;
use crate::bench::ratios;
use crate::bench::run::{Figure, ORDERS_PER_S, P99, SERVERS_US};
use crate::bench::servers::{self, Server};
use crate::spread::{Spread, beside};

const STRATEGIES: [&str; 4] = ["row-lock", "reentrant-lock", "group-commit", "stream"];

/// What there is besides the server, and the database where there is.
const SETUPS: [(&str, Database); 3] = [
    ("no binary log", PLAIN),
    (
        "a binary log, `sync_binlog=1`",
        (Replication::None, &["--log-bin=binlog", "--sync-binlog=1"]),
    ),
    (
        "a replica, `AFTER_SYNC`",
        (Replication::SemiSynchronous, &[]),
    ),
];

/// Ratio D: what is left of the orders per second of [`RATED`] in each setup but the first; floor and aim.
const BOUNDS: [[f64; 2]; 2] = [[0.8, 0.95], [0.6, 0.85]];
const RATED: &str = "group-commit";

/// Measures, and prints the table: a row for each strategy.
pub async fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    // A pair is of MariaDB only.
    let (count, section) = match Product::chosen()? {
        Product::MariaDb => (SETUPS.len(), "durable"),
        Product::MySql => (2, "durable-mysql"),
        Product::OceanBase => (1, "durable-oceanbase"),
    };
    let mut setups = Vec::new();
    for (name, database) in SETUPS.into_iter().take(count) {
        say(&format!("starting a database: {name}"));
        let environment = Environment::open(args, database, BUYERS).await?;
        let log = format!("durable-{}", setups.len());
        // In the order in which they are to end.
        setups.push((
            name,
            servers::instance(&environment, &log, &[]).await?,
            environment,
        ));
    }
    let mut rows = Vec::new();
    let mut rated = Vec::new();
    for strategy in STRATEGIES {
        let one = async |_: usize, (_, instance, environment): &(&str, Server, Environment)| {
            Plan::new(strategy, environment, instance).run().await
        };
        let all = args.interleaved(&setups, one).await?;
        let mut commits = Vec::new();
        for (_, _, environment) in &setups {
            commits.push(figure(micro::commits(&environment.pool).await?.p50_ms));
        }
        let each = |of: Figure| {
            let figures = all.iter().map(|runs| figure(of.median(runs)));
            figures.collect::<Vec<_>>().join(" / ")
        };
        // Beside those without a binary log of the same rounds.
        let shares: Vec<Spread> = all
            .iter()
            .skip(1)
            .map(|runs| beside(runs, &all[0], ORDERS_PER_S.1))
            .collect();
        if strategy == RATED {
            for ((share, [floor, aim]), (setup, ..)) in shares.iter().zip(BOUNDS).zip(&setups[1..])
            {
                let status = ratios::status(Some(floor), Some(aim), false, Some(*share));
                rated.push(format!("D, {RATED} with {setup}: {share}, {status}"));
            }
        }
        let mut row = vec![
            format!("`{strategy}`"),
            figure(ORDERS_PER_S.median(&all[0])),
        ];
        row.extend(shares.iter().map(Spread::to_string));
        row.extend([each(P99), each(SERVERS_US), commits.join(" / ")]);
        rows.push(row);
    }
    let shares: Vec<_> = setups
        .iter()
        .skip(1)
        .map(|(name, ..)| format!(">÷ with {name}"))
        .collect();
    // OceanBase has one log, and is alone.
    let of_first = if shares.is_empty() {
        ">orders/s"
    } else {
        ">orders/s without a binary log"
    };
    let mut titles = vec!["strategy", of_first];
    titles.extend(shares.iter().map(String::as_str));
    titles.extend([
        ">p99, ms, of each",
        ">processor time an order, µs",
        ">one commit, ms",
    ]);
    let table = markdown::table(&titles, &rows);
    let conditions = setups[0].2.conditions(began.elapsed()).await?;
    let text = format!("{table}\n{conditions}\n");
    println!("{text}\n{}", rated.join("\n"));
    if args.write {
        markdown::write(&markdown::path("BENCHMARKS.md"), section, &text)?;
        println!("Written: docs/BENCHMARKS.md");
    }
    Ok(())
}
