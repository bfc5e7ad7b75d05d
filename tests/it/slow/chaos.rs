//! A short chaos run with a fixed seed, on every strategy that is safe under faults. `./dev chaos` runs any number of
//! rounds from any seed.

use std::{path::PathBuf, process::ExitCode};

use seckill_loadtest::{
    chaos::{self, ChaosOptions},
    options::defaults,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_oversold_lost_or_stranded_under_faults() {
    let options = ChaosOptions {
        program: PathBuf::from(env!("CARGO_BIN_EXE_seckill")),
        seed: 4,
        rounds: 2,
        buyers: 300,
        recoveries: 0,
        ..defaults()
    };
    let report =
        chaos::run(&options, |round| println!("{round}")).await.expect("servers that start");
    assert_eq!(report.result().exit_code(), ExitCode::SUCCESS, "{report}");
    // The first fault of each round is another one, and has a row in the second table.
    assert!(report.figures[1].rows.len() >= 2, "each round has a fault: {report}");
}
