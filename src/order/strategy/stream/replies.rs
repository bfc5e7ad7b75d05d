//! What Redis replies: entries, the mark, the server's clock. Pure: no I/O.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use redis::Value;

use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};

/// One entry, as written by a node of either language.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// `<ms>-<number>`, as Redis wrote it.
    pub id: String,
    /// Its fields as they are, empty where they are missing.
    pub order: String,
    pub user: String,
    pub voucher: String,
}

impl Entry {
    /// The order it asks for; `None` where a field is missing or is not an id.
    pub fn order(&self) -> Option<NewOrder> {
        let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number > 0);
        let buyer = Buyer {
            user_id: number(&self.user)?,
            voucher_id: number(&self.voucher)?,
        };
        Some(NewOrder {
            id: number(&self.order)?,
            buyer,
            unguarded: false,
        })
    }

    /// How the hash of pending orders names it.
    pub fn name(&self) -> String {
        let Entry {
            id, order, voucher, ..
        } = self;
        format!("{voucher}:{order}:{id}")
    }
}

/// Entries by the sale that they name; those that name no order under 0.
pub(super) fn by_sale(entries: Vec<Entry>) -> HashMap<i64, Vec<Entry>> {
    let mut sales: HashMap<i64, Vec<Entry>> = HashMap::new();
    for entry in entries {
        let sale = entry.order().map_or(0, |order| order.buyer.voucher_id);
        sales.entry(sale).or_default().push(entry);
    }
    sales
}

/// The entries of an XRANGE. Not by `redis::streams`: there a field that is no text fails the whole reply.
pub(super) fn entries(reply: &Value) -> Vec<Entry> {
    items(reply).iter().filter_map(entry).collect()
}

/// The entries of an XREADGROUP on one stream; none where nothing is new.
pub(super) fn read_entries(reply: &Value) -> Vec<Entry> {
    items(reply)
        .iter()
        .filter_map(|stream| Some(entries(items(stream).get(1)?)))
        .flatten()
        .collect()
}

/// The entries of an XAUTOCLAIM, and where the next one is to begin.
pub(super) fn claimed_entries(reply: &Value) -> (String, Vec<Entry>) {
    let parts = items(reply);
    let next = parts.first().map_or("0-0", string);
    (
        next.to_owned(),
        parts.get(1).map(entries).unwrap_or_default(),
    )
}

fn entry(value: &Value) -> Option<Entry> {
    let [id, fields] = items(value) else {
        return None;
    };
    let field = |name: &str| {
        let pair = items(fields)
            .chunks_exact(2)
            .find(|pair| string(&pair[0]) == name);
        pair.map_or("", |pair| string(&pair[1])).to_owned()
    };
    let id = string(id).to_owned();
    Some(Entry {
        id,
        order: field("id"),
        user: field("userId"),
        voucher: field("voucherId"),
    })
}

pub(super) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

/// The text of a value; empty if the value is no text.
pub(super) fn string(value: &Value) -> &str {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).unwrap_or(""),
        Value::SimpleString(text) => text,
        _ => "",
    }
}

/// Under which data of which master something was read or counted; see `lua/stream_mark.lua`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    pub text: String,
    /// When it began, µs of the master's clock.
    pub since_us: i64,
    /// The last entry that is none of ours: what a Java node had acknowledged before we came.
    pub join: String,
}

impl Mark {
    fn parse(text: &str) -> Mark {
        let since = text.split(' ').nth(1).and_then(|since| since.parse().ok());
        Mark {
            text: text.to_owned(),
            since_us: since.unwrap_or(i64::MAX),
            join: text.rsplit(' ').next().unwrap_or("0-0").to_owned(),
        }
    }
}

/// What `lua/stream_look.lua` is asked for.
pub(super) enum Ask<'a> {
    /// The entries after this one; where it is empty, from the beginning.
    Page(&'a str),
    User(i64),
    /// The oldest entry. Consumers that are long gone are removed, and the one with this name.
    Tidy(&'a str),
}

/// The stream at one moment.
pub(super) struct StreamView {
    pub mark: Mark,
    /// When, µs of the master's clock.
    pub at_us: i64,
    /// Users who have pending orders.
    pub users: u64,
    /// The pending orders of the user that was asked for.
    pub pending: String,
    pub entries: Vec<Entry>,
    /// Whether there may be more entries.
    pub has_more: bool,
}

impl StreamView {
    /// What `lua/stream_look.lua` returned.
    pub fn parse(reply: &Value) -> Result<StreamView, Error> {
        let [mark, now, users, pending, before, page] = items(reply) else {
            return Err(Error::Internal(
                "stream_look.lua returned something else".to_owned(),
            ));
        };
        let users = match users {
            Value::Int(users) => (*users).max(0) as u64,
            _ => 0,
        };
        let page = entries(page);
        let mut all = entries(before);
        let has_more = !page.is_empty();
        all.extend(page);
        Ok(StreamView {
            mark: Mark::parse(string(mark)),
            at_us: string(now).parse().unwrap_or_default(),
            users,
            pending: string(pending).to_owned(),
            entries: all,
            has_more,
        })
    }
}

/// An order, as the stream knows it.
pub enum Standing {
    /// It was refused, and this is why.
    Refused(Error),
    /// It is neither a row nor refused yet.
    Pending,
    /// The stream does not name it. If it was pending at any time since the stream's data began, it is a row by now.
    Unnamed(Unnamed),
}

/// When the stream did not name an order, by the clock of Redis.
pub struct Unnamed {
    /// How long ago the stream's data began.
    pub known_for: TimeDelta,
    /// The moment of the look.
    pub at: DateTime<Utc>,
}

/// The master's clock, by its last reply: never ahead of the real one while that runs evenly.
#[derive(Debug)]
pub(super) struct RedisClock {
    began: Instant,
    offset_us: AtomicI64,
}

impl Default for RedisClock {
    fn default() -> Self {
        RedisClock {
            began: Instant::now(),
            offset_us: AtomicI64::new(0),
        }
    }
}

impl RedisClock {
    fn local_us(&self) -> i64 {
        self.began
            .elapsed()
            .as_micros()
            .try_into()
            .unwrap_or(i64::MAX)
    }

    pub fn set(&self, now_us: i64) {
        self.offset_us.store(now_us - self.local_us(), Relaxed);
    }

    pub fn now_us(&self) -> i64 {
        self.offset_us.load(Relaxed) + self.local_us()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_whatever_the_order_of_its_fields() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let fields = ["id", "9", "more", "x", "userId", "7", "voucherId", "8"].map(bulk);
        let raw = Value::Array(vec![bulk("2-0"), Value::Array(fields.into())]);
        let order = entry(&raw).unwrap().order().unwrap();
        assert_eq!(
            (order.id, order.buyer.user_id, order.buyer.voucher_id),
            (9, 7, 8)
        );
    }
}
