//! The demonstration: every strategy of the ladder, on one instance and on several.
//!
//! The same buyers come to all sales. There are at least three times as many buyers as vouchers, so
//! that a safe strategy sells out even though many buyers are refused for a busy lock. If a strategy
//! that should break does not, its sale is repeated, at most [`ATTEMPTS`] sales in all, and the table
//! says so. On a safe strategy, buyers who are told to try again do so, because it must sell out.
//!
//! A strategy that can lose orders is shown by a kill: a slow transaction keeps its orders from being written until all buyers
//! are answered, and the last instance is killed before that transaction ends. Each buyer tries once, and there is a voucher
//! for everybody, so that every instance has sold its share. So the killed one certainly has orders in its memory.
//! Without a command that kills, that strategy is sold as the others, and the table says that nothing was lost this time.

use std::{slice, sync::Arc};

use crate::report::{Check, Checked, Table};
use strategies::Strategy;
use tokio_util::sync::CancellationToken;
use workload::{
    Environment, Error, Target,
    burst::{self, BurstOptions, Report},
    buyers::Buyer,
    comparison::document::{Document, LaneResult, Setting},
    conformance::Conformance,
    kill,
    live::Live,
    order_rows::OrderRows,
};

/// How many sales a race gets to show itself.
pub const ATTEMPTS: u32 = 4;

/// The notes below the table if every strategy did as promised.
const MEANING: &str = "\
Reading the stock and taking one later sells what is not there. Checking it in the same statement stops
that, but not a second order of the same buyer.
A lock that is released before the commit lets second orders through, on one instance as on two. So does
a lock whose lease expires too early.
A lock inside the process stops the second order on one instance only: behind a proxy, the same buyer
also reaches the other instance, which has a lock of its own.
A lock that all instances share, a row of the database or a key in Redis, holds on two as on one, and
every voucher is sold exactly once.
A script in Redis can admit before the database commits. `memory-queue` then says yes too early: what waits
in the memory of a node is lost when that is killed. `stream` keeps the queue in Redis and says \"pending\".
`group-commit` needs no lock: many buyers share a commit, and the unique index refuses second orders.
`unit-rows` needs no lock either: each buyer claims a different row.";

/// The table's columns.
const COLUMNS: [&str; 11] = [
    "strategy",
    ">instances",
    ">stock",
    ">requests",
    ">orders",
    ">oversold",
    ">duplicates",
    ">lost",
    ">orders/s",
    ">p99 ms",
    "verdict",
];

/// Runs every strategy twice: on the first instance alone, and on the targets, behind which are all instances. `stop`
/// abandons the sale under way; the sales before it are reported.
///
/// # Errors
/// An [`Error`] of the set-up; a strategy that breaks its guarantees is in the report, not an error.
pub async fn run(shared: &BurstOptions, stop: &CancellationToken) -> Result<Checked, Error> {
    let Environment {
        access,
        targets,
        nodes,
        progress,
        ..
    } = &shared.environment;
    check_demand_and_nodes(shared)?;
    let order_rows = OrderRows::open(&access.database_url).await?;
    let buyers = burst::prepare(shared).await?;
    let together = &targets[..];
    let mut rows = Vec::new();
    let mut as_promised = 0;
    let mut examples = Vec::new();
    'sales: for strategy in Strategy::ALL {
        let alone = single_node(strategy, &shared.environment);
        for (instances, targets) in [(1, alone), (nodes.len() as u32, together)] {
            let mut burst = shared.clone();
            burst.strategy = strategy.name().to_owned();
            burst.environment.targets = targets.to_vec();
            let selling =
                sell_until_shown(&mut burst, &order_rows, &buyers, strategy, instances, stop);
            let Some(step) = selling.await? else {
                break 'sales;
            };
            let Step { report, check, .. } = &step;
            let noun = if instances == 1 {
                "instance"
            } else {
                "instances"
            };
            progress.say(&format!(
                "  {strategy} on {instances} {noun}: {}",
                check.text()
            ));
            rows.push(row(strategy, instances, step.sales, report, check));
            if check.is_as_promised() {
                as_promised += 1;
            } else {
                for example in &report.verdict.examples {
                    examples.push(format!("{strategy} ({}): {example}", report.voucher_id));
                }
            }
        }
    }
    let all = rows.len();
    let what = "strategies as promised, on one instance and on several";
    let buyers = buyers.len();
    let tries = shared.tries;
    let report = Checked {
        scenario: "ladder",
        heading: format!(
            "Each sale: {buyers} buyers, {tries} simultaneous tries each (where an instance is killed one, and a \
             voucher for everybody). The p99 is that of the successes."
        ),
        figures: vec![Table::new(&COLUMNS, rows)],
        notes: if as_promised == all && !stop.is_cancelled() {
            MEANING.to_owned()
        } else {
            examples.join("\n")
        },
        checks: vec![Check::new(what, as_promised, all, as_promised == all)],
    };
    Ok(if stop.is_cancelled() {
        report.cut_short()
    } else {
        report
    })
}

/// Whether the last instance is killed in sales on this strategy.
fn is_killed(strategy: Strategy, environment: &Environment) -> bool {
    strategy.can_lose() && environment.can_kill()
}

/// The instance on which the strategy sells alone: the first, or the one that is killed.
fn single_node(strategy: Strategy, environment: &Environment) -> &[Target] {
    let nodes = &environment.nodes;
    let node = if is_killed(strategy, environment) {
        nodes.last()
    } else {
        nodes.first()
    };
    node.map_or(&[], slice::from_ref)
}

/// Refuses options with which a ladder would show nothing.
fn check_demand_and_nodes(shared: &BurstOptions) -> Result<(), Error> {
    let size = shared.buyers;
    let stock = shared.stock;
    if u64::from(size) < 3 * u64::from(stock) {
        return Err(Error::Usage(format!(
            "{size} buyers for {stock} vouchers: a ladder needs three times as many buyers as \
             vouchers, or a sale may end unsold for lack of demand"
        )));
    }
    if shared.environment.nodes.len() < 2 {
        return Err(Error::Usage(
            "a ladder needs several instances: --nodes".to_owned(),
        ));
    }
    Ok(())
}

/// What came of one strategy on one number of instances.
struct Step {
    /// How many sales it took.
    sales: u32,
    /// The report of the last of them.
    report: Report,
    check: Conformance,
}

/// Sells once. If a strategy that should break does not, sells again, at most [`ATTEMPTS`] times in all; `None` at `stop`.
async fn sell_until_shown(
    burst: &mut BurstOptions,
    order_rows: &OrderRows,
    buyers: &Arc<[Buyer]>,
    strategy: Strategy,
    instances: u32,
    stop: &CancellationToken,
) -> Result<Option<Step>, Error> {
    let mut sales = 0;
    let is_killed = is_killed(strategy, &burst.environment);
    loop {
        let selling = async {
            if is_killed {
                sell_and_kill(burst, order_rows, buyers).await
            } else {
                sell(burst, order_rows, buyers, strategy.holds_on(instances)).await
            }
        };
        let Some(report) = stop.run_until_cancelled(selling).await else {
            return Ok(None);
        };
        let report = report?;
        sales += 1;
        let check = match Conformance::from_report(strategy, instances, &report, !is_killed) {
            Conformance::NotSeen(what) if is_killed => Conformance::DidNotShow(what),
            check => check,
        };
        match &check {
            Conformance::DidNotShow(what) if sales < ATTEMPTS => {
                let progress = burst.environment.progress;
                progress.say(&format!("  {what} did not show this time: a fresh sale"));
            }
            _ => {
                return Ok(Some(Step {
                    sales,
                    report,
                    check,
                }));
            }
        }
    }
}

/// Runs the buyers on a new sale.
async fn sell(
    burst: &mut BurstOptions,
    order_rows: &OrderRows,
    buyers: &Arc<[Buyer]>,
    should_sell_out: bool,
) -> Result<Report, Error> {
    burst.live = Arc::new(Live::default());
    let voucher_id = burst::publish(burst).await?;
    if should_sell_out {
        return burst::run_until_sold_out(voucher_id, burst, order_rows, buyers.clone()).await;
    }
    burst::run_on_sale(voucher_id, burst, order_rows, buyers.clone()).await
}

/// Runs the buyers on a new sale of which no order can be written, and then kills the last instance.
async fn sell_and_kill(
    burst: &mut BurstOptions,
    order_rows: &OrderRows,
    buyers: &Arc<[Buyer]>,
) -> Result<Report, Error> {
    burst.live = Arc::new(Live::default());
    burst.tries = 1;
    burst.stock = burst.buyers;
    let voucher_id = burst::publish(burst).await?;
    let locked = order_rows.lock([voucher_id; 2]).await?;
    let records = burst::sell(voucher_id, burst, buyers).await?;
    let node = kill::kill_last_node(&burst.environment).await?;
    locked.end().await?;
    burst.environment.progress.say(&format!(
        "  all are answered, and {node} was killed: which orders are there when it is back?"
    ));
    kill::wait_until_back(&node, || true).await?;
    burst::judge(voucher_id, burst, order_rows, buyers, records).await
}

/// The report of a comparison, with the ladder's table: one row for each lane that has a result.
pub fn compared(run: &Document) -> Checked {
    let Setting {
        buyers,
        tries,
        stock,
        spread_seconds,
        instances,
        seed,
        ..
    } = run.setting;
    let judged = run
        .lanes
        .iter()
        .filter_map(|lane| Some((lane.strategy, lane.result.as_ref()?)));
    let rows = judged.clone().map(|(strategy, result)| {
        let LaneResult {
            report,
            conformance,
            ..
        } = result;
        row(strategy, instances, 1, report, conformance)
    });
    let violations = judged
        .filter(|(_, result)| matches!(result.conformance, Conformance::Violation(_)))
        .count();
    Checked {
        scenario: "compare",
        heading: format!(
            "Each sale: {buyers} buyers, {tries} simultaneous tries each, for {stock} vouchers over \
             {spread_seconds} s, seed {seed}. The p99 is that of the successes."
        ),
        figures: vec![Table::new(&COLUMNS, rows.collect())],
        notes: String::new(),
        checks: vec![Check::none(
            "strategies that broke a promise",
            violations as u64,
        )],
    }
}

/// A row of the table.
fn row(
    strategy: Strategy,
    instances: u32,
    sales: u32,
    report: &Report,
    check: &Conformance,
) -> Vec<String> {
    let mut verdict = check.text();
    // What compare-and-set pays for its safety: losers of a race go away, and the stock stays.
    if report.verdict.stock_left > 0 && check.is_as_promised() {
        verdict.push_str(&format!("; {} unsold", report.verdict.stock_left));
    }
    if sales > 1 {
        verdict.push_str(&format!(" (sale {sales} of {ATTEMPTS})"));
    }
    // The speed of a strategy that breaks is of no use.
    let safe = strategy.holds_on(instances) && !strategy.can_lose();
    let cell = |figure: f64| {
        if safe {
            format!("{figure:.0}")
        } else {
            "–".to_owned()
        }
    };
    vec![
        strategy.to_string(),
        instances.to_string(),
        report.stock.to_string(),
        report.requests.to_string(),
        report.verdict.orders.to_string(),
        report.verdict.oversold.to_string(),
        report.verdict.duplicates.to_string(),
        report.verdict.lost.to_string(),
        cell(report.orders_per_s),
        cell(report.latency_ordered.p99_ms),
        verdict,
    ]
}
