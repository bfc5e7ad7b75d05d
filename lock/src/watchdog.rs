//! Keeps held locks alive, and says which are lost. One task for all locks of a process.
//!
//! Holds are filed under the instant at which they need a look: a third of the lease after the
//! last confirmed write, or the deadline of a lock with a fixed lease. Whatever is due goes out
//! together over the multiplexed connection, each with a limit of its own, so that a key that
//! fails or a slow answer delays nobody else. A failed renewal is repeated until the deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::LostReason;
use super::commands::Renewal;
use super::conn::{Connection, Failure};
use super::hold::{Hold, Verdict};
use super::stats::Counters;

/// How many renewals may be under way at once; more wait for their turn.
const AT_ONCE: usize = 512;

/// Who is due when.
#[derive(Default)]
pub(super) struct Timetable {
    table: Mutex<Table>,
    /// Wakes the watchdog for a hold that is due before it meant to wake.
    earlier: Notify,
}

#[derive(Default)]
struct Table {
    due: BTreeMap<(Instant, u64), Arc<Hold>>,
    /// When the watchdog will wake by itself. A hold that is due later needs not wake it, so that
    /// a stream of short holds costs it nothing.
    wakes_at: Option<Instant>,
}

/// Told of each loss, so that what may remain on the server is cleaned up.
pub(super) type OnLoss = Arc<dyn Fn(&Arc<Hold>, LostReason) + Send + Sync>;

impl Timetable {
    /// File a hold, in place of where it was filed before.
    pub(super) fn file(&self, hold: &Arc<Hold>, at: Instant) {
        let mut table = self.table();
        // It may have ended a moment ago; whoever ended it has struck it off, or will.
        if !hold.is_live() {
            return;
        }
        if let Some(old) = hold.file(Some(at)) {
            table.due.remove(&(old, hold.id));
        }
        table.due.insert((at, hold.id), hold.clone());
        if table.wakes_at.is_none_or(|wakes_at| at < wakes_at) {
            table.wakes_at = Some(at);
            drop(table);
            self.earlier.notify_one();
        }
    }

    /// Forget a hold.
    pub(super) fn strike(&self, hold: &Hold) {
        let mut table = self.table();
        if let Some(old) = hold.file(None) {
            table.due.remove(&(old, hold.id));
        }
    }

    /// Number of live holds.
    pub(super) fn len(&self) -> usize {
        self.table().due.len()
    }

    /// Take out up to `limit` holds that are due, and say when to wake next.
    fn take(&self, now: Instant, limit: usize) -> (Vec<Arc<Hold>>, Option<Instant>) {
        let mut table = self.table();
        let mut taken = Vec::new();
        while taken.len() < limit {
            match table.due.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let hold = first.remove();
                    hold.file(None);
                    taken.push(hold);
                }
                _ => break,
            }
        }
        // Without a free place, a renewal that ends wakes the watchdog, not the clock.
        // With nothing filed, an old wake-up stands: moving it for each short hold would cost more
        // than waking once for nothing.
        let next = match table.due.keys().next() {
            _ if limit == 0 => None,
            Some(&(at, _)) => Some(at),
            None => table.wakes_at.filter(|&at| at > now),
        };
        table.wakes_at = next;
        (taken, next)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renew until `stop`.
pub(super) async fn run(
    timetable: Arc<Timetable>,
    connection: Arc<Connection>,
    counters: Arc<Counters>,
    on_loss: OnLoss,
    stop: CancellationToken,
) {
    let mut renewals: JoinSet<(Arc<Hold>, Instant, Result<Renewal, Failure>)> = JoinSet::new();
    loop {
        let now = Instant::now();
        let (due, next) = timetable.take(now, AT_ONCE.saturating_sub(renewals.len()));
        for hold in due {
            match hold.verdict(now) {
                Verdict::Over => {}
                Verdict::Wait(at) => timetable.file(&hold, at),
                Verdict::Lose(reason) => on_loss(&hold, reason),
                Verdict::Renew { lease, deadline } => {
                    // Filed under its deadline meanwhile: whatever becomes of the renewal, the
                    // hold is looked at again.
                    timetable.file(&hold, deadline);
                    let connection = connection.clone();
                    renewals.spawn(async move {
                        let sent = Instant::now();
                        let patience = deadline.saturating_duration_since(sent).min(lease / 3);
                        let reply = connection.keep(&hold.claim, lease, patience).await;
                        (hold, sent, reply)
                    });
                }
            }
        }
        let clock = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(end) = renewals.join_next(), if !renewals.is_empty() => match end {
                Ok((hold, sent, reply)) => {
                    let counters = counters.of(hold.claim.kind);
                    match &reply {
                        Ok(Renewal::Done) => counters.renewed(),
                        // A loss, counted as such.
                        Ok(Renewal::Gone | Renewal::Taken) => {}
                        Err(_) => counters.renewal_failed(),
                    }
                    settle(&timetable, &on_loss, &hold, sent, reply);
                }
                Err(error) => tracing::error!(fault = %error, "a lock renewal ended early"),
            },
            () = clock => {}
            () = timetable.earlier.notified() => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Draw the consequences of one renewal.
fn settle(
    timetable: &Timetable,
    on_loss: &OnLoss,
    hold: &Arc<Hold>,
    sent: Instant,
    reply: Result<Renewal, Failure>,
) {
    let failure = match reply {
        Ok(Renewal::Done) => {
            if let Some(at) = hold.confirmed(sent) {
                timetable.file(hold, at);
            }
            return;
        }
        Ok(Renewal::Gone) => return on_loss(hold, LostReason::Expired),
        Ok(Renewal::Taken) => return on_loss(hold, LostReason::Taken),
        Err(failure) => failure,
    };
    match hold.verdict(Instant::now()) {
        Verdict::Over => {}
        Verdict::Lose(reason) => on_loss(hold, reason),
        Verdict::Wait(at) => timetable.file(hold, at),
        Verdict::Renew { lease, deadline } => {
            tracing::warn!(lock = ?hold.claim.name, fault = ?failure, "lock renewal failed; trying again");
            let pause = (lease / 30).clamp(Duration::from_millis(5), Duration::from_secs(1));
            timetable.file(hold, (Instant::now() + pause).min(deadline));
        }
    }
}
