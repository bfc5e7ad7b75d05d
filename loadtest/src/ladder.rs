//! The demonstration: every strategy of the ladder, on one instance and on several.
//!
//! Buyers are signed in once and serve all sales. There are at least three times as many buyers as
//! vouchers, so that a safe strategy sells out even where many a buyer is refused for a busy lock. A
//! race that has to show itself and did not gets a fresh sale, [`ATTEMPTS`] in all, and each
//! repetition is reported. Buyers who are told to try again do, where a safe strategy would otherwise
//! end unsold.

use std::{fmt, sync::Arc};

use serde::Serialize;
use workload::ladder::Strategy;

use crate::report::{self, Outcome};
use workload::{
    Error, Target,
    burst::{self, BurstOptions, Report},
    buyers::Buyer,
    checker::Verdict,
    conformance::Conformance,
    live::Live,
    order_rows::OrderRows,
    table::render,
};

/// Sales a race is given to show itself.
pub const ATTEMPTS: u32 = 4;

/// How often the buyers come again to a sale that had no time for them.
pub const RETURNS: u32 = 5;

/// What a ladder that stands as promised has shown.
const MEANING: &str = "\
Reading the stock and taking one later sells what is not there. Checking it in the same statement stops
that, but not a second order of the same buyer.
A lock that is released before the commit lets second orders through, on one instance as on two. So does
a lock whose lease expires too early.
A lock inside the process stops the second order on one instance only: behind a proxy, the same buyer
also reaches the other instance, which has a lock of its own.
A lock that all instances share, a row of the database or a key in Redis, holds on two as on one, and
every voucher is sold exactly once.
A script in Redis can admit before the database commits: the answer is \"pending\", and a consumer makes
the orders.
`group-commit` needs no lock: many buyers share a commit, and the unique index refuses second orders.
`unit-rows` needs no lock either: each buyer claims a different row.
";

/// A ladder to climb.
#[derive(Debug, Clone)]
pub struct LadderOptions {
    /// What all sales have in common. Its targets and strategy are set by the ladder.
    pub burst: BurstOptions,
    /// One instance alone.
    pub one: Target,
    /// The proxy before several instances.
    pub two: Target,
    /// How many are behind it.
    pub instances: u32,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The strategy.
    pub strategy: &'static str,
    /// On how many instances.
    pub instances: u32,
    /// How many were on sale.
    pub stock: u32,
    /// Attempts made.
    pub requests: u64,
    /// Attempts per second.
    pub requests_per_s: f64,
    /// Orders per second; `None` where the strategy breaks, for what it sells is not worth counting.
    pub orders_per_s: Option<f64>,
    /// 99 of 100 successes were answered within this, in milliseconds; likewise.
    pub p99_ordered_ms: Option<f64>,
    /// The sale's voucher.
    pub voucher_id: u64,
    /// How many sales it took.
    pub sales: u32,
    /// The checker's verdict on the last of them.
    pub verdict: Verdict,
    /// That verdict compared to the strategy's guarantees.
    pub check: Conformance,
}

/// The whole ladder.
#[derive(Debug, Clone, Serialize)]
pub struct Climb {
    /// Always `ladder`.
    pub scenario: &'static str,
    /// Buyers in each sale.
    pub buyers: usize,
    /// Attempts of each.
    pub tries: u32,
    /// All lines, in the order of the ladder.
    pub lines: Vec<Line>,
    /// Whether every strategy kept its guarantees.
    pub as_promised: bool,
}

/// Runs every strategy on one instance and on several.
///
/// # Errors
/// A [`Error`] of the set-up; a strategy that breaks its guarantees is in the [`Climb`], not an error.
pub async fn run(options: &LadderOptions) -> Result<Climb, Error> {
    let progress = options.burst.progress;
    let (size, stock) = (options.burst.buyers.size(), options.burst.stock);
    if size < 3 * stock as usize {
        return Err(Error::Usage(format!(
            "{size} buyers for {stock} vouchers: a ladder needs three times as many buyers as \
             vouchers, or a sale may end unsold for lack of demand"
        )));
    }
    let order_rows = OrderRows::open(&options.burst.access.database_url).await?;
    let mut shared = options.burst.clone();
    shared.targets = vec![options.two.clone()];
    let buyers = burst::prepare(&shared).await?;
    let mut lines = Vec::with_capacity(2 * Strategy::ALL.len());
    for strategy in Strategy::ALL {
        for (instances, target) in [(1, &options.one), (options.instances, &options.two)] {
            let mut burst = shared.clone();
            burst.strategy = strategy.name().to_owned();
            burst.targets = vec![target.clone()];
            let mut sales = 0;
            let line = loop {
                let report =
                    sell(&mut burst, &order_rows, &buyers, strategy.holds_on(instances)).await?;
                sales += 1;
                let line = line(strategy, instances, sales, report);
                if let Conformance::DidNotShow(what) = &line.check
                    && sales < ATTEMPTS
                {
                    progress.say(&format!("  {what} did not show this time: a fresh sale"));
                    continue;
                }
                break line;
            };
            let on = if instances == 1 { "instance" } else { "instances" };
            progress.say(&format!(
                "  {} on {instances} {on}: {}",
                strategy.name(),
                line.check.text()
            ));
            lines.push(line);
        }
    }
    let as_promised = lines.iter().all(|line| line.check.is_as_promised());
    let (scenario, tries) = ("ladder", shared.tries);
    Ok(Climb { scenario, buyers: buyers.len(), tries, lines, as_promised })
}

/// Runs the buyers on a new sale. Where that should sell out and did not, because many were answered "try again", all come
/// again, up to [`RETURNS`] times: a busy machine sheds load, which breaks no promise.
async fn sell(
    burst: &mut BurstOptions,
    order_rows: &OrderRows,
    buyers: &Arc<[Buyer]>,
    should_sell_out: bool,
) -> Result<Report, Error> {
    burst.live = Arc::new(Live::default());
    let mut report = burst::sale(burst, order_rows, buyers.clone()).await?;
    for _ in 0..RETURNS {
        let left = report.verdict.stock_left;
        if !(should_sell_out && report.clean && left > 0 && report.met_trouble()) {
            break;
        }
        burst.progress.say(&format!("  {left} left, and buyers were told to try again: they do"));
        burst.live = Arc::new(Live::default());
        let again = burst::on(report.voucher_id, burst, order_rows, buyers.clone()).await?;
        report = report.followed_by(again);
    }
    Ok(report)
}

fn line(strategy: Strategy, instances: u32, sales: u32, report: Report) -> Line {
    let sold_out = report.verdict.stock_left == 0;
    let check = if report.tables_unchanged {
        Conformance::of(strategy, instances, &report.verdict, sold_out)
    } else {
        Conformance::Violation("the tables never stood still".to_owned())
    };
    let safe = strategy.holds_on(instances);
    Line {
        strategy: strategy.name(),
        instances,
        stock: report.stock,
        requests: report.requests,
        requests_per_s: report.requests_per_s,
        orders_per_s: safe.then_some(report.orders_per_s),
        p99_ordered_ms: safe.then_some(report.latency_ordered.p99_ms),
        voucher_id: report.voucher_id,
        sales,
        verdict: report.verdict,
        check,
    }
}

impl report::Report for Climb {
    fn outcome(&self) -> Outcome {
        if self.as_promised { Outcome::Clean } else { Outcome::Violated }
    }
}

impl fmt::Display for Climb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nEach sale: {} buyers, {} simultaneous tries each. The p99 is that of the successes.\n",
            self.buyers, self.tries
        )?;
        let columns = [
            "strategy",
            ">instances",
            ">stock",
            ">requests",
            ">orders",
            ">oversold",
            ">duplicates",
            ">orders/s",
            ">p99 ms",
            "verdict",
        ];
        let rows: Vec<_> = self.lines.iter().map(cells).collect();
        writeln!(f, "{}", render(&columns, &rows))?;
        if self.as_promised {
            f.write_str(MEANING)
        } else {
            let failed: Vec<_> = self
                .lines
                .iter()
                .filter(|line| !line.check.is_as_promised())
                .map(|line| format!("{} on {}", line.strategy, line.instances))
                .collect();
            writeln!(f, "NOT as promised: {}.", failed.join(", "))?;
            for line in self.lines.iter().filter(|line| !line.check.is_as_promised()) {
                for example in &line.verdict.examples {
                    writeln!(f, "  {} (voucher {}): {example}", line.strategy, line.voucher_id)?;
                }
            }
            Ok(())
        }
    }
}

fn cells(line: &Line) -> Vec<String> {
    let mut verdict = line.check.text();
    // What compare-and-set pays for its safety: losers of a race go away, and the stock stays.
    if line.verdict.stock_left > 0 && line.check.is_as_promised() {
        verdict.push_str(&format!("; {} unsold", line.verdict.stock_left));
    }
    if line.sales > 1 {
        verdict.push_str(&format!(" (sale {} of {ATTEMPTS})", line.sales));
    }
    vec![
        line.strategy.to_owned(),
        line.instances.to_string(),
        line.stock.to_string(),
        line.requests.to_string(),
        line.verdict.orders.to_string(),
        line.verdict.oversold.to_string(),
        line.verdict.duplicates.to_string(),
        line.orders_per_s.map_or("–".to_owned(), |rate| format!("{rate:.0}")),
        line.p99_ordered_ms.map_or("–".to_owned(), |ms| format!("{ms:.0}")),
        verdict,
    ]
}
