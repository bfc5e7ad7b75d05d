//! A lexer for Rust source that keeps what imports are made of: words and punctuation, without comments and literals.

/// A word or a punctuation mark; `::` is one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    Word(&'a str),
    PathSep,
    Mark(char),
}

/// The tokens of `text`.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest).unwrap_or_else(|| {
            let (token, length) = if is_word(first) {
                let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
                (Token::Word(word), word.len())
            } else if rest.starts_with("::") {
                (Token::PathSep, 2)
            } else {
                (Token::Mark(first), first.len_utf8())
            };
            if !first.is_whitespace() {
                found.push(token);
            }
            length
        });
        rest = &rest[length..];
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of the comment or literal that `rest` begins with, if it begins with one.
fn skipped(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment(rest));
    }
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix);
        after.is_some_and(|after| {
            after.starts_with('"')
                || (prefix.ends_with('r') && after.trim_start_matches('#').starts_with('"'))
        })
    });
    if let Some(prefix) = prefix {
        let literal = &rest[prefix.len()..];
        let length = if prefix.ends_with('r') { raw_string(literal) } else { string(literal) };
        return Some(prefix.len() + length);
    }
    rest.starts_with('\'').then(|| character(rest)).flatten()
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 || at >= text.len() {
            return at.min(text.len());
        }
    }
}

fn string(text: &str) -> usize {
    let mut escaped = true; // the opening quotation mark
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            '\\' if !escaped => escaped = true,
            _ => escaped = false,
        }
    }
    text.len()
}

fn raw_string(text: &str) -> usize {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let end = format!("\"{}", "#".repeat(hashes));
    let body = &text[hashes + 1..];
    hashes + 1 + body.find(&end).map_or(body.len(), |at| at + end.len())
}

/// A character literal; `None` for a lifetime or label.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    match chars.next()?.1 {
        '\\' => {
            chars.next()?;
            chars.find(|(_, c)| *c == '\'').map(|(at, _)| at + 1)
        }
        _ => chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 1),
    }
}

#[test]
fn comments_and_literals_are_dropped() {
    let text = r###"// a
        /* b /* c */ d */ let x: &'static str = "e \" f"; let y = ['g', '\'', '\u{48}'];
        let z = (r#"h " i"#, b"j", r"k"); l::<'m>(); /"###;
    let words: Vec<&str> = tokens(text)
        .into_iter()
        .filter_map(|token| if let Token::Word(word) = token { Some(word) } else { None })
        .collect();
    assert_eq!(words, ["let", "x", "static", "str", "let", "y", "let", "z", "l", "m"]);
}
