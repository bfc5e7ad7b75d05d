//! HTTP/1.1 bytes of a request and its answer. No I/O and, per request, no allocation: the generator shares
//! the processor with the servers it measures.

use std::borrow::Cow;

/// Length of a session token, in hexadecimal digits.
pub const TOKEN: usize = 32;

/// A request whose token and path can be replaced; rendered once per connection.
#[derive(Debug, Clone)]
pub struct Request {
    bytes: Vec<u8>,
    token_at: usize,
}

impl Request {
    /// `POST path` or `GET path` for `host`. A read is anonymous: its token is in a header that nobody looks at.
    pub fn new(host: &str, line: &str) -> Self {
        let token = if line.starts_with("GET ") { "x-reader" } else { "authorization" };
        let head = format!("{line} HTTP/1.1\r\nhost: {host}\r\n{token}: ");
        let token_at = head.len();
        let text = format!("{head}{}\r\ncontent-length: 0\r\n\r\n", "0".repeat(TOKEN));
        Self { bytes: text.into_bytes(), token_at }
    }

    /// Puts a token of [`TOKEN`] digits into the header.
    pub fn set_token(&mut self, token: &[u8]) {
        self.bytes[self.token_at..self.token_at + TOKEN].copy_from_slice(token);
    }

    /// Puts another method and path of the same length in the place of the first.
    pub fn set_line(&mut self, line: &str) {
        self.bytes[..line.len()].copy_from_slice(line.as_bytes());
    }

    /// The request with its present token and path.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Codes of a Java node's refusals, which has only texts.
const MESSAGES: [(&str, &str); 3] = [
    ("库存不足", "SOLD_OUT"),
    ("不能重复下单", "ALREADY_ORDERED"),
    ("不允许重复下单", "LOCK_BUSY"),
];

/// A purchase's answer, as far as it is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<'a> {
    /// An order, or a pending one (202), with its id.
    Ordered(i64),
    Code(Cow<'a, str>),
}

/// The ends of head and body in `bytes`; `None` while the answer is incomplete.
pub fn end_of(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let length = bytes[..head]
        .split(|byte| *byte == b'\n')
        .find_map(|line| {
            let (name, value) = line.split_at_checked(b"content-length:".len())?;
            name.eq_ignore_ascii_case(b"content-length:").then_some(value)
        })
        .and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok())
        .unwrap_or(0_usize);
    (bytes.len() >= head + length).then_some((head, head + length))
}

/// Reads a complete answer: status line, headers up to `head`, body up to `end`.
pub fn read(answer: &[u8], head: usize, end: usize) -> Answer<'_> {
    let (status, body) = (answer.get(9..12).unwrap_or_default(), &answer[head..end]);
    // A Java node sends the id as a number alone, and no code.
    if status.starts_with(b"2")
        && find(body, b"\"success\":true").is_some()
        && let Some(id) =
            after(body, b"\"orderId\":\"").or_else(|| after(body, b"\"data\":")).and_then(digits)
    {
        return Answer::Ordered(id);
    }
    match after(body, b"\"code\":\"").and_then(|rest| rest.split(|byte| *byte == b'"').next()) {
        Some(code) => Answer::Code(String::from_utf8_lossy(code)),
        None => match MESSAGES.iter().find(|(text, _)| find(body, text.as_bytes()).is_some()) {
            Some((_, code)) => Answer::Code(Cow::Borrowed(code)),
            None => Answer::Code(Cow::Owned(format!("HTTP_{}", String::from_utf8_lossy(status)))),
        },
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn after<'a>(text: &'a [u8], what: &[u8]) -> Option<&'a [u8]> {
    find(text, what).map(|at| &text[at + what.len()..])
}

fn digits(text: &[u8]) -> Option<i64> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(answer: &str) -> Option<Answer<'_>> {
        end_of(answer.as_bytes()).map(|(head, end)| read(answer.as_bytes(), head, end))
    }

    #[test]
    fn a_java_nodes_answers_are_read() {
        let answer =
            |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let ordered = answer(r#"{"success":true,"data":663823142027984897}"#);
        assert_eq!(parse(&ordered), Some(Answer::Ordered(663_823_142_027_984_897)));
        let sold_out = answer(r#"{"success":false,"errorMsg":"库存不足！"}"#);
        assert_eq!(parse(&sold_out), Some(Answer::Code("SOLD_OUT".into())));
    }
}
