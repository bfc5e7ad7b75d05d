//! Ids of stream entries. No I/O may come in here.

use std::fmt;

use redis::{RedisWrite, ToRedisArgs};

/// An entry's id: a time and a number, which compare as Redis compares them. The default is `0-0`, before every entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EntryId {
    /// Milliseconds of Redis's clock.
    pub ms: u64,
    /// Tells entries of one millisecond apart.
    pub sequence: u64,
}

impl EntryId {
    /// After every entry.
    pub const LAST: EntryId = EntryId { ms: u64::MAX, sequence: u64::MAX };

    /// The id that Redis wrote as `<ms>-<sequence>`; `None` where the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (ms, sequence) = text.split_once('-')?;
        Some(EntryId { ms: ms.parse().ok()?, sequence: sequence.parse().ok()? })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.sequence)
    }
}

impl ToRedisArgs for EntryId {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg_fmt(self);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The id `ms-sequence`.
    pub fn id(ms: u64, sequence: u64) -> EntryId {
        EntryId { ms, sequence }
    }

    #[test]
    fn ids_compare_as_numbers() {
        assert!(id(9, 10) > id(9, 9) && id(10, 0) > id(9, 10));
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        assert_eq!(EntryId::parse("1700000000000-12"), Some(id(1_700_000_000_000, 12)));
        assert_eq!(id(3, 0).to_string(), "3-0");
        for text in ["", "5", "5-", "-5", "5-x", "sold out: 5-1"] {
            assert_eq!(EntryId::parse(text), None, "{text}");
        }
    }
}
