//! Keys of the node's Redis whose exact names its author chose: they are found by a word and a number in them.

use std::collections::HashSet;

use redis::AsyncCommands;
use redis_link::RoutedConnection;
use workload::{Error, redis_connection};

use super::traces::redis_error;

/// The keys that have this word in their names, and this number as a number of its own.
pub async fn find(redis_url: &str, word: &str, number: u64) -> Result<HashSet<String>, Error> {
    let number = number.to_string();
    let keys = find_matching(redis_url, &format!("*{word}*{number}*")).await?;
    let has_number = |key: &String| has_number(key, &number);
    Ok(keys.into_iter().filter(has_number).collect())
}

/// The keys that match a pattern. A name that is not text is left out: some serializers write such.
pub async fn find_matching(redis_url: &str, pattern: &str) -> Result<Vec<String>, Error> {
    let mut keys = Vec::new();
    for mut redis in redis_connection::masters(redis_url).await? {
        let mut found = redis
            .scan_match::<_, Vec<u8>>(pattern)
            .await
            .map_err(|error| redis_error(&error))?;
        while let Some(key) = found.next_item().await {
            let key = key.map_err(|error| redis_error(&error))?;
            keys.extend(String::from_utf8(key));
        }
    }
    Ok(keys)
}

/// Whether the key has this number, and not as a part of a longer one.
fn has_number(key: &str, number: &str) -> bool {
    key.split(|character: char| !character.is_ascii_digit())
        .any(|digits| digits == number)
}

/// The key with another number in place of this one.
pub fn with_number(key: &str, number: u64, other: u64) -> String {
    let characters: Vec<char> = key.chars().collect();
    let parts = characters.chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit());
    let parts = parts.map(|part| part.iter().collect::<String>());
    let replaced = parts.map(|part| match part.parse::<u64>() {
        Ok(parsed) if parsed == number => other.to_string(),
        _ => part,
    });
    replaced.collect()
}

/// The type of a key, as Redis names it: `none` where there is no such key.
pub async fn kind(redis: &mut RoutedConnection, key: &str) -> Result<String, Error> {
    let kind = redis::cmd("TYPE").arg(key).query_async(redis).await;
    kind.map_err(|error| redis_error(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_another_user_is_not_taken_for_this_ones() {
        assert!(has_number("lock:order:7", "7"));
        assert!(has_number("lock:7:order", "7"));
        for of_another in ["lock:order:17", "lock:order:71", "clock:order"] {
            assert!(!has_number(of_another, "7"), "{of_another}");
        }
    }

    #[test]
    fn the_lock_of_another_user_has_that_users_number() {
        assert_eq!(with_number("lock:order:7:17", 7, 8), "lock:order:8:17");
        assert_eq!(with_number("单:17", 17, 4), "单:4");
    }
}
