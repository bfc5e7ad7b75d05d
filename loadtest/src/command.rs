//! Runs one scenario, prints its report, and exits with 0 (clean), 1 (a guarantee was broken) or 2 (an error of usage or
//! set-up, or nothing proved).

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Error;
use clap::{CommandFactory, Parser};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use workload::{
    burst::BurstOptions,
    comparison::{self, RunState, document::State},
    publish,
};

use crate::{
    bench, burst, chaos,
    cli::{BurstArgs, Cli, Command, CompareArgs, PublishArgs, Scenario},
    interrupt::{or_interrupted, or_stopped},
    judge::{self, JudgeOptions},
    lab, ladder,
    options::Run,
    plan,
    report::{CheckResult, Checked, print},
    rolling,
};

/// The program.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Load(scenario) => load(*scenario),
        Command::Bench(args) => measure(bench::run(args)),
        Command::Completions { shell } => {
            let mut completions = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "loadtest", &mut completions);
            print(&String::from_utf8_lossy(&completions));
            ExitCode::SUCCESS
        }
        Command::Baseline(baseline) => measure(bench::baseline::serve(baseline)),
    }
}

#[tokio::main]
async fn measure(work: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    match work.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadtest: {error:?}");
            ExitCode::FAILURE
        }
    }
}

// One thread is enough to send, and leaves the other cores to the servers.
#[tokio::main(flavor = "current_thread")]
async fn load(scenario: Scenario) -> ExitCode {
    run(scenario).await.unwrap_or_else(|error| {
        eprintln!("loadtest: {error}");
        ExitCode::from(2)
    })
}

async fn run(scenario: Scenario) -> Result<ExitCode, Error> {
    let stop = CancellationToken::new();
    match scenario {
        Scenario::Burst(Run {
            options: BurstArgs { strategy, burst },
            json,
        }) => {
            let options = BurstOptions { strategy, ..burst };
            let selling = burst::run(options, &stop);
            let (report, sale) = or_stopped(|| stop.cancel(), selling).await?;
            finish(&report, &sale, json).await
        }
        Scenario::Ladder(Run { options, json }) => {
            let selling = ladder::run(&options, &stop);
            checked(or_stopped(|| stop.cancel(), selling).await?, json).await
        }
        Scenario::Compare(args) => compare(args).await,
        Scenario::Lab(options) => {
            or_stopped(|| stop.cancel(), lab::run(options, stop.clone())).await?;
            Ok(ExitCode::SUCCESS)
        }
        Scenario::Cache(scenario) => {
            let reading = scenario.run(&stop);
            let (report, json) = or_stopped(|| stop.cancel(), reading).await?;
            checked(report, json).await
        }
        Scenario::Chaos(Run { options, .. }) if options.list => {
            print(chaos::faults::list(options.layout).trim_end());
            Ok(ExitCode::SUCCESS)
        }
        Scenario::Chaos(Run { options, json }) => {
            checked(or_interrupted(chaos::run(&options)).await?, json).await
        }
        Scenario::Rolling(Run { options, json }) => {
            checked(or_interrupted(rolling::run(&options)).await?, json).await
        }
        Scenario::Judge(Run { options, json }) => judge_node(options, json, &stop).await,
        Scenario::Plan(options) => {
            print(&plan::run(&options)?);
            Ok(ExitCode::SUCCESS)
        }
        Scenario::Publish(args) => {
            let PublishArgs {
                stock,
                strategy,
                environment,
            } = args;
            let target = environment.first_target()?;
            let access = &environment.access;
            let voucher_id = publish::flash_sale(access, target, &strategy, stock).await?;
            print(&voucher_id.to_string());
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn judge_node(
    options: JudgeOptions,
    json: Option<PathBuf>,
    stop: &CancellationToken,
) -> Result<ExitCode, Error> {
    // Asks at the terminal, where Ctrl-C still ends the process.
    let mut traces = judge::prepare(&options).await?;
    let judging = judge::run(&options, &mut traces, stop);
    let judged = or_stopped(|| stop.cancel(), judging).await;
    options.progress.say("removing what was made");
    // No signal ends this: whoever is impatient presses Ctrl-C again.
    if let Err(error) = traces.remove().await {
        options.progress.say(&error.to_string());
    }
    let judgement = judged?;
    let page = judgement.html(options.language());
    let exit_code = checked(judgement.report, json).await?;
    if let Some(path) = &options.html {
        write(path, Ok(page)).await?;
    }
    Ok(exit_code)
}

async fn compare(args: CompareArgs) -> Result<ExitCode, Error> {
    let CompareArgs {
        setting,
        html,
        json,
        environment,
    } = args;
    let run = RunState::new("comparison".to_owned(), setting);
    let selling = comparison::run(&environment, &run);
    or_stopped(|| run.stop(), selling).await?;
    let document = run.document(0);
    let mut report = ladder::compared(&document);
    if run.state() == State::Stopped {
        report = report.cut_short();
    }
    let exit_code = checked(report, None).await?;
    if let Some(path) = html {
        write(&path, comparison::report::html(&document)).await?;
    }
    if let Some(path) = json {
        write(&path, comparison::report::raw(&run)).await?;
    }
    Ok(exit_code)
}

async fn checked(report: Checked, json: Option<PathBuf>) -> Result<ExitCode, Error> {
    finish(&report, &report, json).await
}

/// Prints a report, and writes `data` as JSON where asked.
async fn finish(
    report: &Checked,
    data: &impl Serialize,
    json: Option<PathBuf>,
) -> Result<ExitCode, Error> {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        print(&report.in_colour());
    } else {
        print(&report.to_string());
    }
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(data).map(|text| text + "\n");
        write(&path, text).await?;
    }
    let result = report.result();
    if result == CheckResult::Unclear {
        eprintln!("loadtest: nothing was proved: see above");
    }
    Ok(result.exit_code())
}

/// Writes a file, and the folders above it.
async fn write(path: &Path, text: serde_json::Result<String>) -> Result<(), workload::Error> {
    let failed = workload::Error::file(path);
    let text = text.map_err(|error| failed(error.into()))?;
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        tokio::fs::create_dir_all(folder).await.map_err(&failed)?;
    }
    tokio::fs::write(path, text).await.map_err(failed)
}
