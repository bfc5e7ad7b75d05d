//! The crate's public API, as a file that a change has to change too: `public-api.txt`.
//!
//! It is read from the sources: what `lib.rs` exports, with the public signatures of all its `impl`
//! blocks, without bodies, documentation and private fields. To accept a change:
//! `UPDATE_PUBLIC_API=1 cargo test --test it public_api`.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Fields, FieldsNamed, ImplItem, Item, ItemImpl};

use crate::public_items::{public, public_items};

const HEADER: &str = "\
// The public API of this crate, checked by tests/it/public_api.rs. Private fields are left out.
// To accept a change: UPDATE_PUBLIC_API=1 cargo test --test it public_api
";

#[test]
fn the_public_api_is_the_one_in_public_api_txt() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let items = public_items().into_iter().filter_map(signature).collect();
    let api = syn::File { shebang: None, attrs: Vec::new(), items };
    let now = format!("{HEADER}\n{}", prettyplease::unparse(&api));
    let file = root.join("public-api.txt");
    if std::env::var_os("UPDATE_PUBLIC_API").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    let then = std::fs::read_to_string(&file).unwrap();
    let differs = then.lines().zip(now.lines()).position(|(then, now)| then != now);
    let at = differs.unwrap_or(then.lines().count().min(now.lines().count()));
    assert!(
        then == now,
        "the public API is not that of public-api.txt from line {}: {:?}, now {:?}. If that is meant, \
         run with UPDATE_PUBLIC_API=1",
        at + 1,
        then.lines().nth(at),
        now.lines().nth(at),
    );
}

/// What callers hold and send between tasks.
#[test]
fn what_callers_hold_may_move_between_threads() {
    use redisson_lock as api;
    fn movable<T: Send + Sync + Unpin + 'static>() {}
    movable::<(api::Locks, api::Owner, api::Server, api::LockConfig, api::Error)>();
    movable::<(api::ReentrantLock, api::FencedLock, api::FairLock, api::ReadWriteLock)>();
    movable::<(api::MultiLock, api::Majority, api::Semaphore, api::LeasedSemaphore)>();
    movable::<(api::Guard, api::MultiGuard, api::Permits, api::LeasedPermit, api::SetNxGuard)>();
    movable::<(api::SetNxLock, api::ProcessLocks, api::ProcessGuard)>();
}

/// The item without what is private or documentation; `None` if nothing is left.
fn signature(item: Item) -> Option<Item> {
    Some(match item {
        Item::Struct(mut item) => {
            keep_signature(&mut item.attrs);
            match &mut item.fields {
                Fields::Named(fields) => keep_public(fields),
                fields => *fields = Fields::Unit,
            }
            Item::Struct(item)
        }
        Item::Enum(mut item) => {
            keep_signature(&mut item.attrs);
            for variant in &mut item.variants {
                keep_signature(&mut variant.attrs);
                variant.fields.iter_mut().for_each(|field| keep_signature(&mut field.attrs));
            }
            Item::Enum(item)
        }
        Item::Trait(mut item) => {
            keep_signature(&mut item.attrs);
            item.items.clear();
            Item::Trait(item)
        }
        Item::Type(mut item) => {
            keep_signature(&mut item.attrs);
            Item::Type(item)
        }
        Item::Const(mut item) => {
            keep_signature(&mut item.attrs);
            *item.expr = syn::parse_quote!(..);
            Item::Const(item)
        }
        Item::Fn(mut item) => {
            keep_signature(&mut item.attrs);
            item.block.stmts.clear();
            Item::Fn(item)
        }
        Item::Macro(mut item) => {
            keep_signature(&mut item.attrs);
            item.mac.tokens = without_documentation(item.mac.tokens);
            Item::Macro(item)
        }
        Item::Impl(item) => Item::Impl(signatures(item)?),
        _ => return None,
    })
}

/// An `impl` with its public functions; of a trait, only that it is there.
fn signatures(mut item: ItemImpl) -> Option<ItemImpl> {
    keep_signature(&mut item.attrs);
    if let Some((_, of, _)) = &item.trait_ {
        let dropped = of.is_ident("Drop");
        item.items.clear();
        return (!dropped).then_some(item);
    }
    item.items.retain_mut(|item| match item {
        ImplItem::Fn(function) if public(&function.vis) => {
            keep_signature(&mut function.attrs);
            function.block.stmts.clear();
            true
        }
        _ => false,
    });
    (!item.items.is_empty()).then_some(item)
}

fn keep_public(fields: &mut FieldsNamed) {
    let all = std::mem::take(&mut fields.named);
    for mut field in all {
        if public(&field.vis) {
            keep_signature(&mut field.attrs);
            fields.named.push(field);
        }
    }
}

/// Keep the attributes that callers can tell.
fn keep_signature(attributes: &mut Vec<Attribute>) {
    let kept = ["derive", "non_exhaustive", "must_use", "cfg", "deprecated"];
    attributes.retain(|attribute| kept.iter().any(|name| attribute.path().is_ident(name)));
}

fn without_documentation(tokens: TokenStream) -> TokenStream {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in tokens {
        let documentation = |group: &proc_macro2::Group| {
            let first = group.stream().into_iter().next();
            matches!(first, Some(TokenTree::Ident(name)) if name == "doc")
        };
        match (&token, kept.last()) {
            (TokenTree::Group(group), Some(TokenTree::Punct(hash)))
                if hash.as_char() == '#' && documentation(group) =>
            {
                kept.pop();
            }
            (TokenTree::Group(group), _) => {
                let inside = without_documentation(group.stream());
                kept.push(proc_macro2::Group::new(group.delimiter(), inside).into());
            }
            _ => kept.push(token),
        }
    }
    kept.into_iter().collect()
}
