//! The strategies: one table with the name, the idea and the guarantees of each way to sell.
//!
//! The service, the load tool, the lab, the tests and the documents all read this table. How a strategy sells
//! is in the service's `src/order/strategy/`. To add one, add a row to `table.rs`; the compiler then asks
//! for its code, and `UPDATE=1 cargo test -p seckill-workload` writes the documents' tables.

use std::{fmt, str::FromStr, time::Duration};

mod table;

pub use table::{Guarantee, Row, Strategy, Text};

/// The lease of `setnx-unowned`: shorter than a purchase often takes, so that the demonstration needs no pause of a process.
/// A longer lease makes the same violation rarer.
pub const SETNX_UNOWNED_LEASE: Duration = Duration::from_millis(3);

impl Strategy {
    /// What is guaranteed about a second order of one user on so many instances.
    pub const fn second_order_on(self, instances: u32) -> Guarantee {
        self.row().second_order[(instances > 1) as usize]
    }

    /// Whether no violation can happen on so many instances while none of them is killed.
    pub const fn holds_on(self, instances: u32) -> bool {
        !self.row().oversell.can_break() && !self.second_order_on(instances).can_break()
    }

    /// Whether an instance that is killed takes orders with it that were confirmed. Then a success is told before the order
    /// is committed.
    pub const fn can_lose(self) -> bool {
        self.row().lost.can_break()
    }

    /// Whether the strategy is meant to fail somewhere. Such sales need `--lab`.
    pub const fn is_unsafe(self) -> bool {
        !self.holds_on(1) || !self.holds_on(2) || self.can_lose()
    }

    /// Whether its orders are exempt from the database's own unique index, which would hide its failure: second orders.
    pub const fn is_unguarded(self) -> bool {
        self.second_order_on(1).can_break() || self.second_order_on(2).can_break()
    }

    /// Whether a success is answered as pending: the buyer is admitted, and the order is committed later.
    pub const fn is_deferred(self) -> bool {
        matches!(self, Self::Stream)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a strategy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such strategy; there are {}", Strategy::ALL.map(Strategy::name).join(", "))]
pub struct UnknownStrategy;

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.name() == text)
            .ok_or(UnknownStrategy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.name());
        }
        assert_eq!("Naive".parse::<Strategy>(), Err(UnknownStrategy));
        assert_eq!(Strategy::default(), Strategy::ReentrantLock);
    }
}
