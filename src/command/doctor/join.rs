//! `doctor --join`: what a first start beside nodes of another kind would do with the entries of the stream.

use redis::AsyncCommands;
use redis::streams::{
    StreamId, StreamInfoGroupsReply, StreamInfoStreamReply, StreamPendingCountReply,
    StreamRangeReply,
};

use super::findings::Findings;
use crate::config::DoctorConfig;
use crate::connection::{self, mysql};
use crate::keys::Keys;
use crate::order::model::{Buyer, NewOrder};
use crate::order::store::OrderStore;

/// Entries that are read at once.
const PAGE: usize = 1000;

/// What would become of the entries that count.
#[derive(Default)]
struct Entries {
    commit: usize,
    resolve: usize,
    dead: usize,
}

/// Says it; changes nothing.
pub(super) async fn check(findings: &Findings, config: &DoctorConfig) -> anyhow::Result<()> {
    let database =
        mysql::connect(&config.database.database_url, 1, config.database.database_timeout).await?;
    let store = OrderStore::new(database, config.time_zone);
    let server = config.redis.server()?;
    let redis = connection::redis::connect(server, config.redis.redis_timeout).await?;
    let mut redis = redis.commands();
    let keys = Keys::new(config.keys.style(&config.redis.redis_url)?);
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

    let (mut found, mut pending, mut new) = (Entries::default(), 0, 0);
    let mut from = "-".to_owned();
    while group.is_some() {
        let page: StreamPendingCountReply =
            redis.xpending_count(stream, "g1", &from, "+", PAGE).await?;
        let Some(last) = page.ids.last() else { break };
        from = format!("({}", last.id);
        let mut entries = redis::pipe();
        for id in &page.ids {
            entries.xrange(stream, &id.id, &id.id);
        }
        let entries: Vec<StreamRangeReply> = entries.query_async(&mut redis).await?;
        let entries: Vec<StreamId> = entries.into_iter().flat_map(|entry| entry.ids).collect();
        pending += entries.len();
        found.add(&store, &entries).await?;
    }
    let mut from = format!("({join}");
    loop {
        let page: StreamRangeReply = redis.xrange_count(stream, &from, "+", PAGE).await?;
        let Some(last) = page.ids.last() else { break };
        from = format!("({}", last.id);
        new += page.ids.len();
        found.add(&store, &page.ids).await?;
    }

    let past = about.length.saturating_sub(pending + new);
    findings.good(&format!(
        "joins after {join}: {past} entries that are finished stay as they are, neither sold again nor deleted"
    ));
    let Entries { commit, resolve, dead } = found;
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

impl Entries {
    async fn add(&mut self, store: &OrderStore, entries: &[StreamId]) -> anyhow::Result<()> {
        let orders: Vec<NewOrder> = entries.iter().filter_map(order).collect();
        let rows = store.buyers_of(&orders).await?;
        self.dead += entries.len() - orders.len();
        self.resolve += rows.len();
        self.commit += orders.len() - rows.len();
        Ok(())
    }
}

fn order(entry: &StreamId) -> Option<NewOrder> {
    let number = |field: &str| entry.get::<i64>(field).filter(|number| *number > 0);
    let buyer = Buyer { user_id: number("userId")?, voucher_id: number("voucherId")? };
    Some(NewOrder { id: number("id")?, buyer, unguarded: false })
}
