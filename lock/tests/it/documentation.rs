//! What the documentation of every public call says, beyond what `missing_docs` and clippy's
//! `missing_errors_doc` ask for: what dropping its future does, and, of every lock, what Redis has of it.

use std::collections::BTreeMap;

use syn::{Attribute, Expr, ExprLit, ImplItem, Item, Lit, Meta};

use crate::public_items::{public, public_items, self_name};

/// What is held in Redis, or says so.
const ON_THE_WIRE: [&str; 9] = [
    "ReentrantLock",
    "FencedLock",
    "FairLock",
    "ReadWriteLock",
    "MultiLock",
    "Majority",
    "Semaphore",
    "LeasedSemaphore",
    "SetNxLock",
];

#[test]
fn every_asynchronous_call_says_what_dropping_its_future_does() {
    let items = public_items();
    let types = documented(&items);
    let mut silent = Vec::new();
    for item in &items {
        let Item::Impl(item) = item else { continue };
        let name = self_name(item).expect("a type");
        for function in &item.items {
            let ImplItem::Fn(function) = function else { continue };
            let said = [&types[&name], &text(&function.attrs)]
                .iter()
                .any(|text| text.contains(CANCELLATION));
            if public(&function.vis) && function.sig.asyncness.is_some() && !said {
                silent.push(format!("{name}::{}", function.sig.ident));
            }
        }
    }
    assert!(silent.is_empty(), "no \"{CANCELLATION}\": {silent:?}");
}

const CANCELLATION: &str = "# Cancellation";

#[test]
fn every_lock_says_what_redis_has_of_it() {
    let types = documented(&public_items());
    let silent: Vec<_> =
        ON_THE_WIRE.iter().filter(|name| !types[**name].contains("# On the wire")).collect();
    assert!(silent.is_empty(), "no \"# On the wire\": {silent:?}");
}

/// The documentation of each public type.
fn documented(items: &[Item]) -> BTreeMap<String, String> {
    let of = |item: &Item| match item {
        Item::Struct(item) => Some((item.ident.to_string(), text(&item.attrs))),
        Item::Enum(item) => Some((item.ident.to_string(), text(&item.attrs))),
        Item::Type(item) => Some((item.ident.to_string(), text(&item.attrs))),
        _ => None,
    };
    items.iter().filter_map(of).collect()
}

fn text(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value()),
            _ => None,
        },
        _ => None,
    };
    attributes.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}
