//! The flags of `loadtest chaos`.

use std::path::PathBuf;

use clap::Args;
use seckill_loadtest::chaos::ChaosOptions;
use workload::Error;

#[derive(Debug, Args)]
pub struct ChaosArgs {
    /// Sales to run; the strategies take turns
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// What faults, their times and the buyers' are drawn from [default: a random one, which is told]
    #[arg(long)]
    seed: Option<u64>,
    /// Only this one of the rounds, to repeat it; recoveries are left out
    #[arg(long, value_name = "ROUND", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    only_round: Option<u32>,
    /// The strategies [default: all that keep their word under faults]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    strategies: Vec<String>,
    /// Buyers of a sale, three attempts each
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(4..=20_000))]
    buyers: u32,
    /// How often to measure each recovery of throughput; 0 for not at all
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=100))]
    recoveries: u32,
    /// The service's binary [default: `seckill` beside this one]
    #[arg(long, value_name = "FILE")]
    seckill: Option<PathBuf>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl ChaosArgs {
    /// The run asked for, and where its JSON goes.
    pub fn options(self) -> Result<(ChaosOptions, Option<PathBuf>), Error> {
        let beside = || {
            let own = std::env::current_exe()
                .map_err(|source| Error::File { path: "loadtest".into(), source })?;
            Ok::<_, Error>(own.with_file_name("seckill"))
        };
        let program = match self.seckill {
            Some(program) => std::path::absolute(&program)
                .map_err(|source| Error::File { path: program, source })?,
            None => beside()?,
        };
        let options = ChaosOptions {
            program,
            seed: self.seed.unwrap_or_else(|| rand::random_range(1..1_000_000)),
            rounds: self.rounds.max(self.only_round.unwrap_or(0)),
            only_round: self.only_round,
            strategies: self.strategies,
            buyers: self.buyers as usize,
            recoveries: if self.only_round.is_some() { 0 } else { self.recoveries },
        };
        Ok((options, self.json))
    }
}
