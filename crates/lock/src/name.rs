//! Names of locks: which are valid, and the keys and channels derived from them.
//!
//! The names are Redisson's (`RedissonObject.prefixName` and `suffixName`, the same from 3.13 to
//! 4.7): every further key and channel carries the lock's name as its hash tag, so that all of a
//! lock is in one slot of a Redis Cluster.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// The name of a lock.
///
/// Its key and its channel have to hash to the same slot of a Redis Cluster, or the release script
/// could not run there. So names whose braces do not form one hash tag are [refused](Self::check), on
/// every kind of server (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>,
/// "Hash tags").
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name(Arc<str>);

impl Name {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Whether the name can be used; to be called before anything is sent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let reason = match self.0.split_once('{') {
            None if self.0.is_empty() => "it is empty",
            None if self.0.contains('}') => "it has a '}' without a '{'",
            None => return Ok(()),
            Some((_, tag)) => match tag.find('}') {
                None => "it has a '{' without a '}'",
                Some(0) => "its hash tag '{}' is empty",
                Some(_) => return Ok(()),
            },
        };
        Err(Error::InvalidName {
            name: self.0.to_string(),
            reason,
        })
    }

    pub(crate) fn key(&self) -> &str {
        &self.0
    }

    /// A further key or channel, in the same slot.
    pub(crate) fn prefixed(&self, prefix: &str) -> String {
        format!("{prefix}:{}", self.hash_tagged())
    }

    /// The name as a hash tag, braces put around it only where it has none.
    pub(crate) fn hash_tagged(&self) -> Cow<'_, str> {
        let name = self.key();
        if name.contains('{') {
            name.into()
        } else {
            format!("{{{name}}}").into()
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn further_keys_carry_braces_once() {
        let further = |name| Name::new(name).prefixed("p");
        assert_eq!(further("lock:7"), "p:{lock:7}");
        assert_eq!(further("lock:{7}:order"), "p:lock:{7}:order");
        assert_eq!(further("{a}b}"), "p:{a}b}");
    }

    #[test]
    fn names_without_one_hash_slot_are_refused() {
        for name in ["", "a{b", "a}b", "a{}b", "{", "}", "{}", "}{", "a{}{b}"] {
            assert!(Name::new(name).check().is_err(), "{name:?} was accepted");
        }
    }
}
