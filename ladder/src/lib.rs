//! The ladder of strategies: one table with the name, the idea and the guarantees of each way to sell.
//!
//! The service, the load tool, the lab, the tests and the documents all read this table. How a strategy sells
//! is in the service's `src/order/strategy/`. To add one, add a row to [`table`](Strategy); the compiler then asks
//! for its code, and `UPDATE=1 cargo test -p seckill-ladder` writes the documents' tables.

use std::{error::Error, fmt, str::FromStr};

pub mod markdown;

/// A text in both languages of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// English.
    pub en: &'static str,
    /// Simplified Chinese.
    pub zh: &'static str,
}

impl Text {
    /// English, then Chinese: the form in which the pages keep their texts.
    pub const fn pair(self) -> [&'static str; 2] {
        [self.en, self.zh]
    }
}

const fn text(en: &'static str, zh: &'static str) -> Text {
    Text { en, zh }
}

/// Whether a violation can happen under a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// It never happens.
    Never,
    /// It never happens as long as this condition is met.
    NeverWhile(Text),
    /// It can happen; the law tests (`tests/it/law.rs`) repeat sales until they see it.
    Possible,
    /// It can happen, and the demonstration (`loadtest ladder`, `./dev demo`) insists on showing it, too.
    Shown,
}

impl Guarantee {
    /// Whether the violation can happen.
    pub const fn can_break(self) -> bool {
        matches!(self, Self::Possible | Self::Shown)
    }
}

/// What a successful reply to a purchase means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// The order is committed.
    Committed,
    /// The buyer is admitted, and the order is committed or refused later.
    Admitted,
}

/// The row of one strategy.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name on the wire, in metrics and in `tb_seckill_voucher.strategy`.
    pub name: &'static str,
    /// How it sells, in one sentence.
    pub idea: Text,
    /// Why it holds, or what can go wrong.
    pub why: Text,
    /// More orders than stock.
    pub oversell: Guarantee,
    /// A second order of one user, with one instance running.
    pub second_order_on_one_node: Guarantee,
    /// A second order of one user, with several instances running.
    pub second_order_on_two_nodes: Guarantee,
    /// What a successful reply means.
    pub success: Success,
}

/// Makes the enum, [`Strategy::ALL`] and [`Strategy::row`] of one list, so that none can lack an entry.
macro_rules! table {
    ($( $(#[$attribute:meta])* $strategy:ident = $row:expr; )+) => {
        /// How a sale sells; chosen when it is published.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum Strategy { $( $(#[$attribute])* $strategy, )+ }

        impl Strategy {
            /// Every strategy, in the order in which a learner meets them.
            pub const ALL: [Self; [$( Self::$strategy ),+].len()] = [$( Self::$strategy ),+];

            /// Its row of the table.
            pub const fn row(self) -> &'static Row {
                match self { $( Self::$strategy => const { &$row }, )+ }
            }
        }
    };
}

use Guarantee::{Never, NeverWhile, Possible, Shown};

table! {
    /// Read the stock, then decrement it.
    Naive = Row {
        name: "naive",
        idea: text(
            "Read the stock, then write the new stock; nobody is kept out in between.",
            "先读库存，再写回新库存；两步之间不阻止任何人。",
        ),
        why: text(
            "Many buyers read the same stock before anyone writes, and all of them take it. More is sold than \
             there was, and one buyer can order twice.",
            "许多买家在任何人写入之前读到了同一个库存，于是都买走了它。卖出的比拥有的多，同一买家还可能下两单。",
        ),
        oversell: Shown,
        second_order_on_one_node: Possible,
        second_order_on_two_nodes: Possible,
        success: Success::Committed,
    };
    /// Decrement where the stock is what was read.
    CompareAndSet = Row {
        name: "compare-and-set",
        idea: text(
            "Take one from the stock only if it is still what was read.",
            "只有库存仍等于刚才读到的值，才减一。",
        ),
        why: text(
            "It never oversells, but of a hundred who read the same number one succeeds; the rest are refused \
             though there is enough. And it guards the stock, not the buyer: a second order gets through.",
            "不会超卖，但一百人读到同一个数字时只有一人成功，其余人明明有货也被拒绝。而且它只保护库存、不管买家：\
             同一人仍可能下第二单。",
        ),
        oversell: Never,
        second_order_on_one_node: Possible,
        second_order_on_two_nodes: Possible,
        success: Success::Committed,
    };
    /// Decrement where there is stock left.
    Conditional = Row {
        name: "conditional",
        idea: text(
            "The database checks and takes in one statement: decrement where there is stock left.",
            "让数据库用一条语句完成检查与扣减：有剩余才减一。",
        ),
        why: text(
            "It never oversells. But “has this buyer an order?” is still asked before the order is written: two \
             requests of one buyer both hear “no”.",
            "不会超卖。但“这位买家下过单吗？”仍是在写入订单之前问的：同一买家的两个请求都会得到“没有”。",
        ),
        oversell: Never,
        second_order_on_one_node: Possible,
        second_order_on_two_nodes: Possible,
        success: Success::Committed,
    };
    /// Lock the sale's row first.
    RowLock = Row {
        name: "row-lock",
        idea: text(
            "Lock the sale's row in the database first, then check, order and count.",
            "先锁住数据库里这场秒杀的那一行，再检查、下单、扣库存。",
        ),
        why: text(
            "It holds on any number of nodes, because they share the database. The price: every buyer queues at \
             one row.",
            "无论多少节点都成立，因为它们共用同一个数据库。代价是：所有买家都在一行数据前排队。",
        ),
        oversell: Never,
        second_order_on_one_node: Never,
        second_order_on_two_nodes: Never,
        success: Success::Committed,
    };
    /// Conditional, under a per-user lock inside the process.
    ProcessLock = Row {
        name: "process-lock",
        idea: text(
            "As conditional, under a lock per buyer in each node's own memory.",
            "同 conditional，另在每个节点自己的内存里对买家加锁。",
        ),
        why: text(
            "With one node it holds. With two nodes there are two memories, hence two locks for one buyer, and \
             each lets one request through: two orders.",
            "单节点时成立。两个节点就有两块内存，同一买家便有两把锁，每把锁各放行一个请求：于是有了两个订单。",
        ),
        oversell: Never,
        second_order_on_one_node: Never,
        second_order_on_two_nodes: Shown,
        success: Success::Committed,
    };
    /// Conditional, under a per-user SET NX lock in Redis.
    SetnxLock = Row {
        name: "setnx-lock",
        idea: text(
            "As conditional, under a lock per buyer in Redis, which all nodes share: SET NX with an expiry.",
            "同 conditional，另在所有节点共用的 Redis 里为每位买家放一把锁：带过期时间的 SET NX。",
        ),
        why: text(
            "It holds as long as the lease outlives the work. A holder that is paused too long loses it without \
             knowing; then the database’s unique index has the last word.",
            "只要租期长过业务就成立。持有者若停顿太久，会在不知情时失去锁；这时由数据库的唯一索引作最后裁决。",
        ),
        oversell: Never,
        second_order_on_one_node: Never,
        second_order_on_two_nodes: NeverWhile(text("the lease outlives the work", "租期长过业务")),
        success: Success::Committed,
    };
    /// Conditional, under a per-user Redisson-compatible lock in Redis. The default.
    #[default]
    ReentrantLock = Row {
        name: "reentrant-lock",
        idea: text(
            "As conditional, under a Redisson-compatible lock per buyer in Redis, renewed while its holder lives.",
            "同 conditional，另在 Redis 里为每位买家放一把与 Redisson 兼容的锁，持有者存活期间自动续期。",
        ),
        why: text(
            "Whichever node a request reaches, it meets the same lock: the second request is turned away. Even \
             if Redis forgets, the database’s unique index refuses the second order.",
            "无论请求到达哪个节点，遇到的都是同一把锁：第二个请求会被挡回。即使 Redis 丢了数据，数据库的唯一索引也会\
             拒绝第二个订单。",
        ),
        oversell: Never,
        second_order_on_one_node: Never,
        second_order_on_two_nodes: Never,
        success: Success::Committed,
    };
    /// A script in Redis admits, a consumer group commits.
    Stream = Row {
        name: "stream",
        idea: text(
            "A script in Redis admits buyers; a consumer group writes their orders afterwards.",
            "由 Redis 中的脚本放行买家，随后由消费者组写入订单。",
        ),
        why: text(
            "The fastest answer: “admitted” comes before the order. The database checks each order all the same: \
             a script that admits too many makes refusals, never an oversell.",
            "答复最快：“已抢到名额”早于订单。数据库仍会检查每个订单：放行过多只会产生拒绝，绝不会超卖。",
        ),
        oversell: Never,
        second_order_on_one_node: Never,
        second_order_on_two_nodes: Never,
        success: Success::Admitted,
    };
    /// Purchases that arrive while a commit runs share the next one.
    GroupCommit = Row {
        name: "group-commit",
        idea: text(
            "Purchases that arrive while a commit runs share the next one: many orders, one wait for the disk.",
            "一次提交进行期间到达的抢购，合并进下一次提交：多个订单只等一次磁盘。",
        ),
        why: text(
            "It needs no lock: the database’s unique index drops second orders, and the stock falls by the \
             number really inserted. Each buyer is answered after the commit.",
            "不需要锁：第二个订单由数据库唯一索引丢弃，库存按真正插入的数量减少。每位买家都在提交之后才得到答复。",
        ),
        oversell: Never,
        second_order_on_one_node: Never,
        second_order_on_two_nodes: Never,
        success: Success::Committed,
    };
}

impl Strategy {
    /// The name on the wire, in metrics and in `tb_seckill_voucher.strategy`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// What is guaranteed about a second order of one user on so many instances.
    pub const fn second_order_on(self, instances: u32) -> Guarantee {
        let row = self.row();
        if instances > 1 { row.second_order_on_two_nodes } else { row.second_order_on_one_node }
    }

    /// Whether no violation can happen on so many instances.
    pub const fn holds_on(self, instances: u32) -> bool {
        !self.row().oversell.can_break() && !self.second_order_on(instances).can_break()
    }

    /// Whether the strategy is meant to fail somewhere. Such sales need `--lab`, and their orders are exempt from
    /// the database's own unique index, which would otherwise hide the failure.
    pub const fn is_unsafe(self) -> bool {
        !self.holds_on(1) || !self.holds_on(2)
    }

    /// Whether a success means that the buyer is admitted and the order is committed later.
    pub const fn is_deferred(self) -> bool {
        matches!(self.row().success, Success::Admitted)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a strategy.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownStrategy;

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no such strategy; there are {}", Strategy::ALL.map(Strategy::name).join(", "))
    }
}

impl Error for UnknownStrategy {}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == text).ok_or(UnknownStrategy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        assert_eq!("Naive".parse::<Strategy>(), Err(UnknownStrategy));
        assert_eq!(Strategy::default(), Strategy::ReentrantLock);
    }

    #[test]
    fn a_second_node_never_makes_a_strategy_safer() {
        for strategy in Strategy::ALL {
            assert!(strategy.holds_on(1) || !strategy.holds_on(2), "{strategy}");
        }
    }
}
