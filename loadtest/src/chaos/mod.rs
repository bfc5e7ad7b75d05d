//! Chaos: sales on two instances while processes are killed, stopped and emptied and replies get lost,
//! drawn at random from a seed that is told; and after each, every reply against every row.
//!
//! Everything is private: a MariaDB, a Redis and two processes of the real binary, in a temporary folder,
//! gone at the end. From the bottom up:
//!
//! - [`process`], [`database`], [`redis_server`], [`instance`], [`proxy`]: what can be broken.
//! - [`stand`]: all of them together.
//! - [`mischief`], [`crowd`]: what is drawn, who buys.
//! - [`judgement`], [`round`], [`recovery`]: what is measured.
//!
//! The seed draws what is tried and when. What meets what is up to the machine, so a repeated round is
//! the same trial and need not be the same run.

use std::{path::PathBuf, sync::Arc};

use serde::Serialize;

use ladder::Strategy;
use workload::{Error, ledger::Ledger};

pub mod crowd;
pub mod database;
pub mod instance;
pub mod judgement;
pub mod mischief;
pub mod process;
pub mod recovery;
pub mod redis_server;
pub mod round;
mod show;
pub mod stand;

use judgement::Judgement;
use recovery::{After, Recovery};
use round::{Round, RoundOptions};
use stand::Stand;

/// The strategies that are tried unless others are asked for: those that keep their word under faults, as
/// far as the ladder has them.
pub const STRATEGIES: [&str; 3] = ["reentrant-lock", "group-commit", "stream"];

/// A chaos run.
#[derive(Debug, Clone)]
pub struct ChaosOptions {
    /// The service's binary.
    pub program: PathBuf,
    /// What everything is drawn from.
    pub seed: u64,
    /// Rounds to run; strategies take turns.
    pub rounds: u32,
    /// Only this round, from 1.
    pub only_round: Option<u32>,
    /// The strategies; none means [`STRATEGIES`].
    pub strategies: Vec<String>,
    /// Buyers of a sale.
    pub buyers: usize,
    /// How often each recovery is measured; 0 for not at all.
    pub recoveries: u32,
}

/// A run, judged.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `chaos`.
    pub scenario: &'static str,
    /// What everything was drawn from.
    pub seed: u64,
    /// Every round.
    pub rounds: Vec<Round>,
    /// Every measurement of recovery.
    pub recoveries: Vec<Recovery>,
    /// Where the servers' logs are, if there was a violation.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// Whether no round found a violation.
    pub fn is_clean(&self) -> bool {
        self.rounds.iter().all(|round| round.judgement.is_clean())
    }
}

/// Runs all rounds, showing each to `shown` as it ends.
///
/// # Errors
/// A [`Error`] of the set-up, also a server that does not come back after a fault.
pub async fn run(options: &ChaosOptions, mut shown: impl FnMut(&Round)) -> Result<Report, Error> {
    let known = |name: &&str| name.parse::<Strategy>().is_ok();
    let mut strategies = options.strategies.clone();
    if strategies.is_empty() {
        strategies = STRATEGIES.iter().filter(|name| known(name)).map(|&s| s.to_owned()).collect();
    }
    let stand = Arc::new(Stand::start(&options.program).await?);
    let ledger = Ledger::open(&stand.access.database_url).await?;
    let mut rounds = Vec::new();
    let turns = strategies.len().max(1);
    for number in 1..=options.rounds {
        if options.only_round.is_some_and(|only| only != number) {
            continue;
        }
        let index = number as usize - 1;
        let options = RoundOptions {
            seed: options.seed,
            number,
            strategy: strategies[index % turns].clone(),
            turn: u32::try_from(index / turns).unwrap_or(u32::MAX),
            buyers: options.buyers,
        };
        let round = round::run(&stand, &ledger, &options).await.inspect_err(|_| {
            eprintln!("round {number}: the servers' logs are in {}", stand.keep_logs().display());
        })?;
        shown(&round);
        rounds.push(round);
    }
    let mut recoveries = Vec::new();
    if options.recoveries > 0 {
        stand.start_instances(false).await?;
        for strategy in &strategies {
            for after in [After::InstanceKill, After::RedisWipe] {
                for _ in 0..options.recoveries {
                    let number = u32::try_from(recoveries.len()).unwrap_or(u32::MAX);
                    recoveries.push(recovery::measure(&stand, strategy, after, number).await?);
                }
            }
        }
    }
    judge_again(&ledger, &mut rounds).await?;
    let mut report =
        Report { scenario: "chaos", seed: options.seed, rounds, recoveries, logs: None };
    if !report.is_clean() {
        report.logs = Some(stand.keep_logs().to_owned());
    }
    Ok(report)
}

/// Judges every round once more at the very end: what was refused must not have come true later.
async fn judge_again(ledger: &Ledger, rounds: &mut [Round]) -> Result<(), Error> {
    for round in rounds {
        let snapshot = ledger.read(round.voucher_id).await?;
        let again = Judgement::of(&round.outcome, &snapshot);
        if round.judgement.is_clean() && !again.is_clean() {
            round.judgement = again;
        }
    }
    Ok(())
}
