//! The ladder of strategies, and what each guarantees. The table is documentation and test data: the
//! law tests run every rung against its row. How a rung sells is in `order/strategy/`.

use std::fmt;
use std::str::FromStr;

use utoipa::ToSchema;

/// How a sale sells; chosen when it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ToSchema)]
#[schema(rename_all = "kebab-case")]
pub enum Strategy {
    /// Read the stock, then decrement it.
    Naive,
    /// Decrement where the stock is what was read.
    CompareAndSet,
    /// Decrement where there is stock left.
    Conditional,
    /// Lock the sale's row first.
    RowLock,
    /// Conditional, under a per-user lock inside the process.
    ProcessLock,
    /// Conditional, under a per-user SET NX lock in Redis.
    SetnxLock,
    /// Conditional, under a per-user Redisson-compatible lock in Redis. The default.
    ReentrantLock,
    /// A script in Redis admits, a consumer group commits.
    Stream,
    /// Purchases that arrive while a commit runs share the next one.
    GroupCommit,
}

/// What can go wrong under a strategy. `false` means never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Risks {
    /// More orders than stock.
    pub oversell: bool,
    /// A second order of one user, with one instance running.
    pub second_order_on_one_node: bool,
    /// A second order of one user, with several instances running.
    pub second_order_on_two_nodes: bool,
}

impl Strategy {
    /// Every rung, in the order a learner meets them.
    pub const ALL: [Strategy; 9] = [
        Strategy::Naive,
        Strategy::CompareAndSet,
        Strategy::Conditional,
        Strategy::RowLock,
        Strategy::ProcessLock,
        Strategy::SetnxLock,
        Strategy::ReentrantLock,
        Strategy::Stream,
        Strategy::GroupCommit,
    ];

    /// The name on the wire and in `tb_seckill_voucher.strategy`.
    pub const fn name(self) -> &'static str {
        match self {
            Strategy::Naive => "naive",
            Strategy::CompareAndSet => "compare-and-set",
            Strategy::Conditional => "conditional",
            Strategy::RowLock => "row-lock",
            Strategy::ProcessLock => "process-lock",
            Strategy::SetnxLock => "setnx-lock",
            Strategy::ReentrantLock => "reentrant-lock",
            Strategy::Stream => "stream",
            Strategy::GroupCommit => "group-commit",
        }
    }

    /// The table of guarantees.
    pub const fn risks(self) -> Risks {
        let (oversell, one, two) = match self {
            Strategy::Naive => (true, true, true),
            Strategy::CompareAndSet | Strategy::Conditional => (false, true, true),
            Strategy::ProcessLock => (false, false, true),
            Strategy::RowLock
            | Strategy::SetnxLock
            | Strategy::ReentrantLock
            | Strategy::Stream
            | Strategy::GroupCommit => (false, false, false),
        };
        Risks { oversell, second_order_on_one_node: one, second_order_on_two_nodes: two }
    }

    /// Whether a success means that a place is held and the order is committed later.
    pub const fn is_deferred(self) -> bool {
        matches!(self, Strategy::Stream)
    }

    /// Whether the strategy is meant to fail somewhere. Such sales need `--lab`, and their orders are
    /// exempt from the database's own unique index, which would otherwise hide the failure.
    pub const fn is_unsafe(self) -> bool {
        let risks = self.risks();
        risks.oversell || risks.second_order_on_one_node || risks.second_order_on_two_nodes
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no strategy.
#[derive(Debug, PartialEq)]
pub struct UnknownStrategy;

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL.into_iter().find(|rung| rung.name() == text).ok_or(UnknownStrategy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for rung in Strategy::ALL {
            assert_eq!(rung.name().parse(), Ok(rung));
        }
        assert_eq!("Naive".parse::<Strategy>(), Err(UnknownStrategy));
    }
}
