//! The audit: checks the invariants of every sale from the tables alone, at any time. The load tool's
//! checker goes further: it also compares the answers that clients got.

use serde::Serialize;

use super::store::OrderStore;
use super::store::totals::Totals;
use crate::error::Error;

/// The totals of one sale, and what is wrong with them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The totals.
    #[serde(flatten)]
    pub totals: Totals,
    /// More orders than were put on sale, or, where that is unknown, stock below zero.
    pub oversold: i64,
    /// Orders beyond each user's first.
    pub duplicates: i64,
    /// `issued − stock − orders`: what was taken from the stock and belongs to no order, such as the stock
    /// of a cancelled order that was not returned; or, below zero, what was sold without being taken, or
    /// returned twice. 0 where `issued` is unknown.
    pub unaccounted: i64,
    /// Whether there are orders, but the sale has no row.
    pub no_sale: bool,
    /// Orders on a safe strategy that the unique index skips, so that nothing keeps their users from a second one.
    pub unguarded: i64,
    /// Whether the sale's strategy is one that is meant to sell too much, or twice; then that is no alarm.
    pub expected_to_fail: bool,
}

/// How long returned stock may wait for its delivery to Redis, seconds: it is tried again every few seconds.
const UNDELIVERED_SECONDS: i64 = 60;

impl Finding {
    fn new(totals: Totals) -> Self {
        let Totals {
            strategy,
            issued,
            stock,
            orders,
            buyers,
            ..
        } = &totals;
        let expected_to_fail = strategy
            .parse()
            .is_ok_and(strategies::Strategy::is_unguarded);
        Finding {
            oversold: issued
                .map_or(-stock, |issued| (orders - issued).max(-stock))
                .max(0),
            duplicates: orders - buyers,
            unaccounted: issued.map_or(0, |issued| issued - stock - orders),
            // Each row of a sale names its strategy.
            no_sale: strategy.is_empty() && *orders + totals.cancelled > 0,
            unguarded: if expected_to_fail {
                0
            } else {
                totals.skipped_by_index
            },
            expected_to_fail,
            totals,
        }
    }

    /// Whether an invariant is broken.
    pub fn is_broken(&self) -> bool {
        self.sold_wrongly() || !self.odd_rows().is_empty()
    }

    /// Whether an invariant is broken that the sale's strategy guarantees, or that holds for every strategy.
    pub fn is_violation(&self) -> bool {
        self.sold_wrongly() && !self.expected_to_fail || !self.odd_rows().is_empty()
    }

    fn sold_wrongly(&self) -> bool {
        self.oversold != 0 || self.duplicates != 0 || self.unaccounted != 0
    }

    /// Rows that no strategy writes, in words.
    fn odd_rows(&self) -> Vec<String> {
        let Totals {
            orders,
            cancelled,
            outside_window,
            undelivered,
            ..
        } = &self.totals;
        let age = self.totals.undelivered_seconds;
        let of_no_sale = orders + cancelled;
        let unguarded = self.unguarded;
        [
            (self.no_sale, format!("{of_no_sale} orders of no sale")),
            (
                unguarded > 0,
                format!("{unguarded} orders unguarded by the unique index"),
            ),
            (
                *outside_window > 0,
                format!("{outside_window} orders outside the window"),
            ),
            (
                age > UNDELIVERED_SECONDS,
                format!("{undelivered} rows in the outbox, for up to {age} s"),
            ),
        ]
        .into_iter()
        .filter_map(|(found, text)| found.then_some(text))
        .collect()
    }
}

/// Audits one sale, or all.
pub async fn audit(store: &OrderStore, voucher_id: Option<i64>) -> Result<Vec<Finding>, Error> {
    Ok(store
        .totals(voucher_id)
        .await?
        .into_iter()
        .map(Finding::new)
        .collect())
}

const HEADER: &str = " voucher  strategy              issued    stock   orders cancelled  oversold  duplicates unaccounted  verdict";

/// The findings as a table for people.
pub fn table(findings: &[Finding]) -> String {
    let mut text = format!("{HEADER}\n");
    for finding in findings {
        let odd_rows = finding.odd_rows();
        let verdict = match (finding.is_broken(), finding.is_violation()) {
            (false, _) => "holds".to_owned(),
            (true, false) => "broken, as its strategy is meant to be".to_owned(),
            (true, true) if odd_rows.is_empty() => "VIOLATION".to_owned(),
            (true, true) => format!("VIOLATION: {}", odd_rows.join("; ")),
        };
        let Finding {
            oversold,
            duplicates,
            unaccounted,
            totals,
            ..
        } = finding;
        let Totals {
            voucher_id,
            strategy,
            issued,
            stock,
            orders,
            cancelled,
            ..
        } = totals;
        let issued = issued.map_or("?".to_owned(), |issued| issued.to_string());
        text += &format!(
            "{voucher_id:>8}  {strategy:<19} {issued:>8} {stock:>8} {orders:>8} {cancelled:>9} {oversold:>9} \
             {duplicates:>11} {unaccounted:>11}  {verdict}\n"
        );
    }
    text
}
