//! Counters and gauges of the stream for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares the numbers, each with its name in `/metrics`; its comment is the help text there.
macro_rules! numbers {
    (
        counters { $($(#[doc = $counts:literal])+ $counter:ident: $counter_name:literal,)+ }
        gauges { $($(#[doc = $shows:literal])+ $gauge:ident / $unit:literal: $gauge_name:literal,)+ }
    ) => {
        /// Counters and gauges.
        #[derive(Debug, Default)]
        pub struct StreamStats {
            $($(#[doc = $counts])+ pub(super) $counter: AtomicU64,)+
            $($(#[doc = $shows])+ pub(super) $gauge: AtomicU64,)+
        }

        impl StreamStats {
            /// Counters of this process: name, help text, value.
            pub fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(
                    ($counter_name, concat!($($counts),+).trim_ascii(), self.$counter.load(Relaxed))
                ),+]
            }

            /// Gauges: name, help text, value. The stream is shared by all nodes.
            pub fn gauges(&self) -> Vec<(&'static str, &'static str, f64)> {
                vec![$({
                    let value = self.$gauge.load(Relaxed) as f64 / $unit;
                    ($gauge_name, concat!($($shows),+).trim_ascii(), value)
                }),+]
            }
        }
    };
}

numbers! {
    counters {
        /// Orders this process admitted. Above seckill_stream_ordered_total for long: see the lag.
        admitted: "admitted",
        /// Entries this process found committed, or committed. Flat while the lag grows: the database.
        ordered: "ordered",
        /// Entries this process had refused, their stock returned: the counter admitted what the database refused.
        refused: "refused",
        /// Entries this process moved to the dead-letter stream. Each is a buyer who was told pending: XRANGE
        /// stream.orders.dead - + shows the errors.
        dead_lettered: "dead_lettered",
        /// Entries claimed from consumers that kept them: a node died or stood still, or a sale's row is locked.
        claimed: "claimed",
        /// Entries refused because another kind of consumer acknowledged them without an order. A Java node does where the
        /// user's lock is busy, an order exists or nothing is left.
        dropped_elsewhere: "dropped_elsewhere",
        /// Look-ups that said of an order from before a loss of Redis' data that it does not exist. Look at its persistence.
        unknown_after_loss: "lost",
        /// Stock counters set from the database and the stream. Many: Redis restarts, or keys are deleted by hand.
        counted: "sales_counted",
    }
    gauges {
        /// Users who have pending orders; one number for all nodes. At --stream-backlog purchases are refused.
        pending / 1.0: "waiting_buyers",
        /// Sales on the stream that are on, and closed because they are being counted, as for seconds after Redis restarted.
        closed / 1.0: "sales_closed",
        /// Those of them whose row is locked, or cannot be read: SHOW PROCESSLIST says by whom.
        locked / 1.0: "sales_locked",
        /// Age of the oldest entry that is not resolved, 0 without one; one number for all nodes. Growing: the database, or
        /// no consumer is alive.
        lag_ms / 1e3: "lag_seconds",
        /// For how long the longest of the closed sales is closed. Its purchases are answered 503 meanwhile.
        closed_ms / 1e3: "sale_closed_seconds",
    }
}
