//! `./dev interop`: this crate's locks and Redisson's on one Redis, made to wait for each other,
//! wake each other and exclude each other; prints a table and fails if a row does.
//!
//! One binary in two roles: the orchestrator, and (`interop side …`) the Rust side that it starts
//! twice, beside two processes of the Java side in redisson/. See README.md.

mod family;
mod peer;
#[allow(dead_code)] // it can do more than is needed here
mod rows;
mod scenarios;
mod side;
mod stage;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};

use rows::Outcome;
use side::Fault;
use stage::{Cast, Stage};
use testkit::redis_server::RedisServer;

/// The oldest Redisson that hm-dianping nodes of today carry, and the newest.
const VERSIONS: [&str; 2] = ["3.17.7", "4.7.0"];

/// Short, so that leases end while one watches; long enough for a busy machine.
const WATCHDOG: Duration = Duration::from_millis(1500);

#[derive(Parser)]
#[command(about = "The locks of this crate and those of Redisson, tested against each other")]
struct Arguments {
    /// Versions of Redisson to test against; needs them in reach of Maven
    #[arg(value_name = "VERSION", default_values = VERSIONS)]
    versions: Vec<String>,
    /// Break the Rust side in each known way, and expect that the scenarios notice
    #[arg(long)]
    prove: bool,
    /// Only rows whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Play each row so many times
    #[arg(long, value_name = "TIMES", default_value_t = 1)]
    repeat: u32,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Be the Rust side (the orchestrator starts it)
    #[command(hide = true)]
    Side {
        url: String,
        watchdog_millis: u64,
        #[arg(long)]
        fault: Option<Fault>,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Role::Side { url, watchdog_millis, fault }) = arguments.role {
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
        return side::run(&url, Duration::from_millis(watchdog_millis), fault).await;
    }
    let redis = RedisServer::start().await;
    let logs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("redisson/target/log");
    std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let cast = |version: &str| -> anyhow::Result<Cast> {
        Ok(Cast {
            redisson: version.to_owned(),
            classpath: compile(version)?,
            fault: None,
            watchdog: WATCHDOG,
            url: redis.url(),
            logs: logs.clone(),
        })
    };
    let mut results = Vec::new();
    if arguments.prove {
        let version = arguments.versions.last().context("no version")?;
        results.push(("noticed".to_owned(), prove(&cast(version)?).await?));
    } else {
        for version in &arguments.versions {
            let stage = Stage::set(cast(version)?).await?;
            println!("\nRedisson {version}, watchdogs of {} ms", WATCHDOG.as_millis());
            let outcomes = rows::play(&stage, &arguments.only, arguments.repeat).await?;
            results.push((format!("Redisson {version}"), outcomes));
        }
    }
    table::print(&results);
    let failed = table::count(&results, |outcome| matches!(outcome, Outcome::Failed(_)));
    let passed = table::count(&results, |outcome| matches!(outcome, Outcome::Passed(_)));
    let absent = table::count(&results, |outcome| matches!(outcome, Outcome::Absent(_)));
    println!("\n{passed} passed, {failed} failed, {absent} not played");
    ensure!(failed == 0 && passed > 0, "the sides' logs are in {}", logs.display());
    Ok(())
}

/// Each fault on a stage of its own, and one row that has to fail there.
async fn prove(cast: &Cast) -> anyhow::Result<Vec<(String, Outcome)>> {
    let mut outcomes = Vec::new();
    for (fault, row) in rows::TELLTALE {
        let stage = Stage::set(Cast { fault: Some(fault), ..cast.clone() }).await?;
        println!("\na Rust side that is {}", format!("{fault:?}").to_lowercase());
        for (name, outcome) in rows::play(&stage, row, 1).await? {
            let judged = match outcome {
                Outcome::Failed(why) => Outcome::Passed(why),
                Outcome::Passed(figures) => Outcome::Failed(format!("was not noticed: {figures}")),
                absent => absent,
            };
            outcomes.push((format!("{fault:?}: {name}"), judged));
        }
    }
    Ok(outcomes)
}

/// Compile the Java side against one version of Redisson; returns its class path.
fn compile(version: &str) -> anyhow::Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("redisson");
    println!("compiling the Java side with Redisson {version} (the first time, Maven fetches it)");
    let output = Command::new("mvn")
        .args(["-q", "-B", &format!("-Dredisson.version={version}"), "compile"])
        .current_dir(&folder)
        .output()
        .context("cannot run mvn: install Maven and a JDK of version 11 or newer")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}\nmvn failed; is Redisson {version} in its reach?");
    let built = folder.join("target").join(version);
    let jars = std::fs::read_to_string(built.join("classpath")).context("no class path")?;
    Ok(format!("{}:{}", built.join("classes").display(), jars.trim()))
}
