//! The public items of the crate, read from its sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::{Item, ItemImpl, Type, UseTree, Visibility};

/// The items that `lib.rs` exports, by name, each followed by its `impl` blocks, as they are in the
/// sources.
pub fn public_items() -> Vec<Item> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let source = source.as_path();
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
    let mut found = Vec::new();
    for (name, module) in &exported {
        let path = module.iter().fold(source.to_owned(), |path, part| path.join(part));
        let file = [path.with_extension("rs"), path.join("mod.rs")];
        let file = file.iter().find_map(|file| files.get(file)).expect("the module of an export");
        let defined = file.items.iter().filter(|item| name_of(item).as_ref() == Some(name));
        found.extend(defined.cloned());
        let items = files.values().flat_map(|file| &file.items);
        let of_name = |item: &&Item| matches!(item, Item::Impl(item) if self_name(item).as_ref() == Some(name));
        found.extend(items.filter(of_name).cloned());
    }
    found
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

/// Whether it is public to everybody.
pub fn public(visibility: &Visibility) -> bool {
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

/// The name of the type that an `impl` is about.
pub fn self_name(item: &ItemImpl) -> Option<String> {
    let Type::Path(of) = &*item.self_ty else { return None };
    Some(of.path.segments.last()?.ident.to_string())
}
