//! Parsers of option values.

use std::time::Duration;

use crate::clock::Zone;

pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("must be at least 1 millisecond".to_owned()),
        Ok(count) if count <= 86_400_000 => Ok(Duration::from_millis(count)),
        Ok(_) => Err("must be at most a day, 86400000 milliseconds".to_owned()),
        Err(_) => Err("must be a whole number of milliseconds".to_owned()),
    }
}

pub(super) fn node_name(text: &str) -> Result<String, String> {
    let is_plain = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || ".-:".contains(c));
    if is_plain && (1..=64).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 64 letters, digits, `.`, `-` or `:`".to_owned())
    }
}

pub(super) fn zone(text: &str) -> Result<Zone, String> {
    text.parse().map(Zone).map_err(|_| {
        format!("`{text}` is not a time zone of the IANA database, such as Asia/Shanghai or UTC")
    })
}
