//! Counters and gauges of the stream for `/metrics`; their help texts say what they are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters and gauges.
#[derive(Debug, Default)]
pub struct StreamStats {
    pub(super) admitted: AtomicU64,
    pub(super) ordered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) dead_lettered: AtomicU64,
    pub(super) claimed: AtomicU64,
    pub(super) dropped_elsewhere: AtomicU64,
    pub(super) unknown_after_loss: AtomicU64,
    pub(super) counted: AtomicU64,
    pub(super) pending: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) locked: AtomicU64,
    pub(super) closed_ms: AtomicU64,
    pub(super) lag_ms: AtomicU64,
}

impl StreamStats {
    /// Counters of this process: name, help text, value.
    pub fn counters(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            (
                "admitted",
                "Orders this process admitted. Above seckill_stream_ordered_total for long: see \
                 the lag.",
                &self.admitted,
            ),
            (
                "ordered",
                "Entries this process found committed, or committed. Flat while the lag \
                 grows: the database.",
                &self.ordered,
            ),
            (
                "refused",
                "Entries this process had refused, their stock returned: the counter \
                 admitted what the database refused.",
                &self.refused,
            ),
            (
                "dead_lettered",
                "Entries this process moved to the dead-letter stream. Each is a buyer who was \
                 told pending: XRANGE stream.orders.dead - + shows the errors.",
                &self.dead_lettered,
            ),
            (
                "claimed",
                "Entries claimed from consumers that kept them: a node died or stood \
                 still, or a sale's row is locked.",
                &self.claimed,
            ),
            (
                "dropped_elsewhere",
                "Entries refused because another kind of consumer acknowledged them without an \
                 order. A Java node does where the user's lock is busy, an order exists or \
                 nothing is left.",
                &self.dropped_elsewhere,
            ),
            (
                "lost",
                "Look-ups that said of an order from before a loss of Redis' data that it does \
                 not exist. Look at its persistence.",
                &self.unknown_after_loss,
            ),
            (
                "sales_counted",
                "Stock counters set from the database and the stream. Many: Redis \
                 restarts, or keys are deleted by hand.",
                &self.counted,
            ),
        ]
        .map(|(name, help, number)| (name, help, number.load(Relaxed)))
    }

    /// Gauges: name, help text, value. The stream is shared by all nodes.
    pub fn gauges(&self) -> [(&'static str, &'static str, f64); 5] {
        [
            (
                "waiting_buyers",
                "Users who have pending orders; one number for all nodes. At \
                 --stream-backlog purchases are refused.",
                &self.pending,
                1.0,
            ),
            (
                "sales_closed",
                "Sales on the stream that are on, and closed because they are being counted, as \
                 for seconds after Redis restarted.",
                &self.closed,
                1.0,
            ),
            (
                "sales_locked",
                "Those of them whose row is locked, or cannot be read: SHOW \
                 PROCESSLIST says by whom.",
                &self.locked,
                1.0,
            ),
            (
                "lag_seconds",
                "Age of the oldest entry that is not resolved, 0 without one; one number for \
                 all nodes. Growing: the database, or no consumer is alive.",
                &self.lag_ms,
                1e3,
            ),
            (
                "sale_closed_seconds",
                "For how long the longest of the closed sales is closed. Its purchases are \
                 answered 503 meanwhile.",
                &self.closed_ms,
                1e3,
            ),
        ]
        .map(|(name, help, number, unit)| (name, help, number.load(Relaxed) as f64 / unit))
    }
}
