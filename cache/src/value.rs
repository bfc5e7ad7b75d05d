//! Cached values, and the two formats in which Redis holds them. Every reader reads both, whatever
//! wrote them.
//!
//! | In Redis | Means |
//! |---|---|
//! | `""` | the row does not exist |
//! | the value's JSON | fresh until Redis lets it expire |
//! | `{"data":…,"expireTime":<epoch ms>}` | fresh until then; stays until it is replaced |
//!
//! A value whose own JSON is an object of exactly the two fields `data` and `expireTime` cannot be
//! told from the third format, and must not be cached.

use std::ops::Deref;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::Ttl;

/// What can be cached.
pub trait Value: Serialize + DeserializeOwned + Send + Sync + 'static {}
impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Value for T {}

/// A value that readers share, together with its finished reply: whoever needs the reply first
/// renders it, and every later hit sends the same bytes.
#[derive(Debug)]
pub struct Cached<T> {
    value: T,
    body: OnceLock<Bytes>,
}

impl<T> Cached<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value, body: OnceLock::new() }
    }

    /// The reply for this value. `render` runs for the first caller only, and must give the same
    /// bytes whoever calls.
    pub fn body(&self, render: impl FnOnce(&T) -> Bytes) -> Bytes {
        self.body.get_or_init(|| render(&self.value)).clone()
    }
}

impl<T> Deref for Cached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// In which of the two formats to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// The value's JSON, with a time to live.
    Plain,
    /// Wrapped with its logical expiry, without one.
    Logical,
}

/// A value as it goes to Redis.
pub(super) struct Encoded {
    pub(super) text: String,
    /// Milliseconds; 0: no expiry.
    pub(super) ttl: u64,
}

impl Encoded {
    /// The cached null.
    pub(super) fn null(ttl: Ttl) -> Self {
        Self { text: String::new(), ttl: ttl.pick() }
    }

    pub(super) fn plain<T: Serialize>(value: &T, ttl: Ttl) -> serde_json::Result<Self> {
        Ok(Self { text: serde_json::to_string(value)?, ttl: ttl.pick() })
    }

    pub(super) fn logical<T: Serialize>(value: &T, fresh_for: Ttl) -> serde_json::Result<Self> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Wrapped<'a, T> {
            data: &'a T,
            expire_time: u64,
        }
        let expire_time = now_millis().saturating_add(fresh_for.pick());
        Ok(Self { text: serde_json::to_string(&Wrapped { data: value, expire_time })?, ttl: 0 })
    }
}

/// What Redis held.
#[derive(Debug, PartialEq)]
pub(super) enum Found<T> {
    /// Nothing.
    Missing,
    /// The cached null.
    Absent,
    /// A value to be believed.
    Fresh(T),
    /// A value to be served while it is rebuilt.
    Stale(T),
    /// Something else.
    Unreadable,
}

/// Read `text`, whose time to live was `pttl` (milliseconds, negative: none; `None`: not asked).
/// A value with less than `rebuild_ahead` left counts as stale.
pub(super) fn decode<T: DeserializeOwned>(
    text: Option<&[u8]>,
    pttl: Option<i64>,
    rebuild_ahead: Duration,
) -> Found<T> {
    // Fails at the first field that is not one of the two: cheap for everything else.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Shape {
        #[serde(rename = "data")]
        _data: IgnoredAny,
        expire_time: u64,
    }
    #[derive(Deserialize)]
    struct Data<T> {
        data: T,
    }
    let Some(text) = text else { return Found::Missing };
    if text.is_empty() {
        return Found::Absent;
    }
    if let Ok(shape) = serde_json::from_slice::<Shape>(text) {
        let Ok(Data { data }) = serde_json::from_slice(text) else { return Found::Unreadable };
        let fresh = shape.expire_time > now_millis();
        return if fresh { Found::Fresh(data) } else { Found::Stale(data) };
    }
    let Ok(value) = serde_json::from_slice(text) else { return Found::Unreadable };
    let ahead = i64::try_from(rebuild_ahead.as_millis()).unwrap_or(i64::MAX);
    match pttl {
        Some(left) if (0..ahead).contains(&left) => Found::Stale(value),
        _ => Found::Fresh(value),
    }
}

/// The wall clock, as `expireTime` counts it. Nodes whose clocks differ rebuild earlier or later
/// by that difference, and nothing worse.
fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Duration = Duration::ZERO;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Shop {
        id: u64,
    }

    fn read(text: &str) -> Found<Shop> {
        decode(Some(text.as_bytes()), Some(5_000), NEVER)
    }

    #[test]
    fn both_formats_are_read_whatever_the_order_of_their_fields() {
        assert_eq!(read(r#"{"id":1}"#), Found::Fresh(Shop { id: 1 }));
        assert_eq!(read(r#"{"data":{"id":1},"expireTime":1}"#), Found::Stale(Shop { id: 1 }));
        assert_eq!(
            read(r#"{"expireTime":99999999999999,"data":{"id":1}}"#),
            Found::Fresh(Shop { id: 1 })
        );
        let hour = Ttl::exact(Duration::from_secs(3600));
        assert_eq!(
            read(&Encoded::plain(&Shop { id: 2 }, hour).unwrap().text),
            Found::Fresh(Shop { id: 2 })
        );
        let logical = Encoded::logical(&Shop { id: 2 }, hour).unwrap();
        assert_eq!(logical.ttl, 0);
        assert_eq!(read(&logical.text), Found::Fresh(Shop { id: 2 }));
    }

    #[test]
    fn nulls_gaps_and_rubbish_are_told_apart() {
        assert_eq!(read(""), Found::Absent);
        assert_eq!(decode::<Shop>(None, Some(-2), NEVER), Found::Missing);
        for rubbish in ["{", "null", "[]", "\u{0}", r#"{"data":1,"expireTime":1}"#, r#"{"id":"x"}"#]
        {
            assert_eq!(read(rubbish), Found::Unreadable, "{rubbish:?}");
        }
    }

    #[test]
    fn a_value_about_to_expire_is_stale_only_where_rebuilding_ahead_is_wanted() {
        let text = Some(br#"{"id":1}"#.as_slice());
        let ahead = Duration::from_secs(10);
        assert_eq!(decode(text, Some(9_999), ahead), Found::Stale(Shop { id: 1 }));
        assert_eq!(decode(text, Some(10_000), ahead), Found::Fresh(Shop { id: 1 }));
        assert_eq!(decode(text, Some(-1), ahead), Found::Fresh(Shop { id: 1 }));
        assert_eq!(decode(text, None, ahead), Found::Fresh(Shop { id: 1 }));
        assert_eq!(decode(text, Some(5), NEVER), Found::Fresh(Shop { id: 1 }));
    }
}
