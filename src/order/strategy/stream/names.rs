//! Names of the stream, its group and its Redis keys. `stream.orders`, `g1`, `seckill:stock:…` and `seckill:order:…` are
//! shared with Java nodes; the others are ours.

/// The stream. Fields of an entry: `userId`, `voucherId`, `id`.
pub(super) const STREAM: &str = "stream.orders";

/// Its consumer group.
pub(super) const GROUP: &str = "g1";

/// A second group, of which nobody is a member: it is in the stream for as long as the stream that the epoch began with
/// exists, so a stream without it is another one.
pub(super) const EPOCH_GROUP: &str = "seckill-epoch";

/// Dead-letter stream: entries that cannot be turned into orders, each with its error.
pub(super) const DEAD: &str = "stream.orders.dead";

/// The epoch: which Redis server, and which of its data, the stock counters were built on.
pub(super) const EPOCH: &str = "stream.orders.epoch";

/// Set: the sales whose stock counter is exact. A counter that is not in it stays for Java nodes until it is rebuilt, and
/// none of ours admits by it.
pub(super) const COUNTERS: &str = "stream.orders.counters";

/// Set: the sales whose claims are complete: they contain every buyer that has an order, or an entry in flight.
pub(super) const CLAIMS: &str = "stream.orders.claims";

/// Sorted set: when each of our consumers last reported.
pub(super) const CONSUMERS: &str = "stream.orders.consumers";

/// Hash: how often an entry failed because of the entry itself.
pub(super) const FAILURES: &str = "stream.orders.failures";

/// What our consumers' names begin with; the rest is random.
pub(super) const CONSUMER_PREFIX: &str = "seckill-";

/// How long the status of a pending or refused order is kept, seconds: a day.
pub(super) const STATUS_TTL_S: u64 = 86_400;

/// The stock counter: how many more are admitted.
pub(super) fn stock_key(voucher_id: i64) -> String {
    format!("seckill:stock:{voucher_id}")
}

/// The claims: a set of the users who hold a unit of the stock.
pub(super) fn claims_key(voucher_id: i64) -> String {
    format!("seckill:order:{voucher_id}")
}

/// The token under which a stock counter is being rebuilt.
pub(super) fn rebuild_key(voucher_id: i64) -> String {
    format!("seckill:rebuild:{voucher_id}")
}

/// The token of the process that writes the claims of a sale.
pub(super) fn claims_rebuild_key(voucher_id: i64) -> String {
    format!("seckill:rebuild:{voucher_id}:claims")
}

/// Cancelled orders whose stock was returned to Redis.
pub(super) fn returned_key(voucher_id: i64) -> String {
    format!("seckill:returned:{voucher_id}")
}

/// A user's order statuses (see [`super::order_status`]). The key says `place` because running nodes and their scripts
/// share it; a clearer name is not worth a migration.
pub(super) fn status_key(user_id: i64) -> String {
    format!("seckill:place:{user_id}")
}
