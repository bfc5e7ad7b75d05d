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
    /// Whether the sale's strategy is one that is meant to fail; then its findings are no alarm.
    pub expected_to_fail: bool,
}

impl Finding {
    fn new(totals: Totals) -> Self {
        let Totals { strategy, issued, stock, orders, buyers, .. } = &totals;
        Finding {
            oversold: issued.map_or(-stock, |issued| (orders - issued).max(-stock)).max(0),
            duplicates: orders - buyers,
            unaccounted: issued.map_or(0, |issued| issued - stock - orders),
            expected_to_fail: strategy.parse().is_ok_and(ladder::Strategy::is_unsafe),
            totals,
        }
    }

    /// Whether an invariant is broken.
    pub fn is_broken(&self) -> bool {
        self.oversold != 0 || self.duplicates != 0 || self.unaccounted != 0
    }

    /// Whether an invariant is broken that the sale's strategy guarantees.
    pub fn is_violation(&self) -> bool {
        self.is_broken() && !self.expected_to_fail
    }
}

/// Audits one sale, or all.
pub async fn audit(store: &OrderStore, voucher_id: Option<i64>) -> Result<Vec<Finding>, Error> {
    Ok(store.totals(voucher_id).await?.into_iter().map(Finding::new).collect())
}

/// The findings as a table for people.
pub fn table(findings: &[Finding]) -> String {
    let mut text = format!(
        "{:>8}  {:<16} {:>8} {:>8} {:>8} {:>9} {:>9} {:>11} {:>11}  verdict\n",
        "voucher",
        "strategy",
        "issued",
        "stock",
        "orders",
        "cancelled",
        "oversold",
        "duplicates",
        "unaccounted"
    );
    for finding in findings {
        let verdict = match (finding.is_broken(), finding.expected_to_fail) {
            (false, _) => "holds",
            (true, true) => "broken, as its strategy is meant to be",
            (true, false) => "VIOLATION",
        };
        let issued = finding.totals.issued.map_or("?".to_owned(), |issued| issued.to_string());
        text += &format!(
            "{:>8}  {:<16} {:>8} {:>8} {:>8} {:>9} {:>9} {:>11} {:>11}  {verdict}\n",
            finding.totals.voucher_id,
            finding.totals.strategy,
            issued,
            finding.totals.stock,
            finding.totals.orders,
            finding.totals.cancelled,
            finding.oversold,
            finding.duplicates,
            finding.unaccounted,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(issued: Option<i64>, stock: i64, orders: i64, buyers: i64) -> Finding {
        let strategy = "reentrant-lock".to_owned();
        let (voucher_id, cancelled) = (1, 0);
        Finding::new(Totals { voucher_id, strategy, issued, stock, orders, cancelled, buyers })
    }

    #[test]
    fn a_correct_sale_passes() {
        assert!(!finding(Some(10), 4, 6, 6).is_broken());
        assert!(!finding(None, 4, 6, 6).is_broken());
    }

    #[test]
    fn each_broken_invariant_is_found() {
        assert_eq!(finding(Some(10), 0, 12, 12).oversold, 2);
        assert_eq!(finding(None, -3, 12, 12).oversold, 3);
        assert_eq!(finding(Some(10), 4, 6, 5).duplicates, 1);
        assert_eq!(finding(Some(10), 3, 6, 6).unaccounted, 1);
        assert_eq!(finding(Some(10), 5, 6, 6).unaccounted, -1);
    }

    #[test]
    fn a_strategy_that_is_meant_to_fail_is_no_violation() {
        let mut finding = finding(Some(10), -2, 12, 12);
        assert!(finding.is_violation());
        finding.expected_to_fail = true;
        assert!(finding.is_broken() && !finding.is_violation());
    }
}
