//! Which source file of a crate names items of which other file, by reading `mod`, `use` and paths.
//!
//! - A path is an edge from the file that contains it to the file that *defines* the item. Re-exports are followed, so a
//!   facade (`pub use child::Item` in a `mod.rs`) makes no edge from its users to the facade.
//! - `pub use child::Item` itself is an edge from the facade to the child, like every `use`.
//! - `mod child;` is no edge, and neither is naming a module without an item of it.
//! - A glob import is an edge to the file of the module where that defines anything, else to the files of what it
//!   re-exports.
//! - Code under `#[cfg(test)]` is not read: nothing can import it.
//!
//! Names made by macros are not seen; a name that is found nowhere counts as defined by the file of its module.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::{Token, tokens};

/// The files of one crate, with what each names.
#[derive(Default)]
pub struct Imports {
    modules: Vec<Module>,
    /// By file: the files that it names items of, each with such a name.
    pub edges: BTreeMap<String, BTreeMap<String, String>>,
    /// By file: the first words of paths that lead out of the crate.
    pub external: BTreeMap<String, BTreeSet<String>>,
}

/// A module, inline or a file of its own.
#[derive(Default)]
struct Module {
    file: String,
    parent: usize,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// The path that `use` imports a name from.
    uses: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// All paths, those of `use` included.
    paths: BTreeSet<Vec<String>>,
}

/// What a path leads to.
enum Target {
    Module(usize),
    /// An item, by the module that defines it.
    Item(usize),
}

const ITEM_WORDS: [&str; 8] = ["struct", "enum", "trait", "union", "type", "fn", "const", "static"];

impl Imports {
    /// Reads the crate whose root is the file `root`; `read` returns a file's text, if it exists.
    pub fn read(root: &str, read: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut imports = Imports::default();
        imports.file(root, 0, read);
        for module in 0..imports.modules.len() {
            imports.resolve_module(module);
        }
        imports
    }

    /// All files.
    pub fn files(&self) -> BTreeSet<&str> {
        self.modules.iter().map(|module| module.file.as_str()).collect()
    }

    /// Groups of files that import each other, directly or through others of the group, each with its edges.
    pub fn cycles(&self) -> Vec<Vec<String>> {
        let from: BTreeMap<&str, _> =
            self.edges.keys().map(|file| (file.as_str(), self.reachable(file))).collect();
        let mut groups = BTreeSet::new();
        for (file, seen) in &from {
            let mutual = |other: &&&str| from.get(**other).is_some_and(|seen| seen.contains(file));
            let group: BTreeSet<&str> = seen.iter().filter(mutual).copied().collect();
            if !group.is_empty() {
                groups.insert(group);
            }
        }
        let edges_within = |group: &BTreeSet<&str>| {
            let edges = group.iter().flat_map(|file| {
                let to = self.edges[*file].iter().filter(|(to, _)| group.contains(to.as_str()));
                to.map(move |(to, name)| format!("{file} -> {to} ({name})"))
            });
            edges.collect()
        };
        groups.iter().map(edges_within).collect()
    }

    /// All files that `start` imports, directly or through others.
    fn reachable<'a>(&'a self, start: &'a str) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(file) = open.pop() {
            for next in self.edges.get(file).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        seen
    }

    fn file(
        &mut self,
        file: &str,
        parent: usize,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> Option<usize> {
        let text = read(file)?;
        let id = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let stem = name.trim_end_matches(".rs");
        let is_root = id == 0 || stem == "mod";
        let folder = if is_root { folder.to_owned() } else { format!("{folder}/{stem}") };
        self.scan(&tokens(&text), id, &folder, read);
        Some(id)
    }

    /// Reads the tokens of module `id`, whose children are files in `folder`.
    fn scan(
        &mut self,
        tokens: &[Token<'_>],
        id: usize,
        folder: &str,
        read: &dyn Fn(&str) -> Option<String>,
    ) {
        use Token::{Mark, PathSep, Word};
        let (mut at, mut depth, mut in_test) = (0, 0, false);
        while at < tokens.len() {
            let rest = &tokens[at..];
            let previous = at.checked_sub(1).map(|before| tokens[before]);
            match rest {
                [
                    Mark('#'),
                    Mark('['),
                    Word("cfg"),
                    Mark('('),
                    Word("test"),
                    Mark(')'),
                    Mark(']'),
                    ..,
                ] => {
                    in_test = true;
                    at += 7;
                    continue;
                }
                // Other attributes of the same item.
                [Mark('#'), Mark('['), ..] if in_test => {
                    at += 1 + group(&rest[1..]);
                    continue;
                }
                _ if in_test => {
                    at += item(rest);
                    in_test = false;
                    continue;
                }
                [Word("mod"), Word(name), Mark(';'), ..] => {
                    let paths = [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")];
                    let child = paths.iter().find_map(|path| self.file(path, id, read));
                    if let Some(child) = child {
                        self.modules[id].children.insert((*name).to_owned(), child);
                    }
                    at += 3;
                    continue;
                }
                [Word("mod"), Word(name), Mark('{'), ..] => {
                    let length = group(&rest[2..]);
                    let child = self.modules.len();
                    let file = self.modules[id].file.clone();
                    self.modules.push(Module { file, parent: id, ..Module::default() });
                    self.modules[id].children.insert((*name).to_owned(), child);
                    self.scan(&rest[3..1 + length], child, &format!("{folder}/{name}"), read);
                    at += 2 + length;
                    continue;
                }
                [Word("use"), Word(_) | PathSep | Mark('{'), ..] => {
                    let length =
                        rest.iter().position(|token| *token == Mark(';')).unwrap_or(rest.len());
                    self.use_tree(&rest[1..length], &[], id);
                    at += length;
                    continue;
                }
                [Word("macro_rules"), Mark('!'), Word(name), ..] => {
                    self.modules[id].items.insert((*name).to_owned());
                }
                [Word(kind), Word(name), ..] if depth == 0 && ITEM_WORDS.contains(kind) => {
                    self.modules[id].items.insert((*name).to_owned());
                }
                [Word(_), PathSep, ..] if !matches!(previous, Some(PathSep)) => {
                    let mut path = Vec::new();
                    let mut left = rest;
                    while let [Word(word), tail @ ..] = left {
                        path.push((*word).to_owned());
                        at += 1;
                        let [PathSep, tail @ ..] = tail else { break };
                        at += 1;
                        left = tail;
                    }
                    self.modules[id].paths.insert(path);
                    continue;
                }
                [Mark('{' | '('), ..] => depth += 1,
                [Mark('}' | ')'), ..] => depth -= 1,
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads a use tree that stands after `prefix`.
    fn use_tree(&mut self, tokens: &[Token<'_>], prefix: &[String], id: usize) {
        use Token::{Mark, PathSep, Word};
        let mut path = prefix.to_vec();
        let mut rest = tokens;
        loop {
            match rest {
                [Word("as"), Word(name), ..] => return self.import(id, name, path),
                [Word("self"), tail @ ..] if !path.is_empty() => rest = tail,
                [Word(word), tail @ ..] => {
                    path.push((*word).to_owned());
                    rest = tail;
                }
                [PathSep, tail @ ..] => rest = tail,
                [Mark('*'), ..] => {
                    self.modules[id].globs.extend(Some(path).filter(|path| !path.is_empty()));
                    return;
                }
                [Mark('{'), ..] => {
                    let inner = &rest[1..group(rest) - 1];
                    let (mut start, mut depth) = (0, 0);
                    for (at, token) in inner.iter().chain([&Mark(',')]).enumerate() {
                        match token {
                            Mark('{') => depth += 1,
                            Mark('}') => depth -= 1,
                            Mark(',') if depth == 0 => {
                                if start < at {
                                    self.use_tree(&inner[start..at], &path, id);
                                }
                                start = at + 1;
                            }
                            _ => {}
                        }
                    }
                    return;
                }
                _ => {
                    let name = path.last().cloned().unwrap_or_default();
                    return self.import(id, &name, path);
                }
            }
        }
    }

    fn import(&mut self, id: usize, name: &str, path: Vec<String>) {
        if path.is_empty() {
            return;
        }
        self.modules[id].paths.insert(path.clone());
        self.modules[id].uses.insert(name.to_owned(), path);
    }

    fn resolve_module(&mut self, id: usize) {
        let Module { file, globs, paths, .. } = &self.modules[id];
        let mut found = Vec::new();
        for path in paths {
            if let Some(Target::Item(module)) = self.resolve(id, path, &mut BTreeSet::new()) {
                found.push((self.modules[module].file.clone(), path.join("::")));
            }
        }
        for path in globs {
            if let Some(Target::Module(module)) = self.resolve(id, path, &mut BTreeSet::new()) {
                let name = format!("{}::*", path.join("::"));
                let files = self.files_of_glob(module).into_iter();
                found.extend(files.map(|file| (file, name.clone())));
            }
        }
        let external: Vec<_> =
            paths.iter().chain(globs).filter_map(|path| self.external_root(id, &path[0])).collect();
        let file = file.clone();
        self.external.entry(file.clone()).or_default().extend(external);
        let edges = self.edges.entry(file.clone()).or_default();
        for (to, name) in found.into_iter().filter(|(to, _)| *to != file) {
            edges.entry(to).or_insert(name);
        }
    }

    /// The first word of the path outside this crate that `first` stands for in module `id`.
    fn external_root(&self, id: usize, first: &str) -> Option<String> {
        let Module { children, items, uses, .. } = &self.modules[id];
        let is_own = ["crate", "self", "super", "Self"].contains(&first)
            || children.contains_key(first)
            || items.contains(first);
        match uses.get(first) {
            _ if is_own => None,
            Some(path) if path[0] != first => self.external_root(id, &path[0]),
            _ => Some(first.to_owned()),
        }
    }

    fn files_of_glob(&self, module: usize) -> Vec<String> {
        let Module { file, items, uses, .. } = &self.modules[module];
        if !items.is_empty() {
            return vec![file.clone()];
        }
        let reexported =
            uses.values().filter_map(|path| self.resolve(module, path, &mut BTreeSet::new()));
        let files = reexported.filter_map(|target| match target {
            Target::Item(module) => Some(self.modules[module].file.clone()),
            Target::Module(_) => None,
        });
        files.collect()
    }

    /// What `path` names in module `id`; `None` outside this crate.
    fn resolve(
        &self,
        id: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut target = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(id),
            "super" => Target::Module(self.modules[id].parent),
            name => self.lookup(id, name, rest.is_empty(), seen)?,
        };
        while let (Target::Module(module), [name, tail @ ..]) = (&target, rest) {
            rest = tail;
            target = if name == "super" {
                Target::Module(self.modules[*module].parent)
            } else {
                // A name that is found nowhere was made by a macro.
                self.lookup(*module, name, rest.is_empty(), seen).unwrap_or(Target::Item(*module))
            };
        }
        Some(target)
    }

    /// What `name` means in module `id`, as a child, an item or an import. `is_last` prefers an item to a module.
    fn lookup(
        &self,
        id: usize,
        name: &str,
        is_last: bool,
        seen: &mut BTreeSet<(usize, String)>,
    ) -> Option<Target> {
        let module = &self.modules[id];
        let item = module.items.contains(name).then_some(Target::Item(id));
        if is_last && item.is_some() {
            return item;
        }
        if let Some(child) = module.children.get(name) {
            return Some(Target::Module(*child));
        }
        if item.is_some() {
            return item;
        }
        if !seen.insert((id, name.to_owned())) {
            return None;
        }
        if let Some(path) = module.uses.get(name) {
            // `use axum::Json` names the crate, not itself.
            return if path[0] == name { None } else { self.resolve(id, path, seen) };
        }
        module.globs.iter().find_map(|path| {
            let Some(Target::Module(from)) = self.resolve(id, path, seen) else { return None };
            self.lookup(from, name, is_last, seen)
        })
    }
}

/// The number of tokens from an opening bracket to its closing one.
fn group(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('{' | '(' | '[') => depth += 1,
            Token::Mark('}' | ')' | ']') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The number of tokens of an item: up to its semicolon or its block.
fn item(tokens: &[Token<'_>]) -> usize {
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            Token::Mark(';') => return at + 1,
            Token::Mark('{') => return at + group(&tokens[at..]),
            Token::Mark('(' | '[') => at += group(&tokens[at..]),
            _ => at += 1,
        }
    }
    at
}
