//! Stream: a script in Redis admits the buyer and adds an entry to a Redis stream; a consumer group commits the
//! orders. The buyer gets an id at once and looks the order up by it. The fastest answer, and the only one that comes
//! before the commit, so it says *pending*. The database's conditional decrement and unique index decide all the
//! same: a stock counter that admits too many causes refusals, never an oversell.
//!
//! **Redis Streams in brief.** `stream.orders` is a log of admitted orders. A *group* hands each entry to one of
//! its *consumers* (a node of either language) and lists it as *pending* until it is acknowledged. A consumer that
//! dies leaves pending entries behind, which another takes over. So an entry is delivered at least once, and perhaps
//! again after its order was committed. What a node admits itself it *holds*: the group has gone past it without listing
//! it as pending, and one record for each call of the script says whose it is.
//!
//! - [`service`]: [`service::OrderStream`], the handle, and admission: one script (`admission_script`) takes stock, claim
//!   and entry together; the buyer's answer is *pending*. `node` is what it shares with its tasks.
//! - `consumer`: puts entries into `sale_queues`, one per sale: those that it holds (`deliveries`, `held`), and those that it
//!   reads, of others; `commit`: commits them in batches
//!   ([`crate::order::batch`]) while the consumer's `lease` holds, and acknowledges after the commit, never before.
//! - `lookup`, `order_status`: the status of an admitted order, for its buyer. `claims`: what a claim stands for.
//!   `entry_index`: the entries of the stream by order and buyer, as a Java node's script writes no status.
//! - `maintenance`: notices a Redis that lost its data, adds again what this node admitted and is not committed
//!   (`unconfirmed`), takes over from dead consumers, trims.
//! - `foreign`: consumers of another kind in our group: what they drop is refused, what they keep is taken over.
//! - `stock_counter`: rebuilds a sale's stock counter and claims from the database, counting what is in flight;
//!   `sale_upkeep`: for every open sale, whether anybody buys or not.
//!
//! **Guarantees.** The database decides: its constraints refuse what a wrong stock counter admits. An entry is
//! acknowledged by one script, so its stock and claim are returned once at most. Every step can be repeated:
//! admission by the order's id, the commit likewise. The buyer gets that id before the database could refuse it, so
//! it must be unique: it is admitted only in the *epoch* in which its number was leased, by the server of that epoch,
//! and in a new epoch nothing is admitted for a second, so that no second of an older id comes again.
//!
//! **Limits.** An order that a Redis lost together with the node that had admitted it is lost; its buyer's
//! answer was "pending", never "ordered". A refusal is kept in Redis alone: once that is lost, the order is unknown.
//!
//! **Shards.** In the key style `cluster` ([`crate::keys`]) the sales are divided into shards. Each is a stream of its own in
//! one slot, with its own epoch, counters, order ids, consumer and maintenance: a `StreamNode` each. An order's id
//! names its shard, so a look-up asks one.

use super::{Buyer, Deadline, Error, PurchaseContext, Sale};
use crate::order::steps;
use crate::request::trace;

mod admission_script;
mod claims;
mod commit;
mod consumer;
mod deliveries;
mod ended_sales;
mod entry;
mod entry_id;
mod entry_index;
mod foreign;
mod heartbeats;
mod held;
mod lease;
mod lookup;
mod maintenance;
mod names;
mod node;
mod order_status;
mod rebuilds;
mod sale_queues;
mod sale_upkeep;
pub mod service;
pub mod stats;
mod stock_counter;
mod stranded;
mod unconfirmed;

/// Admits the buyer; returns the id under which the order will be committed.
pub async fn buy(
    context: &PurchaseContext,
    buyer: Buyer,
    sale: &Sale,
    deadline: Deadline,
) -> Result<i64, Error> {
    trace::step(context.stream.order(buyer, sale, deadline), steps::admitted).await
}
