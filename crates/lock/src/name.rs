//! Lock names: which are valid, and the keys and channels derived from them.
//!
//! The names are Redisson's (`RedissonObject.prefixName` and `suffixName`, the same from 3.13 to
//! 4.7): every further key and channel carries the lock's name as its hash tag, so that all of a
//! lock is in one slot of a Redis Cluster.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// Redisson's prefix of the channel of a lock.
const CHANNEL_PREFIX: &str = "redisson_lock__channel";

/// A lock name with its Pub/Sub channel.
///
/// The key and the channel have to hash to the same slot of a Redis Cluster, or the release script
/// could not run there. So names whose braces do not form one hash tag are [refused](Self::check), on
/// every kind of server (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>,
/// "Hash tags").
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct LockName {
    key: Arc<str>,
    channel: Arc<str>,
}

impl LockName {
    pub(crate) fn new(name: &str) -> Self {
        let channel = format!("{CHANNEL_PREFIX}:{}", hash_tagged(name));
        Self { key: name.into(), channel: channel.into() }
    }

    /// Whether the name can be used; to be called before anything is sent.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for an empty name and for `a{b`, `a}b` and `a{}b`.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let reason = match self.key.split_once('{') {
            None if self.key.is_empty() => "it is empty",
            None if self.key.contains('}') => "it has a '}' without a '{'",
            None => return Ok(()),
            Some((_, tag)) => match tag.find('}') {
                None => "it has a '{' without a '}'",
                Some(0) => "its hash tag '{}' is empty",
                Some(_) => return Ok(()),
            },
        };
        Err(Error::InvalidName { name: self.key.to_string(), reason })
    }

    /// The Redis key.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// A further key or channel of this lock, in the same slot.
    pub(crate) fn prefixed(&self, prefix: &str) -> String {
        format!("{prefix}:{}", hash_tagged(&self.key))
    }

    /// The name as a hash tag: the beginning of further keys that have it in front, in the same slot.
    pub(crate) fn hash_tagged(&self) -> Cow<'_, str> {
        hash_tagged(&self.key)
    }

    /// The channel on which releases are published.
    pub(crate) fn channel(&self) -> &Arc<str> {
        &self.channel
    }
}

/// The name as a hash tag, braces put around it only where it has none.
fn hash_tagged(name: &str) -> Cow<'_, str> {
    if name.contains('{') { name.into() } else { format!("{{{name}}}").into() }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.key, f)
    }
}

#[cfg(test)]
mod tests {
    use super::LockName;

    #[test]
    fn channels_carry_braces_once() {
        let channel = |name| LockName::new(name).channel().to_string();
        assert_eq!(channel("lock:order:1010"), "redisson_lock__channel:{lock:order:1010}");
        assert_eq!(channel("lock:{7}:order"), "redisson_lock__channel:lock:{7}:order");
        assert_eq!(channel("{a}b}"), "redisson_lock__channel:{a}b}");
    }

    #[test]
    fn names_without_one_hash_slot_are_refused() {
        for name in ["", "a{b", "a}b", "a{}b", "{", "}", "{}", "}{", "a{}{b}"] {
            assert!(LockName::new(name).check().is_err(), "{name:?} was accepted");
        }
    }
}
