//! The price of durability (`./dev bench --durable`): the same sales on three databases of its own, beside each other, in
//! interleaved rounds. The databases differ in what a confirmed order survives; all flush the log at each commit.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use testkit::database_server::Settings;
use testkit::process::TemporaryFolder;
use testkit::replicated_database::{ReplicatedDatabase, Replication};
use workload::markdown::{self, figure};

use crate::bench::conditions;
use crate::bench::environment::{BUYERS, Databases, Environment};
use crate::bench::micro;
use crate::bench::options::{BenchArgs, say};
use crate::bench::plan::Plan;
use crate::bench::run::{Figure, ORDERS_PER_S, P99, SERVERS_US};
use crate::bench::servers::{self, Server};
use crate::spread::{beside, median};

const STRATEGIES: [&str; 4] = ["row-lock", "reentrant-lock", "group-commit", "stream"];

/// What a confirmed order survives, and the database where it does.
const SETUPS: [(&str, Replication, &[&str]); 3] = [
    ("no binary log", Replication::None, &[]),
    ("binary log, `sync_binlog=1`", Replication::None, &["--log-bin=binlog", "--sync-binlog=1"]),
    ("a replica has it (`AFTER_SYNC`)", Replication::SemiSynchronous, &[]),
];

/// One for each, on a database server of its own.
pub const DATABASES: [Databases; 3] = [on_redis(10), on_redis(11), on_redis(12)];

const fn on_redis(redis: u8) -> Databases {
    Databases { database: "seckill", redis, keeps_orders: false }
}

/// A database with an instance of the service on it. In the order in which they are to end.
struct Setup {
    instance: Server,
    environment: Environment,
    /// Runs until it is dropped.
    _database: ReplicatedDatabase,
}

/// Measures, and prints the table: a row for each strategy and database.
pub async fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut setups = Vec::new();
    for number in 0..SETUPS.len() {
        setups.push(setup(number, args.clone()).await?);
    }
    let mut rows = Vec::new();
    for strategy in STRATEGIES {
        let one = async |_: usize, setup: &Setup| {
            let plan = Plan::new(strategy, &setup.environment, &setup.instance);
            anyhow::Ok(plan.run().await?.0)
        };
        let all = args.interleaved(&setups, one).await?;
        for (((name, ..), setup), runs) in SETUPS.into_iter().zip(&setups).zip(&all) {
            // Beside those without a binary log of the same rounds.
            let share = beside(runs, &all[0], ORDERS_PER_S.1);
            let of = |Figure(_, value): Figure| figure(median(runs.iter().map(value)));
            rows.push(vec![
                format!("`{strategy}`"),
                name.to_owned(),
                of(ORDERS_PER_S),
                share.map_or_else(String::new, |share| share.to_string()),
                of(P99),
                of(SERVERS_US),
                figure(micro::commit_ms(&setup.environment.pool).await?),
            ]);
        }
    }
    let titles = [
        "strategy",
        "a confirmed order survives the loss of the server where",
        ">orders/s",
        ">÷ without binary log (range)",
        ">p99, ms",
        ">processor time an order, µs",
        ">one commit, ms",
    ];
    let table = markdown::table(&titles, &rows);
    let conditions = conditions::text(&setups[0].environment, began.elapsed()).await?;
    let text = format!("{table}\n{conditions}\n");
    println!("{text}");
    if args.write {
        markdown::write(&markdown::path("BENCHMARKS.md"), "durable", &text)?;
        println!("Written: docs/BENCHMARKS.md");
    }
    Ok(())
}

async fn setup(number: usize, mut args: BenchArgs) -> anyhow::Result<Setup> {
    let (name, replication, arguments) = SETUPS[number];
    say(&format!("starting a database: {name}"));
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let database = Settings { arguments, ..Settings::default() };
    let folder = Arc::new(TemporaryFolder::new()?);
    let database = ReplicatedDatabase::start_in(folder, replication, database).await;
    let database = database.context("starting a database")?;
    // Without the proxy, which not all have.
    args.database_url = database.primary().url();
    let environment = Environment::open(&args, DATABASES[number], BUYERS).await?;
    let instance = servers::instance(&environment, &format!("durable-{number}"), &[]).await?;
    Ok(Setup { instance, environment, _database: database })
}
