//! Runs one sale, and reports its verdict.

use tokio_util::sync::CancellationToken;
use workload::{
    Error,
    burst::{self, BurstOptions, Report},
    latency,
    live::Live,
};

use crate::report::{Check, Checked, Table};

/// Runs a burst to its end or until `stop`; returns its report, and all that was seen.
///
/// # Errors
/// An [`Error`] of the set-up.
pub async fn run(
    mut options: BurstOptions,
    stop: &CancellationToken,
) -> Result<(Checked, Report), Error> {
    options.live = Live::stopped_by(stop).into();
    let sale = burst::run(&options).await?;
    let mut report = report(&sale);
    if stop.is_cancelled() {
        report = report.cut_short();
    }
    Ok((report, sale))
}

/// The report of a burst.
fn report(sale: &Report) -> Checked {
    let Report {
        strategy,
        buyers,
        tries,
        stock,
        connections,
        verdict,
        ..
    } = sale;
    let mut notes = format!(
        "{} requests in {:.2} s: {:.0} requests/s, {:.0} orders/s until the last order",
        sale.requests, sale.elapsed_s, sale.requests_per_s, sale.orders_per_s
    );
    if sale.unknown > 0 {
        let unknown = sale.unknown;
        let orders = verdict.unacknowledged;
        notes +=
            &format!("\n{unknown} outcomes unknown to their buyers; {orders} of them are orders.");
    }
    for example in &verdict.examples {
        notes += &format!("\n  {example}");
    }
    let latencies = [
        ("all requests", &sale.latency),
        ("orders", &sale.latency_ordered),
    ];
    let latencies = latencies.map(|(name, latency)| latency::row(name, latency));
    let replies = sale
        .replies
        .iter()
        .map(|(label, count)| vec![label.clone(), count.to_string()]);
    Checked {
        scenario: "burst",
        heading: format!(
            "{strategy}: {buyers} buyers x {tries} tries for {stock} vouchers, {connections} connections to {}",
            sale.targets.join(", ")
        ),
        figures: vec![
            Table::new(&latency::COLUMNS, latencies.into()),
            Table::new(&["reply", ">count"], replies.collect()),
        ],
        notes,
        checks: [
            checks(sale),
            vec![Check::shown("stock left", verdict.stock_left)],
        ]
        .concat(),
    }
}

/// The checks of a sale: its invariants; and that it had orders and its tables stood still, without which nothing is proved.
pub fn checks(sale: &Report) -> Vec<Check> {
    let orders = sale.verdict.orders;
    let tables_unchanged = sale.tables_unchanged;
    let invariants = sale.verdict.invariants().into_iter();
    let kept = invariants.map(|(name, count)| Check::new(name, count, 0, count == 0));
    let shown = [
        Check::new(
            "orders",
            orders,
            "at least 1",
            orders > 0 || sale.stock == 0,
        )
        .needed(),
        Check::new(
            "tables that stood still",
            tables_unchanged,
            true,
            tables_unchanged,
        )
        .needed(),
    ];
    kept.chain(shown).collect()
}
