//! `loadtest compare` on the command line.

use std::path::PathBuf;

use clap::Args;
use workload::{Environment, comparison::document::Setting};

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The two strategies
    #[arg(long, num_args = 2, value_names = ["LEFT", "RIGHT"],
          default_values = ["process-lock", "reentrant-lock"])]
    lanes: Vec<String>,
    /// Users, in each lane
    #[arg(long, default_value_t = 300)]
    buyers: u32,
    /// Simultaneous attempts of each user
    #[arg(long, default_value_t = 4)]
    tries: u32,
    /// Vouchers on sale, in each lane
    #[arg(long, default_value_t = 200)]
    stock: u32,
    /// 1: all requests go to the first of --nodes; 2: they go to --targets
    #[arg(long, default_value_t = 2)]
    instances: u32,
    /// Over how long the buyers come, in seconds; 0 for all at once
    #[arg(long, default_value_t = 6, value_name = "SECONDS")]
    spread: u32,
    /// What their order and moments are drawn from [default: a random one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Write the report as one HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write everything, every attempt included, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    environment: Environment,
}

impl CompareArgs {
    /// Where it is run, and what.
    pub fn options(self) -> (Environment, Setting) {
        let mut lanes = self.lanes.into_iter();
        let setting = Setting {
            lanes: [lanes.next().unwrap_or_default(), lanes.next().unwrap_or_default()],
            buyers: self.buyers,
            tries: self.tries,
            stock: self.stock,
            instances: self.instances,
            spread_seconds: self.spread,
            in_turn: false,
            seed: self.seed,
        };
        (self.environment, setting)
    }
}
