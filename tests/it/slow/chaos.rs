//! A short chaos run with a fixed seed, on every strategy that is safe under faults. `./dev chaos` runs any number of
//! rounds from any seed.

use std::path::PathBuf;

use seckill_loadtest::chaos::{
    self, ChaosOptions,
    layout::{DatabaseLayout, RedisLayout},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_oversold_lost_or_stranded_under_faults() {
    let options = ChaosOptions {
        program: PathBuf::from(env!("CARGO_BIN_EXE_seckill")),
        seed: 4,
        rounds: 2,
        only_round: None,
        strategies: Vec::new(),
        buyers: 300,
        recoveries: 0,
        redis: RedisLayout::Single,
        database: DatabaseLayout::Single,
        list: false,
    };
    let report =
        chaos::run(&options, |round| println!("{round}")).await.expect("servers that start");
    assert!(report.is_clean(), "{report}");
    let faults: usize = report.rounds.iter().map(|round| round.faults.len()).sum();
    assert!(faults >= 2, "each round has a fault: {report}");
}
