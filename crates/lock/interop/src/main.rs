//! `./dev test interop`: interoperability tests of this repository's locks with Redisson's, as processes of
//! both languages on one Redis. A row is one scenario on one kind of lock. Prints each row's result, and fails if
//! one failed.
//!
//! One binary in two roles: the orchestrator, and (`interop --client …`) the Rust client process, which it
//! starts twice, beside two processes of the Java client in redisson/. See README.md.

mod client_process;
mod fair;
mod kinds;
mod rows;
mod rust_client;
mod scenarios;
mod test_bed;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, anyhow, ensure};
use clap::Parser;
use testkit::redis_server::RedisServer;

use client_process::{NoResult, WATCHDOG};
use rows::Outcome;
use rust_client::Fault;
use test_bed::{LOGS, Launcher, TestBed};

/// The oldest Redisson that hm-dianping nodes still use, the newest, and one in between. From 3.24 on, a release
/// writes a key `redisson_unlock_latch`.
const VERSIONS: [&str; 3] = [OLDEST, "3.38.1", NEWEST];
const OLDEST: &str = "3.17.7";
const NEWEST: &str = "4.7.0";

#[derive(Parser)]
#[command(about = "Interoperability tests of this repository's locks with Redisson's")]
struct Arguments {
    /// Versions of Redisson to test against; Maven has to be able to fetch them
    #[arg(value_name = "VERSION", default_values = VERSIONS)]
    versions: Vec<String>,
    /// Start the Rust client with each known fault, and expect that a row fails
    #[arg(long)]
    prove: bool,
    /// Only rows whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Be the Rust client process, on this Redis (the orchestrator starts it)
    #[arg(long, hide = true, value_name = "URL")]
    client: Option<String>,
    /// Its fault
    #[arg(long, hide = true)]
    fault: Option<Fault>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(url) = arguments.client {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .init();
        return rust_client::run(&url, arguments.fault).await;
    }
    let redis = RedisServer::start().await;
    std::fs::create_dir_all(LOGS).context(LOGS)?;
    let launcher = |version: &str| -> anyhow::Result<Launcher> {
        Ok(Launcher {
            redisson: compile(version)?,
            second: compile(if version == NEWEST { OLDEST } else { NEWEST })?,
            prefix: None,
            fault: None,
            url: redis.url(),
        })
    };
    let mut outcomes = Vec::new();
    if arguments.prove {
        let version = arguments.versions.last().context("no version")?;
        outcomes = prove(&launcher(version)?).await?;
    } else {
        for version in &arguments.versions {
            let bed = TestBed::start(launcher(version)?).await?;
            println!(
                "\nRedisson {version}, watchdogs of {} ms",
                WATCHDOG.as_millis()
            );
            for (name, outcome) in rows::run(&bed, &arguments.only).await {
                outcomes.push((format!("{version}: {name}"), outcome));
            }
        }
    }
    println!();
    let mut passed = 0;
    let mut failed = 0;
    let mut not_run = 0;
    for (name, outcome) in &outcomes {
        match outcome {
            Ok(_) => passed += 1,
            Err(why) if why.is::<NoResult>() => not_run += 1,
            Err(_) => failed += 1,
        }
        if outcome.is_err() {
            println!("{name}: {}", rows::text(outcome));
        }
    }
    println!("{passed} passed, {failed} failed, {not_run} not run");
    ensure!(
        failed == 0 && passed > 0,
        "the logs of the client processes are in {LOGS}"
    );
    Ok(())
}

/// Runs for each fault the row that has to fail, on a test bed of its own.
async fn prove(launcher: &Launcher) -> anyhow::Result<Vec<(String, Outcome)>> {
    let mut outcomes = Vec::new();
    for (fault, row) in rows::DETECTED_BY {
        let bed = TestBed::start(Launcher {
            fault: Some(fault),
            ..launcher.clone()
        })
        .await?;
        println!("\nthe Rust client with the fault {fault:?}");
        for (name, outcome) in rows::run(&bed, row).await {
            let inverted = match outcome {
                Ok(figures) => Err(anyhow!("was not detected: {figures}")),
                Err(why) if !why.is::<NoResult>() => Ok(format!("{why:#}")),
                not_run => not_run,
            };
            outcomes.push((format!("{fault:?}: {name}"), inverted));
        }
    }
    Ok(outcomes)
}

/// Compiles the Java client against one version of Redisson; returns its class path.
fn compile(version: &str) -> anyhow::Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("redisson");
    let built = folder.join("target").join(version);
    // Compiled only if needed: Maven would write the classes anew while another run uses them.
    if !is_newer(&built.join("compiled"), &folder)? {
        println!(
            "compiling the Java client with Redisson {version} (the first time, Maven fetches it)"
        );
        let output = Command::new("mvn")
            .args([
                "-q",
                "-B",
                &format!("-Dredisson.version={version}"),
                "compile",
            ])
            .current_dir(&folder)
            .output()
            .context("cannot run mvn: install Maven and a JDK of version 11 or newer")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "{said}\nmvn failed; can it fetch Redisson {version}?"
        );
        std::fs::write(built.join("compiled"), "")?;
    }
    let jars = std::fs::read_to_string(built.join("classpath")).context("no class path")?;
    Ok(format!(
        "{}:{}",
        built.join("classes").display(),
        jars.trim()
    ))
}

/// Whether the file exists and is newer than the sources of the Java client.
fn is_newer(file: &Path, folder: &Path) -> anyhow::Result<bool> {
    let Ok(file) = file.metadata() else {
        return Ok(false);
    };
    let mut newest = folder.join("pom.xml").metadata()?.modified()?;
    for source in std::fs::read_dir(folder.join("src/main/java/interop"))? {
        newest = newest.max(source?.metadata()?.modified()?);
    }
    Ok(file.modified()? > newest)
}
