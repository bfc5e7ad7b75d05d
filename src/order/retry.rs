//! How a transaction that meets conflicts is retried: a few times, with random back-off.

use std::time::{Duration, Instant};

use backon::Backoff;

use crate::error::Error;

/// Tries in all, the first included.
const ATTEMPTS: u32 = 4;

/// Longest pause before a retry, milliseconds.
const PAUSE_MS: u64 = 20;

/// The pauses between the tries, for [`backon::Retryable`]. No retry begins later than `limit` after this call.
pub(super) fn conflict_pauses(limit: Duration) -> impl Backoff {
    let started = Instant::now();
    (1..ATTEMPTS).map_while(move |_| {
        if started.elapsed() >= limit {
            return None;
        }
        Some(Duration::from_millis(rand::random_range(1..=PAUSE_MS)))
    })
}

/// Whether the transaction lost a deadlock or a lock wait, so that nothing was done.
pub(super) fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Conflict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_three_short_pauses_and_none_after_the_limit() {
        let pauses: Vec<Duration> = conflict_pauses(Duration::from_secs(60)).collect();
        assert_eq!(pauses.len(), 3);
        assert!(
            pauses
                .iter()
                .all(|pause| (1..=20).contains(&pause.as_millis())),
            "{pauses:?}"
        );
        assert_eq!(conflict_pauses(Duration::ZERO).count(), 0);
    }
}
