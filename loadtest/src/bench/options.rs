//! The options of the benchmark, and the interleaved rounds of all its measurements.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use workload::live::Progress;

use crate::bench::ratios;
use crate::options::service;

/// What to measure, and where.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Two rounds of runs half as long, under three minutes; figures not fit for publishing
    #[arg(long)]
    pub quick: bool,
    /// Instead of the ratios: the cost of an order and of a refusal as instances, open sales, orders and sessions grow, and
    /// the memory of each; under ten minutes, with --quick under three (a tenth of the orders and sessions)
    #[arg(long, conflicts_with = "only")]
    pub scale: bool,
    /// Instead of the ratios: four strategies on three databases that it starts: without a binary log, with one, with a
    /// semi-synchronous replica (of MariaDB); under five minutes
    #[arg(long, conflicts_with_all = ["only", "scale"])]
    pub durable: bool,
    /// Write the tables of docs/BENCHMARKS.md and of both READMEs; with --scale: docs/scale.json and the tables of
    /// docs/BENCHMARKS.md and docs/SCALING.md; with --durable: its table of docs/BENCHMARKS.md; in the checkout this was
    /// built in
    #[arg(long)]
    pub write: bool,
    /// Measure only these ratios, by number, such as P1,6 [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", value_parser = ratios::number)]
    pub only: Vec<String>,
    /// Folder for the logs of the servers under test; of `./dev bench`: .dev/bench
    // `./dev bench` passes one; a folder that the user passes replaces it.
    #[arg(
        long,
        default_value = "bench-report",
        value_name = "FOLDER",
        overrides_with = "out"
    )]
    pub out: PathBuf,
    /// The service's binary [default: `seckill` beside this one]
    #[arg(long, value_name = "FILE", default_value_os_t = service(), hide_default_value = true)]
    pub seckill: PathBuf,
}

impl BenchArgs {
    /// Number of interleaved rounds.
    pub fn rounds(&self) -> usize {
        if self.quick { 2 } else { 5 }
    }

    /// How long a run lasts.
    pub fn duration(&self) -> Duration {
        let full = Duration::from_millis(if self.scale || self.durable {
            1200
        } else {
            2500
        });
        if self.quick { full / 2 } else { full }
    }

    /// Measures each of `sides` in interleaved rounds: every side once, one after the other, then again (A B C A B C …), so
    /// that other load on the machine affects all of them alike. The first round fills connection pools, statement caches and
    /// blocks of ids, and does not count. Returns the results of each side.
    pub async fn interleaved<S, R>(
        &self,
        sides: &[S],
        measure: impl AsyncFn(usize, &S) -> anyhow::Result<R>,
    ) -> anyhow::Result<Vec<Vec<R>>> {
        let rounds = self.rounds();
        let mut results: Vec<Vec<R>> = sides.iter().map(|_| Vec::new()).collect();
        for round in 0..=rounds {
            say(&match round {
                0 => "warming up (not counted)".to_owned(),
                round => format!("round {round} of {rounds}"),
            });
            for (side, results) in sides.iter().zip(&mut results) {
                let result = measure(round, side).await?;
                if round > 0 {
                    results.push(result);
                }
            }
        }
        Ok(results)
    }
}

/// Says one thing on stderr.
pub fn say(text: &str) {
    Progress::Stderr.say(text);
}
