//! `doctor` beside Java nodes: which open sales one of them published, and with `--join` what a first start would do with
//! the entries of the stream. Nothing is changed.

use redis::AsyncCommands;
use redis::streams::{
    StreamId, StreamInfoGroupsReply, StreamInfoStreamReply, StreamPendingCountReply,
    StreamRangeReply,
};

use super::findings::Findings;
use crate::connection::redis::RoutedConnection;
use crate::keys::Keys;
use crate::order::model::{Buyer, NewOrder};
use crate::order::store::OrderStore;

/// Entries that are read at once.
const PAGE: usize = 1000;

/// Says of each open sale without a recorded strategy how it is sold.
pub(super) async fn sales(
    findings: &Findings,
    store: &OrderStore,
    redis: &mut RoutedConnection,
    keys: &Keys,
) -> anyhow::Result<()> {
    let sales = store.open_sales(None).await?;
    let mut unrecorded = sales.iter().filter(|sale| sale.issued.is_none()).peekable();
    if unrecorded.peek().is_none() {
        findings.good("every open sale has its strategy recorded");
    }
    for sale in unrecorded {
        let (id, strategy, counter) =
            (sale.voucher_id, &sale.strategy, keys.stock(sale.voucher_id));
        if redis.exists(&counter).await? {
            findings.good(&format!(
                "sale {id}: a Java node published it (issued is NULL, and {counter} exists): sold on the strategy \
                 stream, by that counter; a running instance records it within a second"
            ));
        } else {
            findings.warn(
                &format!("sale {id}: issued is NULL, and {counter} is missing: sold by {strategy}"),
                &format!(
                    "if a Java node with an admission script published it, SET {counter} to its stock before anybody buys"
                ),
            );
        }
    }
    Ok(())
}

/// Says what would become of the stream's entries.
pub(super) async fn join(
    findings: &Findings,
    store: &OrderStore,
    redis: &mut RoutedConnection,
    keys: &Keys,
) -> anyhow::Result<()> {
    let stream = &*keys.stream;
    if redis.hexists(&*keys.pending, "mark").await? {
        findings.good("an instance of this service has joined already");
        return Ok(());
    }
    if !redis.exists(stream).await? {
        findings.good(&format!("there is no {stream}: nothing is claimed, nothing is left"));
        return Ok(());
    }
    let about: StreamInfoStreamReply = redis.xinfo_stream(stream).await?;
    let groups: StreamInfoGroupsReply = redis.xinfo_groups(stream).await?;
    let group = groups.groups.into_iter().find(|group| group.name == "g1");
    let join = group.as_ref().map_or(&about.last_generated_id, |group| &group.last_delivered_id);

    let mut entries = Vec::new();
    let mut from = "-".to_owned();
    while group.is_some() {
        let page: StreamPendingCountReply =
            redis.xpending_count(stream, "g1", &from, "+", PAGE).await?;
        let Some(last) = page.ids.last() else { break };
        from = format!("({}", last.id);
        let mut ranges = redis::pipe();
        for id in &page.ids {
            ranges.xrange(stream, &id.id, &id.id);
        }
        let found: Vec<StreamRangeReply> = ranges.query_async(redis).await?;
        entries.extend(found.iter().flat_map(|entry| &entry.ids).map(order));
    }
    let pending = entries.len();
    let mut from = format!("({join}");
    loop {
        let page: StreamRangeReply = redis.xrange_count(stream, &from, "+", PAGE).await?;
        let Some(last) = page.ids.last() else { break };
        from = format!("({}", last.id);
        entries.extend(page.ids.iter().map(order));
    }
    let (new, past) = (entries.len() - pending, about.length.saturating_sub(entries.len()));
    findings.good(&format!(
        "joins after {join}: {past} entries that are finished stay as they are, neither sold again nor deleted"
    ));

    let orders: Vec<NewOrder> = entries.into_iter().flatten().collect();
    let mut resolve = 0;
    for page in orders.chunks(PAGE) {
        resolve += store.buyers_of(page).await?.len();
    }
    let (commit, dead) = (orders.len() - resolve, pending + new - orders.len());
    let what = format!(
        "{pending} pending entries and {new} that nobody has read: {commit} would be committed, \
         {resolve} have their row and would be resolved, {dead} name no order and would be dead letters"
    );
    if commit + dead == 0 {
        findings.good(&what);
    } else {
        findings.warn(
            &what,
            "these are orders that buyers were promised; XACK and XDEL those that nobody wants any more",
        );
    }
    Ok(())
}

/// The order that an entry names.
fn order(entry: &StreamId) -> Option<NewOrder> {
    let number = |field: &str| entry.get::<i64>(field).filter(|number| *number > 0);
    let buyer = Buyer { user_id: number("userId")?, voucher_id: number("voucherId")? };
    Some(NewOrder { id: number("id")?, buyer, unguarded: false })
}
