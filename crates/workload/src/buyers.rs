//! A signed-in buyer, and the requests that prepare a sale.

use std::time::Duration;

use hyper::header::HeaderValue;
use serde::Deserialize;

use crate::{
    Error,
    http::{Call, Connection, Response},
    reply::Envelope,
};

/// Time limit of one preparatory request.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A user with a session.
#[derive(Debug, Clone)]
pub struct Buyer {
    /// The user's id.
    pub user_id: u64,
    /// The session token, ready to be sent.
    pub token: HeaderValue,
}

/// Sends one preparatory request and insists on success.
pub async fn insist<T: for<'de> Deserialize<'de>>(
    connection: &mut Connection,
    call: &Call,
    what: &'static str,
) -> Result<Option<T>, Error> {
    let url = connection.target.to_string();
    let unreachable = |reason: String| Error::Unreachable {
        url: url.clone(),
        what,
        reason,
    };
    let answer = connection
        .send(call)
        .await
        .map_err(|failure| unreachable(failure.to_string()));
    let Response { status, body, .. } = answer?;
    match serde_json::from_slice(&body) {
        Ok(Envelope {
            success: true,
            data,
            ..
        }) => Ok(data),
        Ok(Envelope {
            code, error_msg, ..
        }) => Err(Error::Refused {
            what,
            status,
            code: code.unwrap_or_else(|| "no code".to_owned()),
            message: error_msg.unwrap_or_default(),
        }),
        Err(_) => Err(unreachable(format!(
            "HTTP {status} without the reply envelope: \"{}\"",
            excerpt(&body)
        ))),
    }
}

/// The first words of an answer, on one line.
fn excerpt(body: &[u8]) -> String {
    const CHARACTERS: usize = 160;
    let text = String::from_utf8_lossy(body);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_quoted_by_its_first_words_on_one_line() {
        let page = "<html>\n  服务器 <b>异常</b>\n".repeat(20);
        let quoted = excerpt(page.as_bytes());
        assert!(
            quoted.starts_with("<html> 服务器 <b>异常</b> <html>"),
            "{quoted}"
        );
        assert_eq!(quoted.chars().count(), 160);
        assert_eq!(excerpt(b""), "");
    }
}
