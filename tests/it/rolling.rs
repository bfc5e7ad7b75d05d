//! A rolling restart under load, behind a real nginx and a real HAProxy with the shipped configurations, restarts
//! nothing that a client notices. `./dev rolling` does it with more instances, longer and at half of what they can do.

use std::path::Path;
use std::sync::Arc;

use seckill_loadtest::options::defaults;
use seckill_loadtest::scenario::rolling::{self, RollingOptions};
use testkit::process::TemporaryFolder;

use crate::support::instance::Instance;
use crate::support::stack::Stack;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_purchase() {
    let stack = Stack::start(0, &[]).await;
    let folder = Arc::new(TemporaryFolder::new().expect("a folder"));
    let options = RollingOptions {
        instances: 2,
        rounds: 1,
        rate: Some(60.0),
        connections: Some(32),
        buyers: 3_000,
        program: env!("CARGO_BIN_EXE_seckill").into(),
        deploy: Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy"),
        // A busy machine notices late, and its database may stand still for seconds.
        environment: [
            ("DRAIN_GRACE_MS", "1000"),
            ("DATABASE_TIMEOUT_MS", "10000"),
            ("REQUEST_TIMEOUT_MS", "90000"),
            ("DRAIN_DEADLINE_MS", "95000"),
            // Longer than a purchase may take, as the service demands.
            ("SETNX_LEASE_MS", "100000"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into(),
        ..defaults()
    };
    let report = rolling::run_on(&stack.access(), folder, &options, |_| ()).await;
    let report = report.expect("a run");
    assert_eq!(report.behind.iter().map(|behind| behind.restarts.count).sum::<usize>(), 6);
    for behind in &report.behind {
        assert!(behind.check().is_proof(), "{report}");
    }
}

/// A proxy that keeps idle connections for longer than an instance that ends does might send a purchase on one that is
/// being closed.
#[test]
fn the_shipped_proxies_close_idle_connections_before_the_service_does() {
    let help = Instance::command(&["serve", "--help"]).output().expect("its help").stdout;
    let help = String::from_utf8(help).expect("text");
    let (_, idle) = help.split_once("DRAIN_IDLE_MS").expect("the setting");
    let (_, idle) = idle.split_once("[default: ").expect("its default");
    let idle: u64 = idle.split_once(']').expect("its end").0.parse().expect("milliseconds");
    for file in ["nginx.conf", "nginx-mixed.conf"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
        let text = std::fs::read_to_string(path).expect("the configuration");
        let upstreams: Vec<&str> = text.split("\n    upstream ").skip(1).collect();
        assert!(!upstreams.is_empty(), "{file}");
        for upstream in upstreams {
            let (upstream, _) = upstream.split_once("\n    }").expect("its end");
            let (_, kept) = upstream.split_once(" keepalive_timeout ").expect(upstream);
            let kept: u64 = kept.split_once("s;").expect(upstream).0.parse().expect("seconds");
            assert!(kept * 1000 < idle, "{file}: {upstream}");
        }
    }
}
