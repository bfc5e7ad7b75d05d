//! The key under which a node caches a shop: which it is, how it expires, and how it is made to.

use redis::AsyncCommands;
use redis_link::RoutedConnection;
use serde_json::{Value, json};
use workload::Error;

use crate::judge::{keys, traces::redis_error};

/// How a key came to have no valid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// By its time to live, of which so many seconds were left.
    TimeToLive(i64),
    /// By the time in its value.
    Logical,
    /// It never expires, so it was deleted, as by a change of the shop.
    Deleted,
}

/// Lets a key expire; `None` where the time in its value is in no known form.
pub async fn expire(mut redis: RoutedConnection, key: &str) -> Result<Option<Expiry>, Error> {
    let left_ms: i64 = redis.pttl(key).await.map_err(|error| redis_error(&error))?;
    if let Some(mut value) = read_json(&mut redis, key).await?
        && let Some(time) = expiry_time(&mut value)
    {
        let Some(past) = long_ago(time) else {
            return Ok(None);
        };
        *time = past;
        let set = redis.set(key, value.to_string()).await;
        let () = set.map_err(|error| redis_error(&error))?;
        return Ok(Some(Expiry::Logical));
    }
    if left_ms >= 0 {
        let expires = redis.pexpire(key, 1).await;
        let () = expires.map_err(|error| redis_error(&error))?;
        return Ok(Some(Expiry::TimeToLive(left_ms / 1000)));
    }
    let deleted = redis.del(key).await;
    let () = deleted.map_err(|error| redis_error(&error))?;
    Ok(Some(Expiry::Deleted))
}

/// Warms a shop up as the course's test does, for a node that finds warm shops only: takes over the value of a shop that is
/// warm, with this id and name, and a time that is over. Returns the new key; `None` where no shop is warm.
pub async fn warm_up(
    redis_url: &str,
    mut redis: RoutedConnection,
    shop: u64,
    name: &str,
) -> Result<Option<String>, Error> {
    for key in keys::find_matching(redis_url, "*shop*").await? {
        let Some(value) = read_json(&mut redis, &key).await? else {
            continue;
        };
        if let Some((key, value)) = as_of_shop(&key, value, shop, name) {
            let set = redis.set(&key, value.to_string()).await;
            let () = set.map_err(|error| redis_error(&error))?;
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// The key and the value of a warm shop, as they are for this one; `None` for any other key.
fn as_of_shop(key: &str, mut value: Value, shop: u64, name: &str) -> Option<(String, Value)> {
    let id = value["data"]["id"].as_u64()?;
    let prefix = key.strip_suffix(&id.to_string())?;
    let time = expiry_time(&mut value)?;
    *time = long_ago(time)?;
    value["data"]["id"] = json!(shop);
    value["data"]["name"] = json!(name);
    Some((format!("{prefix}{shop}"), value))
}

/// The value of a key that is JSON.
async fn read_json(redis: &mut RoutedConnection, key: &str) -> Result<Option<Value>, Error> {
    if keys::kind(redis, key).await? != "string" {
        return Ok(None);
    }
    let value: Option<Vec<u8>> = redis.get(key).await.map_err(|error| redis_error(&error))?;
    Ok(value.and_then(|value| serde_json::from_slice(&value).ok()))
}

/// The time at which a value expires logically, if it has one: `expireTime` in the course.
fn expiry_time(value: &mut Value) -> Option<&mut Value> {
    let mut fields = value.as_object_mut()?.iter_mut();
    let found = fields.find(|(name, _)| name.to_lowercase().contains("expire"));
    found.map(|(_, time)| time)
}

/// The year 2000 in the unit of this number, milliseconds or seconds since 1970. Not a small number: Hutool, which the course
/// uses, makes a `LocalDateTime` of a `long` only.
fn long_ago_as_number(time: u64) -> u64 {
    const YEAR_2000: u64 = 946_684_800;
    const LATEST_IN_SECONDS: u64 = 100_000_000_000;
    if time > LATEST_IN_SECONDS {
        YEAR_2000 * 1000
    } else {
        YEAR_2000
    }
}

/// The year 2000 in the form of this time: a number since 1970, a text, or the numbers of a date, as Java's serializers write
/// them.
fn long_ago(time: &Value) -> Option<Value> {
    match time {
        Value::Number(number) => number.as_u64().map(|time| json!(long_ago_as_number(time))),
        Value::String(text) => {
            if let Ok(time) = text.parse() {
                return Some(json!(long_ago_as_number(time).to_string()));
            }
            let (year, rest) = text.split_at_checked(4)?;
            let year: u32 = year.parse().ok()?;
            (year > 2000).then(|| json!(format!("2000{rest}")))
        }
        Value::Array(parts) => {
            let year = parts.first()?.as_u64()?;
            let mut parts = parts.clone();
            parts[0] = json!(2000);
            (year > 2000).then_some(Value::Array(parts))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_keeps_its_form_and_is_over() {
        for (time, past) in [
            (
                json!(1_900_000_000_000_u64),
                Some(json!(946_684_800_000_u64)),
            ),
            (json!("1900000000000"), Some(json!("946684800000"))),
            (json!(1_900_000_000), Some(json!(946_684_800))),
            (
                json!("2026-11-30T14:00:00"),
                Some(json!("2000-11-30T14:00:00")),
            ),
            (
                json!([2026, 11, 30, 14, 0]),
                Some(json!([2000, 11, 30, 14, 0])),
            ),
            (json!("30.11.2026"), None),
            (json!(""), None),
            (json!([]), None),
            (json!(null), None),
        ] {
            assert_eq!(long_ago(&time), past, "{time}");
        }
    }

    #[test]
    fn only_a_value_that_expires_logically_has_a_time() {
        let mut shop = json!({ "id": 1, "openHours": "10:00-22:00" });
        assert_eq!(expiry_time(&mut shop), None);
        let mut wrapped = json!({ "data": shop, "expireTime": 7 });
        assert_eq!(expiry_time(&mut wrapped), Some(&mut json!(7)));
    }
}
