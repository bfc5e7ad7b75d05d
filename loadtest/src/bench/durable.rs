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
use crate::bench::run::{Figure, ORDERS_PER_S, P99, Run, SERVERS_US};
use crate::bench::servers::{self, Server};
use crate::spread::{Spread, compare_rounds};

const STRATEGIES: [&str; 4] = ["row-lock", "reentrant-lock", "group-commit", "stream"];

/// The setups: how a setup is called in the table, and its database.
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

/// Floor and aim of ratio D in each setup but the first: its orders per second of [`RATED`] ÷ those in the first setup.
const BOUNDS: [[f64; 2]; 2] = [[0.8, 0.95], [0.6, 0.85]];
const RATED: &str = "group-commit";

/// A database, and an instance of the service on it.
struct Setup {
    name: &'static str,
    // Fields are dropped in this order: the instance before its database.
    instance: Server,
    environment: Environment,
}

/// Measures, and prints the table: a row for each strategy.
pub async fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    // Only MariaDB is also run with a replica.
    let (count, section) = match Product::chosen()? {
        Product::MariaDb => (SETUPS.len(), "durable"),
        Product::MySql => (2, "durable-mysql"),
        Product::OceanBase => (1, "durable-oceanbase"),
    };
    let setups = start_setups(args, count).await?;
    let mut rows = Vec::new();
    let mut rated = Vec::new();
    for strategy in STRATEGIES {
        let runs_by_setup = args
            .interleaved(&setups, async |_: usize, setup: &Setup| {
                Plan::new(strategy, &setup.environment, &setup.instance)
                    .run()
                    .await
            })
            .await?;
        let mut commits = Vec::new();
        for setup in &setups {
            let latency = micro::commits(&setup.environment.pool).await?;
            commits.push(figure(latency.p50_ms));
        }
        // Each run compared with the run without a binary log in the same round.
        let shares: Vec<Spread> = runs_by_setup
            .iter()
            .skip(1)
            .map(|runs| compare_rounds(runs, &runs_by_setup[0], ORDERS_PER_S.1))
            .collect();
        if strategy == RATED {
            for ((share, [floor, aim]), setup) in shares.iter().zip(BOUNDS).zip(&setups[1..]) {
                let status = ratios::status(Some(floor), Some(aim), false, Some(*share));
                let name = setup.name;
                rated.push(format!("D, {RATED} with {name}: {share}, {status}"));
            }
        }
        let mut row = vec![
            format!("`{strategy}`"),
            figure(ORDERS_PER_S.median(&runs_by_setup[0])),
        ];
        row.extend(shares.iter().map(Spread::to_string));
        row.push(medians(&runs_by_setup, P99));
        row.push(medians(&runs_by_setup, SERVERS_US));
        row.push(commits.join(" / "));
        rows.push(row);
    }
    let table = table(&setups, &rows);
    let conditions = setups[0].environment.conditions(began.elapsed()).await?;
    let text = format!("{table}\n{conditions}\n");
    println!("{text}\n{}", rated.join("\n"));
    if args.write {
        markdown::write(&markdown::path("BENCHMARKS.md"), section, &text)?;
        println!("Written: docs/BENCHMARKS.md");
    }
    Ok(())
}

/// Starts the databases of the first `count` setups, and an instance on each.
async fn start_setups(args: &BenchArgs, count: usize) -> anyhow::Result<Vec<Setup>> {
    let mut setups = Vec::new();
    for (name, database) in SETUPS.into_iter().take(count) {
        say(&format!("starting a database: {name}"));
        let environment = Environment::open(args, database, BUYERS).await?;
        let log = format!("durable-{}", setups.len());
        let instance = servers::instance(&environment, &log, &[]).await?;
        setups.push(Setup {
            name,
            instance,
            environment,
        });
    }
    Ok(setups)
}

/// The median of a figure in each setup.
fn medians(runs_by_setup: &[Vec<Run>], column: Figure) -> String {
    let figures: Vec<_> = runs_by_setup
        .iter()
        .map(|runs| figure(column.median(runs)))
        .collect();
    figures.join(" / ")
}

/// The table of all strategies, with the titles for these setups.
fn table(setups: &[Setup], rows: &[Vec<String>]) -> String {
    let shares: Vec<_> = setups
        .iter()
        .skip(1)
        .map(|Setup { name, .. }| format!(">÷ with {name}"))
        .collect();
    // OceanBase has a single log, so its table has one setup only.
    let orders_title = if shares.is_empty() {
        ">orders/s"
    } else {
        ">orders/s without a binary log"
    };
    let mut titles = vec!["strategy", orders_title];
    titles.extend(shares.iter().map(String::as_str));
    titles.extend([
        ">p99, ms, of each",
        ">processor time an order, µs",
        ">one commit, ms",
    ]);
    markdown::table(&titles, rows)
}
