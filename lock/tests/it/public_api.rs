//! The crate's public API, as a file that a change has to change too: `public-api.txt`.
//!
//! It is read from the sources: what `lib.rs` exports, with the public signatures of all its `impl`
//! blocks, without bodies, documentation and private fields. To accept a change:
//! `UPDATE_PUBLIC_API=1 cargo test --test it public_api`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Fields, FieldsNamed, ImplItem, Item, ItemImpl, Type, UseTree, Visibility};

const HEADER: &str = "\
// The public API of this crate, checked by tests/it/public_api.rs. Private fields are left out.
// To accept a change: UPDATE_PUBLIC_API=1 cargo test --test it public_api
";

#[test]
fn the_public_api_is_the_one_in_public_api_txt() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (now, file) = (public_api(&root.join("src")), root.join("public-api.txt"));
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

fn public_api(source: &Path) -> String {
    let mut files = BTreeMap::new();
    parse_all(source, &mut files);
    let mut exported = BTreeMap::new();
    for item in &files[&source.join("lib.rs")].items {
        match item {
            Item::Use(item) if public(&item.vis) => {
                names(&item.tree, &mut Vec::new(), &mut exported);
            }
            Item::Mod(item) if public(&item.vis) => {
                let file = &files[&source.join(format!("{}.rs", item.ident))];
                let items = file.items.iter().filter_map(name_of);
                exported.extend(items.map(|name| (name, vec![item.ident.to_string()])));
            }
            _ => {}
        }
    }
    let mut api = syn::File { shebang: None, attrs: Vec::new(), items: Vec::new() };
    for (name, module) in &exported {
        let path = module.iter().fold(source.to_owned(), |path, part| path.join(part));
        let file = [path.with_extension("rs"), path.join("mod.rs")];
        let file = file.iter().find_map(|file| files.get(file)).expect("the module of an export");
        let defined = file.items.iter().filter(|item| name_of(item).as_ref() == Some(name));
        api.items.extend(defined.cloned().filter_map(signature));
        let items = files.values().flat_map(|file| &file.items);
        let of_name = |item: &&Item| matches!(item, Item::Impl(item) if self_name(item).as_ref() == Some(name));
        api.items.extend(items.filter(of_name).cloned().filter_map(signature));
    }
    format!("{HEADER}\n{}", prettyplease::unparse(&api))
}

fn parse_all(folder: &Path, files: &mut BTreeMap<PathBuf, syn::File>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            parse_all(&path, files);
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            files.insert(path, syn::parse_file(&text).expect("Rust"));
        }
    }
}

/// The names that a `use` exports, each with the path of its module.
fn names(tree: &UseTree, path: &mut Vec<String>, into: &mut BTreeMap<String, Vec<String>>) {
    match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            names(&tree.tree, path, into);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| names(tree, path, into)),
        UseTree::Name(name) => drop(into.insert(name.ident.to_string(), path.clone())),
        UseTree::Rename(_) | UseTree::Glob(_) => panic!("export each item under its own name"),
    }
}

fn public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The name of a public item. A macro that defines items is shown under its own.
fn name_of(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Macro(item) => return item.mac.path.get_ident().map(ToString::to_string),
        _ => return None,
    };
    public(visibility).then(|| name.to_string())
}

fn self_name(item: &ItemImpl) -> Option<String> {
    let Type::Path(of) = &*item.self_ty else { return None };
    Some(of.path.segments.last()?.ident.to_string())
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
