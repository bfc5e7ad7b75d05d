//! The load tool when it is interrupted: it reports what it has seen, calls the result unclear, and leaves nothing behind.

use clap::Parser;
use seckill_loadtest::report::{CheckResult, Checked};
use seckill_loadtest::{burst, ladder, shop_cache};
use tokio_util::sync::CancellationToken;
use workload::Environment;
use workload::burst::BurstOptions;
use workload::live::Progress;

use crate::support::api::metric;
use crate::support::eventually;
use crate::support::stack::Stack;

#[derive(Parser)]
struct Words {
    #[command(subcommand)]
    scenario: shop_cache::Scenario,
}

/// A load of many buyers on few connections, which takes some seconds.
fn load(stack: &Stack) -> BurstOptions {
    let targets = stack.urls();
    let targets = targets.iter().map(|url| url.parse().expect("an address"));
    let mut environment = Environment::silent(stack.access(), targets.collect());
    environment.nodes = environment.targets.clone();
    environment.progress = Progress::Silent;
    BurstOptions {
        buyers: 600,
        tries: 5,
        connections: 2,
        ..BurstOptions::new(environment)
    }
}

fn assert_cut_short(report: &Checked) {
    assert_eq!(report.result(), CheckResult::Unclear, "{report}");
    assert!(report.to_string().contains("interrupted"), "{report}");
}

/// Interrupts a load as soon as the condition holds.
async fn stop_when(stop: &CancellationToken, what: &str, condition: impl AsyncFnMut() -> bool) {
    eventually(what, condition).await;
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_load_reports_what_it_has_seen() {
    let stack = Stack::lab(2).await;

    let stop = CancellationToken::new();
    let (sold, ()) = tokio::join!(
        burst::run(load(&stack), &stop),
        stop_when(&stop, "an order", async || stack.all_orders().await > 0)
    );
    let (report, sale) = sold.expect("a report");
    assert_cut_short(&report);
    assert!((1..3000).contains(&sale.requests), "{report}");
    assert!(
        sale.verdict.orders > 0 && sale.verdict.is_clean(),
        "{report}"
    );

    let stop = CancellationToken::new();
    // The strategy of the burst counts, too.
    let strategies = "SELECT COUNT(DISTINCT strategy) FROM tb_seckill_voucher";
    let small = BurstOptions {
        buyers: 30,
        stock: 10,
        connections: 60,
        ..load(&stack)
    };
    let (report, ()) = tokio::join!(
        ladder::run(&small, &stop),
        stop_when(&stop, "the ladder's second strategy", async || {
            stack.database.number(strategies).await >= 3
        })
    );
    let report = report.expect("a report");
    assert!(report.to_string().contains("interrupted"), "{report}");
    let rows = report.figures[0].rows.len();
    assert!((1..24).contains(&rows), "{report}");

    let stop = CancellationToken::new();
    let access = stack.access();
    let nodes = stack.urls().join(",");
    let words = [
        "cache",
        "read",
        "--seconds=60",
        "--rate=300",
        &format!("--nodes={nodes}"),
        &format!("--database-url={}", access.database_url),
        &format!("--redis-url={}", access.redis_url),
    ];
    let scenario = Words::parse_from(words).scenario;
    let answered = "seckill_replies_total{status=\"2xx\"}";
    let before = metric(stack.url(), answered).await;
    let (report, ()) = tokio::join!(
        scenario.run(&stop),
        stop_when(&stop, "reads", async || {
            metric(stack.url(), answered).await > before + 200
        })
    );
    let (report, _) = report.expect("a report");
    assert_cut_short(&report);
    assert!(!report.figures[0].rows.is_empty(), "{report}");
    let temporary = "SELECT COUNT(*) FROM tb_shop WHERE name LIKE 'temporary%'";
    assert_eq!(stack.database.number(temporary).await, 0);
}
