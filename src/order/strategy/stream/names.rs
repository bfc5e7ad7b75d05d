//! Names in the stream: its groups and consumers, and how long a status is kept. The names of its keys are in [`crate::keys`].

/// Its consumer group, shared with Java nodes.
pub(super) const GROUP: &str = "g1";

/// A second group, of which nobody is a member, also in the stream of what is held: it is there for as long as the stream
/// that the epoch began with exists, so a stream without it is another one.
pub(super) const EPOCH_GROUP: &str = "seckill-epoch";

/// What our consumers' names begin with; the rest is random.
pub(super) const CONSUMER_PREFIX: &str = "seckill-";

/// How long the status of a pending or refused order is kept, seconds: a day.
pub(super) const STATUS_TTL_S: u64 = 86_400;
