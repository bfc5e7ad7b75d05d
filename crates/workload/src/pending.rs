//! Waits for purchases that were answered *pending*, and looks up what became of them.
//!
//! A node may admit first and commit later (202, `PENDING`). Such a success is only a claim that the
//! order will be decided; so before a sale is judged, its pending orders are waited for. An order that has
//! a row by then is decided. One that has none is looked up by its buyer: if it was refused, the reply
//! becomes [`Reply::Withdrawn`], and the checker judges the refusal. What is not decided at the limit is
//! left as it is, and the checker calls it lost.

use std::{collections::HashMap, time::Duration};

use hyper::header::HeaderValue;
use redis_link::Redis;
use tokio::time::{Instant, sleep};

use crate::{
    Access, Error, Target,
    buyers::{Buyer, LIMIT},
    generator::Record,
    http::{Call, Connection},
    order_rows::OrderRows,
    redis_connection,
    reply::Reply,
};

/// How often tables and stream are looked at.
const POLL: Duration = Duration::from_millis(20);
/// How often orders without a row are looked up; the first time only after that long.
const LOOK_UP_EVERY: Duration = Duration::from_millis(500);
/// Orders looked up at a time.
const LOOK_UPS: usize = 200;

/// A sale with pending purchases.
#[derive(Clone, Copy)]
pub struct PendingSale<'a> {
    /// Servers and secrets.
    pub access: &'a Access,
    /// The base URLs asked.
    pub targets: &'a [Target],
    /// All who tried to buy.
    pub buyers: &'a [Buyer],
    /// The sale's voucher.
    pub voucher_id: u64,
    /// Longest wait.
    pub limit: Duration,
}

/// Waits until every pending order of `records` is decided and the stream is empty, and writes into the
/// records which were refused. Returns how long it took until all were decided, or until the limit; `None`
/// where nothing was pending.
pub async fn wait(
    sale: PendingSale<'_>,
    order_rows: &OrderRows,
    records: &mut [Record],
) -> Result<Option<Duration>, Error> {
    let mut open: Vec<(usize, i64)> = records
        .iter()
        .enumerate()
        .filter_map(|(index, record)| match record.observed.reply {
            Reply::Pending(id) => Some((index, id)),
            _ => None,
        })
        .collect();
    if open.is_empty() {
        return Ok(None);
    }
    let begin = Instant::now();
    let redis = redis_connection::open(&sale.access.redis_url)?;
    let tokens: HashMap<u64, &HeaderValue> = sale
        .buyers
        .iter()
        .map(|buyer| (buyer.user_id, &buyer.token))
        .collect();
    let mut connections: Vec<Connection> = sale
        .targets
        .iter()
        .map(|target| Connection::new(target.clone(), LIMIT))
        .collect();
    let mut last_look_up = begin;
    let mut decided = None;
    loop {
        // A database that is away for a moment may be part of the test.
        if let Ok(snapshot) = order_rows.read(sale.voucher_id).await {
            open.retain(|(_, id)| {
                snapshot
                    .rows
                    .binary_search_by_key(id, |row| row.id)
                    .is_err()
            });
        }
        if !open.is_empty() && last_look_up.elapsed() >= LOOK_UP_EVERY {
            for (index, id) in open.iter().take(LOOK_UPS) {
                let observed = &mut records[*index].observed;
                let Some(token) = tokens.get(&observed.user_id) else {
                    continue;
                };
                let reply = look_up(&mut connections, token, *id).await;
                if matches!(reply, Reply::Withdrawn { .. }) {
                    observed.reply = reply;
                }
            }
            open.retain(|(index, _)| matches!(records[*index].observed.reply, Reply::Pending(_)));
            last_look_up = Instant::now();
        }
        let limit_reached = begin.elapsed() >= sale.limit;
        if open.is_empty() || limit_reached {
            let decided = *decided.get_or_insert(begin.elapsed());
            // Orders whose replies were lost may still be on their way.
            if limit_reached || !is_waiting(&redis, sale.access.keys().pending()).await {
                return Ok(Some(decided));
            }
        }
        sleep(POLL).await;
    }
}

/// Looks an order up. Any node may answer.
pub async fn look_up(connections: &mut [Connection], token: &HeaderValue, id: i64) -> Reply {
    let call = Call::get(format!("/voucher-order/{id}")).token(token);
    for connection in connections {
        if let Ok(response) = connection.send(&call).await {
            return Reply::from_look_up(id, &response);
        }
    }
    Reply::Pending(id)
}

/// Whether orders are pending, as far as Redis can be asked: the hash names them, beside two fields of its own.
async fn is_waiting(redis: &Redis, pending: String) -> bool {
    let mut fields = redis::cmd("HLEN");
    let asking = fields
        .arg(pending)
        .query_async::<u64>(&mut redis.commands())
        .await;
    asking.is_ok_and(|fields| fields > 2)
}
