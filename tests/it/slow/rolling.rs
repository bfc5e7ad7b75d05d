//! A rolling restart under load, behind a real nginx and a real HAProxy with the shipped configurations: no client notices
//! it. `./dev chaos rolling` runs longer, with more instances, and at half of their capacity.

use std::process::ExitCode;

use seckill_loadtest::rolling::{self, RollingOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_purchase() {
    let options = RollingOptions {
        instances: 2,
        rounds: 1,
        rate: Some(60.0),
        buyers: 3_000,
        program: env!("CARGO_BIN_EXE_seckill").into(),
        // On a busy machine the balancers notice a drain late, and the database may stand still for seconds.
        environment: vec![
            ("DRAIN_GRACE_MS", "1000"),
            ("DATABASE_TIMEOUT_MS", "10000"),
            ("REQUEST_TIMEOUT_MS", "90000"),
            ("DRAIN_DEADLINE_MS", "95000"),
        ],
    };
    let report = rolling::run(&options).await.expect("a run");
    // Behind both balancers every instance was restarted, and no purchase failed.
    assert_eq!(report.result().exit_code(), ExitCode::SUCCESS, "{report}");
    assert_eq!(report.figures[0].rows.len(), 2);
}
