//! Stream entries, parsed from Redis's replies. No I/O may come in here.

use std::borrow::Cow;

use redis::Value;

use super::entry_id::EntryId;
use crate::order::model::{Buyer, NewOrder};

/// One entry, as written by a node of either language.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub id: EntryId,
    pub content: Content,
}

/// What an entry asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    Order(NewOrder),
    /// Nothing that could be an order: its fields as they are, empty where they are missing, or where the entry was
    /// deleted while it was pending.
    Invalid {
        order: String,
        user: String,
        voucher: String,
    },
}

impl Entry {
    /// An entry with these fields.
    pub fn new(id: EntryId, order: &str, user: &str, voucher: &str) -> Self {
        let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number > 0);
        let content = match (number(order), number(user), number(voucher)) {
            (Some(id), Some(user_id), Some(voucher_id)) => Content::Order(NewOrder {
                id,
                buyer: Buyer { user_id, voucher_id },
                unguarded: false,
            }),
            _ => Content::Invalid {
                order: order.to_owned(),
                user: user.to_owned(),
                voucher: voucher.to_owned(),
            },
        };
        Entry { id, content }
    }

    /// The entry of this order.
    pub fn of(id: EntryId, order: NewOrder) -> Self {
        Entry { id, content: Content::Order(order) }
    }

    /// The order it asks for; `None` where a field is missing or is not an id.
    pub fn order(&self) -> Option<NewOrder> {
        match self.content {
            Content::Order(order) => Some(order),
            Content::Invalid { .. } => None,
        }
    }

    /// The user and the voucher that it names, as text.
    pub fn buyer(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        match &self.content {
            Content::Order(NewOrder { buyer: Buyer { user_id, voucher_id }, .. }) => {
                (user_id.to_string().into(), voucher_id.to_string().into())
            }
            Content::Invalid { user, voucher, .. } => (user.into(), voucher.into()),
        }
    }
}

/// The entries of an XRANGE.
pub(super) fn entries(reply: &Value) -> Vec<Entry> {
    items(reply).iter().filter_map(entry).collect()
}

/// The entries of an XREADGROUP on one stream; none where it timed out.
pub(super) fn read_entries(reply: &Value) -> Vec<Entry> {
    items(reply)
        .iter()
        .flat_map(|stream| items(stream).get(1).map(entries).unwrap_or_default())
        .collect()
}

/// The records in an XRANGE of what our consumers hold that are this consumer's.
pub(super) fn held_by(reply: &Value, consumer: &str) -> impl Iterator<Item = EntryId> {
    items(reply).iter().filter_map(move |record| {
        let parts = items(record);
        let holder = string(items(parts.get(1)?).get(1)?);
        (holder == consumer).then(|| EntryId::parse(string(parts.first()?)))?
    })
}

fn entry(value: &Value) -> Option<Entry> {
    let parts = items(value);
    let fields = items(parts.get(1)?);
    let field = |name: &str| {
        let pair = fields.chunks_exact(2).rfind(|pair| string(&pair[0]) == name);
        pair.map_or("", |pair| string(&pair[1]))
    };
    let id = EntryId::parse(string(parts.first()?))?;
    Some(Entry::new(id, field("id"), field("userId"), field("voucherId")))
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

/// Empty where it is none.
fn string(value: &Value) -> &str {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).unwrap_or(""),
        Value::SimpleString(text) => text,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry_id::tests::id;
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn raw(id: &str, fields: &[&str]) -> Value {
        let fields = fields.iter().map(|text| bulk(text)).collect();
        Value::Array(vec![bulk(id), Value::Array(fields)])
    }

    #[test]
    fn entries_are_read_whatever_the_order_of_their_fields() {
        let deleted = Value::Array(vec![bulk("3-0"), Value::Nil]);
        let stream = Value::Array(vec![
            raw("1-0", &["userId", "7", "voucherId", "8", "id", "9"]),
            raw("2-0", &["id", "9", "more", "x", "userId", "7", "voucherId", "8"]),
            deleted,
        ]);
        let read = Value::Array(vec![Value::Array(vec![bulk("stream.orders"), stream])]);
        let entries = read_entries(&read);
        for entry in &entries[..2] {
            let order = entry.order().unwrap();
            assert_eq!((order.id, order.buyer.user_id, order.buyer.voucher_id), (9, 7, 8));
        }
        assert_eq!((entries[2].id, entries[2].order()), (id(3, 0), None));
        assert_eq!(read_entries(&Value::Nil), vec![]);
    }

    #[test]
    fn entries_without_a_valid_order_are_recognized() {
        for fields in [
            &["userId", "7", "voucherId", "8"][..],
            &["userId", "x", "voucherId", "8", "id", "9"],
            &["userId", "-1", "voucherId", "8", "id", "9"],
            &["userId", "7", "voucherId", "8", "id", "99999999999999999999"],
        ] {
            let entry = entry(&raw("1-0", fields)).unwrap();
            assert!(entry.order().is_none(), "{fields:?}");
        }
    }
}
