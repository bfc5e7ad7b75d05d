//! The table itself: a row for each strategy, in the order in which a learner meets them.

use serde::{Deserialize, Serialize};

use Guarantee::{Never, NeverWhile, Possible, Shown};

/// A text in both languages of the project: English, then Simplified Chinese.
pub type Text = [&'static str; 2];

/// Whether a violation can happen under a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// It never happens.
    Never,
    /// It never happens as long as this condition is met.
    NeverWhile(Text),
    /// It can happen; the law tests (`tests/it/law.rs`) hold a purchase where it does.
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

/// The row of one strategy.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// How it sells, in one sentence.
    pub idea: Text,
    /// Why it holds, or what can go wrong.
    pub why: Text,
    /// More orders than stock.
    pub oversell: Guarantee,
    /// A second order of one user, with one instance running and with several.
    pub second_order: [Guarantee; 2],
    /// An order that was confirmed is lost when an instance is killed.
    pub lost: Guarantee,
}

/// Makes the enum, its names and [`Strategy::row`] from one list, so that none of them can lack an entry.
macro_rules! table {
    ($( $(#[$attribute:meta])* $strategy:ident $name:literal = $row:expr; )+) => {
        /// How a sale sells; chosen when it is published.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(missing_docs)] // the idea of each, in its row
        pub enum Strategy { $( $(#[$attribute])* #[serde(rename = $name)] $strategy, )+ }

        impl Strategy {
            /// Every strategy, in the order in which a learner meets them.
            pub const ALL: [Self; [$( Self::$strategy ),+].len()] = [$( Self::$strategy ),+];

            /// The name on the wire, in metrics and in `tb_seckill_voucher.strategy`.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$strategy => $name, )+ }
            }

            /// Its row of the table.
            pub const fn row(self) -> &'static Row {
                match self { $( Self::$strategy => const { &$row }, )+ }
            }
        }
    };
}

table! {
    Naive "naive" = Row {
        idea: [
            "Read the stock; if there is some, take one without looking again.",
            "先读库存，有货就直接减一，不再检查。",
        ],
        why: [
            "Many buyers read the same stock before anyone writes, and all of them take it. More is sold than \
             there was, and one buyer can order twice.",
            "许多买家在任何人写入之前读到了同一个库存，于是都买走了它。结果超卖，同一买家还可能下两单。",
        ],
        oversell: Shown,
        second_order: [Possible, Possible],
        lost: Never,
    };
    CompareAndSet "compare-and-set" = Row {
        idea: [
            "Take one from the stock only if it is still what was read.",
            "只有库存仍等于刚才读到的值，才减一。",
        ],
        why: [
            "It never oversells, but of a hundred who read the same number, one succeeds; the rest are refused \
             although there is enough. And it guards the stock, not the buyer: a second order gets through.",
            "不会超卖，但一百人读到同一个数字时只有一人成功，其余人明明有货也被拒绝。而且它只保护库存、不管买家：\
             同一人仍可能下第二单。",
        ],
        oversell: Never,
        second_order: [Possible, Possible],
        lost: Never,
    };
    Conditional "conditional" = Row {
        idea: [
            "The database checks and takes in one statement: decrement where there is stock left.",
            "让数据库用一条语句完成检查与扣减：有剩余才减一。",
        ],
        why: [
            "It never oversells. But “has this buyer an order?” is still asked before the order is written: two \
             requests of one buyer both hear “no”.",
            "不会超卖。但“这位买家下过单吗？”仍是在写入订单之前问的：同一买家的两个请求都会得到“没有”。",
        ],
        oversell: Never,
        second_order: [Possible, Possible],
        lost: Never,
    };
    RowLock "row-lock" = Row {
        idea: [
            "Lock the sale's row in the database first, then check, order and count.",
            "先锁住数据库里这场秒杀的那一行，再检查、下单、扣库存。",
        ],
        why: [
            "It holds on any number of nodes, because they share the database. The price: every buyer queues at \
             one row.",
            "无论多少节点都成立，因为它们共用同一个数据库。代价是：所有买家都在一行数据前排队。",
        ],
        oversell: Never,
        second_order: [Never, Never],
        lost: Never,
    };
    LockInTransaction "lock-in-transaction" = Row {
        idea: [
            "A lock per buyer in the node's memory, taken inside the transaction and released before its commit.",
            "在节点内存里对买家加锁，锁在事务之内获得，在提交之前就释放。",
        ],
        why: [
            "Like synchronized inside a @Transactional method: after the release and before the commit, the \
             buyer's next request takes the lock and sees no order yet: two orders, on a single node. A lock must be \
             held until the transaction that it protects has ended.",
            "如同在 @Transactional 方法里使用 synchronized：锁已释放、事务尚未提交时，同一买家的下一个请求拿到锁，\
             却还看不到订单：单个节点就足以产生两个订单。锁必须持有到它所保护的事务结束。",
        ],
        oversell: Never,
        second_order: [Shown, Shown],
        lost: Never,
    };
    ProcessLock "process-lock" = Row {
        idea: [
            "A lock per buyer in each node's own memory; under it, the database checks and takes in one statement.",
            "在每个节点自己的内存里对买家加锁；持锁期间，由数据库用一条语句检查并扣减。",
        ],
        why: [
            "With one node it holds. With two nodes there are two memories, hence two locks for one buyer, and \
             each lets one request through: two orders.",
            "单节点时成立。两个节点就有两块内存，同一买家便有两把锁，每把锁各放行一个请求：于是有了两个订单。",
        ],
        oversell: Never,
        second_order: [Never, Shown],
        lost: Never,
    };
    SetnxUnowned "setnx-unowned" = Row {
        idea: [
            "A lock per buyer in Redis: SET NX with a short lease, and an unconditional DEL on release; under it, the \
             database checks and takes in one statement.",
            "在 Redis 里为每位买家放一把锁：租期很短的 SET NX，释放时直接 DEL，不校验锁是不是自己的；持锁期间，由数据库\
             用一条语句检查并扣减。",
        ],
        why: [
            "When the lease ends in mid-work, a second request gets the lock and works beside the first. The first one's \
             DEL then deletes the second one's lock, and a third works beside the second: two orders, even if the first \
             one's transaction is rolled back. A lock must be renewed while its holder lives, and released by its owner \
             only, in one atomic step.",
            "业务没做完，租期先到，第二个请求就拿到锁，和第一个同时处理。第一个结束时 DEL，误删了第二个的锁，第三个又进来，\
             和第二个同时处理：哪怕第一个的事务已经回滚，也会一人两单。锁要在持有者存活期间续期，并且只能由持有者释放：\
             判断和删除必须是一个原子操作。",
        ],
        oversell: Never,
        second_order: [Possible, Shown],
        lost: Never,
    };
    SetnxLock "setnx-lock" = Row {
        idea: [
            "A lock per buyer in Redis, which all nodes share: SET NX with an expiry; under it, the database checks and \
             takes in one statement.",
            "在所有节点共用的 Redis 里为每位买家放一把锁：带过期时间的 SET NX；持锁期间，由数据库用一条语句检查并扣减。",
        ],
        why: [
            "It holds as long as the lease outlives the work. A holder that is paused too long loses it without \
             knowing; then the database’s unique index has the last word.",
            "只要租期长于业务就成立。持有者若停顿太久，会在不知情时失去锁；这时由数据库的唯一索引作最后裁决。",
        ],
        oversell: Never,
        second_order: [Never, NeverWhile(["the lease outlives the work", "租期长于业务"])],
        lost: Never,
    };
    #[default]
    ReentrantLock "reentrant-lock" = Row {
        idea: [
            "A Redisson-compatible lock per buyer in Redis, renewed while its holder lives; under it, the database checks \
             and takes in one statement.",
            "在 Redis 里为每位买家放一把与 Redisson 兼容的锁，持有者存活期间自动续期；持锁期间，由数据库用一条语句检查并扣减。",
        ],
        why: [
            "Whichever node a request reaches, it meets the same lock: the second request is turned away. Even \
             if Redis forgets, the database’s unique index refuses the second order.",
            "无论请求到达哪个节点，遇到的都是同一把锁：第二个请求会被挡回。即使 Redis 丢了数据，数据库的唯一索引也会\
             拒绝第二个订单。",
        ],
        oversell: Never,
        second_order: [Never, Never],
        lost: Never,
    };
    MemoryQueue "memory-queue" = Row {
        idea: [
            "A script in Redis admits buyers, who are told yes at once; a worker of the node writes their orders later, from \
             a queue in its memory.",
            "由 Redis 中的脚本放行买家，当场就答复成功；节点里的一个工作线程随后从内存里的阻塞队列逐个写入订单。",
        ],
        why: [
            "One script decides, so nothing is oversold and nobody gets two. But yes is said before the order is \
             written: when the node is killed, what still waits in its memory is gone, and nobody knows of it. Redis \
             even goes on refusing these buyers. The queue must outlive the node, or yes must wait for the commit.",
            "资格由一个脚本判断，所以不会超卖，也不会一人两单。可是订单还没写入就答复了成功：节点一旦被强制终止，\
             还在内存里排队的订单就全没了，没有人知道，Redis 还会继续拒绝这些买家。队列必须比节点活得久，\
             否则就要等提交之后再答复成功。",
        ],
        oversell: Never,
        second_order: [Never, Never],
        lost: Shown,
    };
    Stream "stream" = Row {
        idea: [
            "A script in Redis admits buyers; a consumer group writes their orders afterwards.",
            "由 Redis 中的脚本放行买家，随后由消费者组写入订单。",
        ],
        why: [
            "The fastest answer: “admitted” comes before the order. The database checks each order all the same: \
             a script that admits too many makes refusals, never an oversell.",
            "响应最快：“已抢到名额”早于订单。数据库仍会检查每个订单：放行过多只会产生拒绝，绝不会超卖。",
        ],
        oversell: Never,
        second_order: [Never, Never],
        lost: Never,
    };
    GroupCommit "group-commit" = Row {
        idea: [
            "Purchases that arrive while a commit runs share the next one: many orders, one wait for the disk.",
            "一次提交进行期间到达的抢购，合并进下一次提交：多个订单只等一次磁盘。",
        ],
        why: [
            "It needs no lock: the database’s unique index drops second orders, and the stock falls by the \
             number really inserted. Each buyer is answered after the commit.",
            "不需要锁：第二个订单由数据库唯一索引丢弃，库存按真正插入的数量减少。每位买家都在提交之后才得到响应。",
        ],
        oversell: Never,
        second_order: [Never, Never],
        lost: Never,
    };
    UnitRows "unit-rows" = Row {
        idea: [
            "The stock is one row for each unit, at most 10,000; a purchase takes a row that nobody else has locked \
             (SKIP LOCKED).",
            "每件库存一行，至多 10,000 行；抢购时取走一行没有被别人锁住的（SKIP LOCKED）。",
        ],
        why: [
            "Buyers do not queue at one row, and no row is sold twice; the unique index drops second orders.",
            "买家不再排队等同一行，每一行也只卖一次；第二个订单由唯一索引丢弃。",
        ],
        oversell: Never,
        second_order: [Never, Never],
        lost: Never,
    };
}
