//! Names of the Redis keys of the sales and of the stream of orders, in one of two styles.
//!
//! - **default**: the names that Java nodes share, `stream.orders` and `seckill:stock:17`.
//! - **cluster**: on a Redis Cluster a script's keys must share a slot. Sales are divided into shards, voucher id modulo
//!   their number, and the shard in braces, which alone is hashed, is in the name of every key that a sale's scripts touch:
//!   `stream.orders:{3}`, `seckill:stock:{3}:17`. Each shard is a stream of its own.
//!
//! Every other key is alone in its commands, or contains in braces the name of the key that it accompanies
//! (`{login:code:13800138000}:sends`), so that its name is the same in both styles.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use redis::ScriptInvocation;

pub mod record;
pub mod rights;

/// Most shards: as many as have numbers of their own in order ids, see [`ShardKeys::numbers`].
pub const MAX_SHARDS: u8 = 15;

/// Bits of an order id's sequence below those that name the shard.
const NUMBER_BITS: u32 = 28;

/// Bits of an order id's sequence.
const SEQUENCE_BITS: u32 = 32;

/// How keys are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStyle {
    /// As Java nodes do; not on a cluster.
    Default,
    /// With the sale's shard in braces.
    Cluster {
        /// Number of shards, 1 to [`MAX_SHARDS`].
        shards: u8,
    },
}

impl fmt::Display for KeyStyle {
    /// As it is recorded; see [`record`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyStyle::Default => f.write_str("default"),
            KeyStyle::Cluster { shards } => write!(f, "cluster {shards}"),
        }
    }
}

/// The keys of all shards. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keys {
    style: KeyStyle,
    shards: Arc<[Arc<ShardKeys>]>,
}

impl Keys {
    /// The keys in this style.
    pub fn new(style: KeyStyle) -> Self {
        let shards = match style {
            KeyStyle::Default => vec![Arc::new(ShardKeys::new(style, 0))],
            KeyStyle::Cluster { shards } => {
                (0..shards).map(|number| Arc::new(ShardKeys::new(style, number))).collect()
            }
        };
        Keys { style, shards: shards.into() }
    }

    /// The style.
    pub fn style(&self) -> KeyStyle {
        self.style
    }

    /// Every shard, by number.
    pub fn shards(&self) -> &[Arc<ShardKeys>] {
        &self.shards
    }

    /// The position of a sale's shard among [`Keys::shards`].
    pub fn shard_of_sale(&self, voucher_id: i64) -> usize {
        // Ids are positive, and there are at most 15 shards.
        usize::try_from(voucher_id.rem_euclid(self.shards.len() as i64)).unwrap_or(0)
    }

    /// The keys of a sale's shard.
    pub fn of_sale(&self, voucher_id: i64) -> &ShardKeys {
        &self.shards[self.shard_of_sale(voucher_id)]
    }

    /// The position among [`Keys::shards`] of the one that gave out an order's id; `None` where none did: another strategy
    /// sold it, or it was sold before the style was changed.
    pub fn shard_of_order(&self, order_id: i64) -> Option<usize> {
        if self.style == KeyStyle::Default {
            // A Java node's ids have any sequence.
            return Some(0);
        }
        let sequence = order_id & ((1 << SEQUENCE_BITS) - 1);
        let shard = usize::try_from(sequence >> NUMBER_BITS).ok()?.checked_sub(1)?;
        (shard < self.shards.len()).then_some(shard)
    }

    /// The numbers that order ids of the strategies without a stream have as their sequence.
    pub fn numbers(&self) -> Range<i64> {
        match self.style {
            KeyStyle::Default => 0..1 << SEQUENCE_BITS,
            KeyStyle::Cluster { .. } => 0..1 << NUMBER_BITS,
        }
    }
}

/// The keys of one shard, all in one slot.
#[derive(Debug)]
pub struct ShardKeys {
    /// What tells its keys from those of other shards: `:{3}`; empty in the default style.
    tag: String,
    number: u8,
    style: KeyStyle,
    /// The stream. Fields of an entry: `userId`, `voucherId`, `id`.
    pub stream: String,
    /// Dead-letter stream: entries that cannot be turned into orders, each with its error.
    pub dead: String,
    /// The epoch: which Redis server, and which of its data, the stock counters were built on.
    pub epoch: String,
    /// Set: the sales whose stock counter is exact. A counter that is not in it stays for Java nodes until it is rebuilt,
    /// and none of ours admits by it.
    pub exact_counters: String,
    /// Set: the sales whose claims are complete: they contain every buyer that has an order, or an entry in flight.
    pub complete_claims: String,
    /// Sorted set: when each of our consumers last reported.
    pub consumers: String,
    /// Hash: how often an entry failed because of the entry itself.
    pub failures: String,
    /// Stream: which entries each of our consumers holds, in a record for each call of the admission script. Its id is the
    /// call's last entry; fields: `consumer`, `first` (the first entry).
    pub held: String,
}

impl ShardKeys {
    fn new(style: KeyStyle, number: u8) -> Self {
        let tag = match style {
            KeyStyle::Default => String::new(),
            KeyStyle::Cluster { .. } => format!(":{{{number}}}"),
        };
        let name = |name: &str| format!("stream.orders{name}{tag}");
        ShardKeys {
            stream: name(""),
            dead: name(".dead"),
            epoch: name(".epoch"),
            exact_counters: name(".counters"),
            complete_claims: name(".claims"),
            consumers: name(".consumers"),
            failures: name(".failures"),
            held: name(".held"),
            tag,
            number,
            style,
        }
    }

    /// The style of its names.
    pub fn style(&self) -> KeyStyle {
        self.style
    }

    /// Its share of the sales, as a modulus and a remainder: those whose id divided by the one leaves the other.
    pub fn share(&self) -> (u8, u8) {
        match self.style {
            KeyStyle::Default => (1, 0),
            KeyStyle::Cluster { shards } => (shards, self.number),
        }
    }

    /// The stock counter of a sale: how many more are admitted.
    pub fn stock(&self, voucher_id: i64) -> String {
        self.name("seckill:stock", voucher_id)
    }

    /// The claims of a sale: a set of the users who hold a unit of the stock.
    pub fn claims(&self, voucher_id: i64) -> String {
        self.name("seckill:order", voucher_id)
    }

    /// The token under which a stock counter is being rebuilt.
    pub fn rebuild(&self, voucher_id: i64) -> String {
        self.name("seckill:rebuild", voucher_id)
    }

    /// The token of the process that writes the claims of a sale.
    pub fn claims_rebuild(&self, voucher_id: i64) -> String {
        format!("{}:claims", self.rebuild(voucher_id))
    }

    /// Cancelled orders whose stock was returned to Redis.
    pub fn returned(&self, voucher_id: i64) -> String {
        self.name("seckill:returned", voucher_id)
    }

    /// A user's order statuses in this shard. The key says `place` because running nodes and their scripts share it; a
    /// clearer name is not worth a migration.
    pub fn statuses(&self, user_id: i64) -> String {
        self.name("seckill:place", user_id)
    }

    /// What follows `icr:` in the counters of this shard's order ids. In the default style it is the counter of all order
    /// ids; else it is in the shard's slot, so that a Redis that loses it loses the epoch as well.
    pub fn id_counter(&self) -> String {
        format!("order{}", self.tag)
    }

    /// The numbers that order ids of this shard have as their sequence: the shard's number and one in the highest of its
    /// 32 bits, so that an id says where it was admitted.
    pub fn numbers(&self) -> Range<i64> {
        match self.style {
            KeyStyle::Default => 0..1 << SEQUENCE_BITS,
            KeyStyle::Cluster { .. } => {
                let first = i64::from(self.number) + 1;
                first << NUMBER_BITS..(first + 1) << NUMBER_BITS
            }
        }
    }

    /// Declares the keys that a script builds from the users and vouchers of purchases. While a slot is being moved, a
    /// cluster refuses a script before it begins if one of its declared keys is missing (TRYAGAIN: a missing key may be on the
    /// other node); a missing key that was not declared would stop it in the middle, after some of its writes. In the default
    /// style nothing is declared: there is no cluster, and it would cost time.
    pub fn declare<U: fmt::Display, V: fmt::Display>(
        &self,
        script: &mut ScriptInvocation<'_>,
        purchases: impl IntoIterator<Item = (U, V)>,
    ) {
        if self.style == KeyStyle::Default {
            return;
        }
        let mut names = BTreeSet::new();
        for (user, voucher) in purchases {
            names.insert(self.name("seckill:place", user));
            names.extend(
                ["seckill:stock", "seckill:order", "seckill:rebuild"]
                    .map(|name| self.name(name, &voucher)),
            );
        }
        for name in names {
            script.key(name);
        }
    }

    fn name(&self, name: &str, id: impl fmt::Display) -> String {
        format!("{name}{}:{id}", self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_style_has_the_names_of_a_java_node() {
        let keys = Keys::new(KeyStyle::Default);
        let shard = keys.of_sale(17);
        assert_eq!(
            (shard.stream.as_str(), shard.dead.as_str()),
            ("stream.orders", "stream.orders.dead")
        );
        assert_eq!(
            (shard.stock(17).as_str(), shard.claims(17).as_str()),
            ("seckill:stock:17", "seckill:order:17")
        );
        assert_eq!((keys.shards().len(), shard.id_counter().as_str()), (1, "order"));
        assert_eq!(keys.shard_of_order(7 << SEQUENCE_BITS | 3 << NUMBER_BITS), Some(0));
    }

    #[test]
    fn in_the_cluster_style_all_keys_of_a_sale_have_its_shard_in_braces() {
        let keys = Keys::new(KeyStyle::Cluster { shards: 4 });
        let shard = keys.of_sale(19);
        let names = [
            &shard.stream,
            &shard.dead,
            &shard.epoch,
            &shard.exact_counters,
            &shard.complete_claims,
            &shard.consumers,
            &shard.failures,
            &shard.held,
            &shard.stock(19),
            &shard.claims(19),
            &shard.rebuild(19),
            &shard.claims_rebuild(19),
            &shard.returned(19),
            &shard.statuses(1001),
            &shard.id_counter(),
        ];
        for name in names {
            assert!(name.contains(":{3}"), "{name}");
        }
        assert_eq!(
            (shard.stream.as_str(), shard.stock(19).as_str()),
            ("stream.orders:{3}", "seckill:stock:{3}:19")
        );
        assert_eq!(shard.share(), (4, 3));
    }

    #[test]
    fn an_id_names_the_shard_that_gave_it_out_and_no_two_give_out_one() {
        let keys = Keys::new(KeyStyle::Cluster { shards: MAX_SHARDS });
        let second = 7_i64 << SEQUENCE_BITS;
        let mut ends = keys.numbers().end;
        for (at, shard) in keys.shards().iter().enumerate() {
            let numbers = shard.numbers();
            assert_eq!(numbers.start, ends, "no gap and no overlap");
            ends = numbers.end;
            for number in [numbers.start, numbers.end - 1] {
                assert_eq!(keys.shard_of_order(second | number), Some(at));
            }
        }
        assert_eq!(ends, 1 << SEQUENCE_BITS);
        assert_eq!(keys.shard_of_order(second | 5), None);
        let fewer = Keys::new(KeyStyle::Cluster { shards: 2 });
        assert_eq!(fewer.shard_of_order(second | 3 << NUMBER_BITS), None);
    }
}
