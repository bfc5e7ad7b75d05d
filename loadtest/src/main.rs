//! `loadtest`: parse the command line, run one scenario, print its report, say it by exit code.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use seckill_loadtest::{
    chaos,
    scenario::{
        avalanche, ladder, overload, penetration, read, stampede, standing::Outcome, updates,
    },
};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use workload::{
    Error, burst,
    comparison::{self, RunState},
    conformance::Conformance,
    publish,
};

mod cli;

use cli::{Cli, Scenario};

/// A violation: the run is complete and the service is at fault.
const VIOLATION: u8 = 1;
/// Nothing can be said about the service.
const SETUP_FAULT: u8 = 2;

// One thread is enough to send, and leaves the other cores to the servers.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Cli::parse().scenario).await {
        Ok(code) => code,
        Err(fault) => {
            eprintln!("loadtest: {fault}");
            ExitCode::from(SETUP_FAULT)
        }
    }
}

async fn run(scenario: Scenario) -> Result<ExitCode, Error> {
    match scenario {
        Scenario::Burst(args) => {
            let (options, json) = args.options();
            let report = burst::run(&options).await?;
            show(&report, json).await?;
            if !report.verdict.is_clean() {
                return Ok(ExitCode::from(VIOLATION));
            }
            if !report.settled || (report.verdict.orders == 0 && options.stock > 0) {
                eprintln!("loadtest: nothing was proved: see the replies above");
                return Ok(ExitCode::from(SETUP_FAULT));
            }
            Ok(ExitCode::SUCCESS)
        }
        Scenario::Ladder(args) => {
            let (options, json) = args.options();
            let climb = ladder::run(&options).await?;
            show(&climb, json).await?;
            Ok(if climb.as_promised { ExitCode::SUCCESS } else { ExitCode::from(VIOLATION) })
        }
        Scenario::Compare(args) => {
            let (html, json) = (args.html.clone(), args.json.clone());
            let (environment, setting) = args.options();
            let started = chrono::Utc::now().with_timezone(&environment.access.time_zone);
            let started = started.format("%Y-%m-%dT%H:%M:%S").to_string();
            let run = RunState::new("comparison".to_owned(), setting, started);
            comparison::run(&environment, &run, &[]).await?;
            let document = run.document(0);
            println!("{}", comparison::Summary(&document));
            if let Some(path) = html {
                let page = comparison::report::html(&document);
                write(&path, page.map_err(Into::into)).await?;
            }
            if let Some(path) = json {
                let text = serde_json::to_string_pretty(&comparison::raw::Raw::of(&run));
                write(&path, text.map(|text| text + "\n").map_err(Into::into)).await?;
            }
            let results = document.lanes.iter().filter_map(|lane| lane.result.as_ref());
            let violated =
                results.filter(|r| matches!(r.conformance, Conformance::Violation(_))).count();
            Ok(if violated == 0 { ExitCode::SUCCESS } else { ExitCode::from(VIOLATION) })
        }
        Scenario::Overload(args) => {
            let (options, json) = args.options();
            let report = overload::run(&options).await?;
            ended(&report, report.outcome, json).await
        }
        Scenario::Stampede(args) => {
            let (options, json) = args.options();
            let report = stampede::run(&options).await?;
            ended(&report, report.outcome, json).await
        }
        Scenario::Penetration(args) => {
            let (options, json) = args.options();
            let report = penetration::run(&options).await?;
            ended(&report, report.outcome, json).await
        }
        Scenario::Avalanche(args) => {
            let (options, json) = args.options();
            let report = avalanche::run(&options).await?;
            ended(&report, report.outcome, json).await
        }
        Scenario::Read(args) => {
            let (options, json) = args.options();
            let report = read::run(&options).await?;
            ended(&report, report.outcome, json).await
        }
        Scenario::Updates(args) => {
            let (options, json) = args.options();
            let report = updates::run(&options).await?;
            ended(&report, report.outcome, json).await
        }
        Scenario::Chaos(args) => {
            let (options, json) = args.options()?;
            println!("chaos: seed {}", options.seed);
            let running = chaos::run(&options, |round| println!("{round}"));
            // What runs is ended, and its folder removed, when the future is dropped.
            let report = tokio::select! {
                report = running => report?,
                stop = stopped() => return Err(stop),
            };
            show(&report, json).await?;
            Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATION) })
        }
        Scenario::Publish(args) => {
            let target = args.target().ok_or_else(|| Error::Usage("--targets is empty".into()))?;
            let access = args.access();
            let id = publish::flash_sale(&access, target, &args.strategy, args.stock).await?;
            println!("{id}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Waits until somebody ends the tool.
async fn stopped() -> Error {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => Error::Usage("interrupted".to_owned()),
        _ = terminate.recv() => Error::Usage("terminated".to_owned()),
    }
}

/// Shows the report of a read scenario, and says its outcome by exit code.
async fn ended(
    report: &(impl Display + Serialize),
    outcome: Outcome,
    json: Option<PathBuf>,
) -> Result<ExitCode, Error> {
    show(report, json).await?;
    Ok(match outcome {
        Outcome::Clean => ExitCode::SUCCESS,
        Outcome::Unproved => ExitCode::from(SETUP_FAULT),
        Outcome::Violated => ExitCode::from(VIOLATION),
    })
}

/// Prints a report, and writes it as JSON where asked.
async fn show(report: &(impl Display + Serialize), json: Option<PathBuf>) -> Result<(), Error> {
    println!("{report}");
    let Some(path) = json else { return Ok(()) };
    let text = serde_json::to_string_pretty(report);
    write(&path, text.map(|text| text + "\n").map_err(Into::into)).await
}

/// Writes a file, and the folders above it.
async fn write(path: &Path, text: std::io::Result<String>) -> Result<(), Error> {
    let fault = |source| Error::File { path: path.to_owned(), source };
    let text = text.map_err(fault)?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        tokio::fs::create_dir_all(folder).await.map_err(fault)?;
    }
    tokio::fs::write(path, text).await.map_err(fault)
}
