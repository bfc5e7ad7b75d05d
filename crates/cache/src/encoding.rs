//! The formats of values in Redis. Every read strategy reads all of them.
//!
//! | In Redis | Meaning |
//! |---|---|
//! | `""` | cached null: the row does not exist |
//! | the value's JSON | fresh until its key expires |
//! | `{"data":…,"expireTime":<epoch ms>}` | fresh until `expireTime`; the key does not expire |
//!
//! A value whose own JSON has exactly the two fields of the third format is always written in that format: with a time to
//! live as well, where its strategy sets one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// The format in which a loaded value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// The value's JSON, with a time to live.
    Plain,
    /// Wrapped with its `expireTime`, without a time to live.
    LogicalExpiry,
}

/// A value as written to Redis.
pub(crate) struct Encoded {
    pub(crate) text: String,
    /// Time to live, milliseconds; 0: no expiry.
    pub(crate) ttl: u64,
}

impl Encoded {
    /// Encodes `value`, or a cached null if there is none, to be valid for `valid`. A value's time is varied by up to
    /// 10 %: values that were stored together must not expire together (a *cache avalanche*).
    pub(crate) fn new<T: Serialize>(
        value: Option<&T>,
        format: Format,
        valid: Duration,
    ) -> serde_json::Result<Self> {
        let jitter: f64 = if value.is_some() {
            rand::random_range(0.9..=1.1)
        } else {
            1.0
        };
        // A float that is too large saturates; Redis refuses what is beyond its own range.
        let valid = (valid.as_secs_f64() * 1000.0 * jitter) as u64;
        let valid = valid.clamp(1, i64::MAX as u64 / 2);
        let Some(value) = value else {
            return Ok(Self {
                text: String::new(),
                ttl: valid,
            });
        };
        let plain = serde_json::to_string(value)?;
        let is_wrapped = format == Format::LogicalExpiry || expiry_of(plain.as_bytes()).is_some();
        let text = if is_wrapped {
            let expire_time = now_millis().saturating_add(valid);
            format!(r#"{{"data":{plain},"expireTime":{expire_time}}}"#)
        } else {
            plain
        };
        let ttl = match format {
            Format::Plain => valid,
            Format::LogicalExpiry => 0,
        };
        Ok(Self { text, ttl })
    }
}

/// A decoded reply of Redis.
#[derive(Debug, PartialEq)]
pub(crate) enum Decoded<T> {
    /// The key does not exist.
    Missing,
    /// A cached null.
    Null,
    /// A valid value.
    Fresh(T),
    /// A valid value that is about to expire: served while it is rebuilt.
    Expiring(T),
    /// A value past its logical expiry, which only the strategy of that name serves.
    Expired(T),
    /// In none of the formats.
    Unreadable,
}

/// The `expireTime` of a text in the format with a logical expiry; `None` for any other text.
fn expiry_of(text: &[u8]) -> Option<u64> {
    // Fails at the first field that is not one of the two: cheap for everything else.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Shape {
        #[serde(rename = "data")]
        _data: IgnoredAny,
        expire_time: u64,
    }
    let shape: Shape = serde_json::from_slice(text).ok()?;
    Some(shape.expire_time)
}

/// Decodes `text`, whose time to live was `pttl` (milliseconds; negative: none). A value with less than `refresh_ahead`
/// of it left counts as expiring.
pub(crate) fn decode<T: DeserializeOwned>(
    text: Option<&[u8]>,
    pttl: i64,
    refresh_ahead: Duration,
) -> Decoded<T> {
    #[derive(Deserialize)]
    struct Wrapped<T> {
        data: T,
    }
    let Some(text) = text else {
        return Decoded::Missing;
    };
    if text.is_empty() {
        return Decoded::Null;
    }
    let expiry = expiry_of(text);
    let value = match expiry {
        Some(_) => serde_json::from_slice(text).map(|wrapped: Wrapped<T>| wrapped.data),
        None => serde_json::from_slice(text),
    };
    let Ok(value) = value else {
        return Decoded::Unreadable;
    };
    let ahead = i64::try_from(refresh_ahead.as_millis()).unwrap_or(i64::MAX);
    if expiry.is_some_and(|time| time <= now_millis()) {
        Decoded::Expired(value)
    } else if (0..ahead).contains(&pttl) {
        Decoded::Expiring(value)
    } else {
        Decoded::Fresh(value)
    }
}

/// The wall clock in the unit of `expireTime`. Nodes whose clocks differ rebuild earlier or later by
/// that difference, and nothing worse.
fn now_millis() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Product {
        id: u64,
    }

    #[test]
    fn a_time_to_live_is_one_that_redis_takes() {
        let ttl = |valid| Encoded::new(Some(&1), Format::Plain, valid).unwrap().ttl;
        assert_eq!(ttl(Duration::ZERO), 1);
        assert!(ttl(Duration::MAX) <= i64::MAX as u64);
    }

    #[test]
    fn a_value_is_expiring_only_with_refresh_ahead() {
        let text = Some(br#"{"id":1}"#.as_slice());
        let ahead = Duration::from_secs(10);
        assert_eq!(
            decode(text, 9_999, ahead),
            Decoded::Expiring(Product { id: 1 })
        );
        assert_eq!(
            decode(text, 10_000, ahead),
            Decoded::Fresh(Product { id: 1 })
        );
        assert_eq!(decode(text, -1, ahead), Decoded::Fresh(Product { id: 1 }));
        assert_eq!(
            decode(text, 5, Duration::ZERO),
            Decoded::Fresh(Product { id: 1 })
        );
    }
}
