//! Stream entries, parsed from Redis's replies. No I/O may come in here.

use redis::Value;

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
        let buyer = Buyer { user_id: number(&self.user)?, voucher_id: number(&self.voucher)? };
        Some(NewOrder { id: number(&self.order)?, buyer, unguarded: false })
    }

    /// How the hash of pending orders names it.
    pub fn name(&self) -> String {
        let Entry { id, order, voucher, .. } = self;
        format!("{voucher}:{order}:{id}")
    }
}

/// The entries of an XRANGE.
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
    (next.to_owned(), parts.get(1).map(entries).unwrap_or_default())
}

fn entry(value: &Value) -> Option<Entry> {
    let [id, fields] = items(value) else { return None };
    let field = |name: &str| {
        let pair = items(fields).chunks_exact(2).find(|pair| string(&pair[0]) == name);
        pair.map_or("", |pair| string(&pair[1])).to_owned()
    };
    let id = string(id).to_owned();
    Some(Entry { id, order: field("id"), user: field("userId"), voucher: field("voucherId") })
}

pub(super) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

/// Empty where it is none.
pub(super) fn string(value: &Value) -> &str {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).unwrap_or(""),
        Value::SimpleString(text) => text,
        _ => "",
    }
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
        let stream = Value::Array(vec![
            raw("1-0", &["userId", "7", "voucherId", "8", "id", "9"]),
            raw("2-0", &["id", "9", "more", "x", "userId", "7", "voucherId", "8"]),
        ]);
        let read = Value::Array(vec![Value::Array(vec![bulk("stream.orders"), stream.clone()])]);
        let claimed = Value::Array(vec![bulk("3-0"), stream, Value::Array(vec![])]);
        let entries = read_entries(&read);
        assert_eq!(claimed_entries(&claimed), ("3-0".to_owned(), entries.clone()));
        for entry in &entries {
            let order = entry.order().unwrap();
            assert_eq!((order.id, order.buyer.user_id, order.buyer.voucher_id), (9, 7, 8));
        }
        assert_eq!((entries[0].name().as_str(), entries.len()), ("8:9:1-0", 2));
        assert_eq!(read_entries(&Value::Nil), vec![]);
    }

    #[test]
    fn entries_without_a_valid_order_are_recognized() {
        for fields in [
            &["userId", "7", "voucherId", "8"][..],
            &["userId", "x", "voucherId", "8", "id", "9"],
            &["userId", "0", "voucherId", "8", "id", "9"],
            &["userId", "7", "voucherId", "8", "id", "99999999999999999999"],
        ] {
            let entry = entry(&raw("1-0", fields)).unwrap();
            assert!(entry.order().is_none(), "{fields:?}");
        }
    }
}
