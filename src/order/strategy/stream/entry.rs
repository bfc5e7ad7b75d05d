//! Stream entries, parsed from Redis's replies. No I/O may come in here.

use std::collections::HashMap;

use redis::Value;

use crate::order::model::{Buyer, NewOrder};

/// One entry, as written by a node of either language.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// `<ms>-<sequence>`.
    pub id: String,
    /// `None` where it was deleted while it was pending.
    pub fields: Option<HashMap<String, String>>,
}

impl Entry {
    /// The order it asks for; `None` where a field is missing or is not an id.
    pub fn order(&self) -> Option<NewOrder> {
        let number = |name| self.field(name).parse::<i64>().ok().filter(|number| *number > 0);
        Some(NewOrder {
            id: number("id")?,
            buyer: Buyer { user_id: number("userId")?, voucher_id: number("voucherId")? },
            unguarded: false,
        })
    }

    /// A field's text, empty where there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.as_ref().and_then(|fields| fields.get(name)).map_or("", String::as_str)
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

fn entry(value: &Value) -> Option<Entry> {
    let parts = items(value);
    let fields = match parts.get(1)? {
        Value::Nil => None,
        fields => Some(pairs(items(fields))),
    };
    Some(Entry { id: text(parts.first()?)?, fields })
}

fn pairs(flat: &[Value]) -> HashMap<String, String> {
    let pair = |pair: &[Value]| Some((text(&pair[0])?, text(&pair[1])?));
    flat.chunks_exact(2).filter_map(pair).collect()
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// An entry's id as numbers, which compare as Redis compares them.
pub(super) fn position(id: &str) -> (u64, u64) {
    let (ms, sequence) = id.split_once('-').unwrap_or((id, "0"));
    (ms.parse().unwrap_or(0), sequence.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
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
        assert_eq!((entries[2].id.as_str(), &entries[2].fields), ("3-0", &None));
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

    #[test]
    fn positions_compare_as_numbers() {
        assert!(position("9-10") > position("9-9"));
        assert!(position("10-0") > position("9-10"));
    }
}
