//! Reconciles the server with this process, after a loss, an unknown outcome or an abandoned wait.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::connection::failure::Failure;
use crate::error::LostReason;
use crate::request::LockRequest;
use crate::state::hold::Hold;
use crate::state::shared::Shared;

/// The first pause between attempts; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Repeat `release`, which is sent to the node of `key`, until the server has answered, or until
/// `until`.
pub(crate) async fn release_until<F>(
    shared: &Shared,
    key: &str,
    until: Instant,
    mut release: impl FnMut() -> F,
) where
    F: Future<Output = Result<bool, Failure>>,
{
    let mut pause = FIRST_PAUSE;
    while Instant::now() < until {
        {
            let _permit = shared.cleanup_permit(key).await;
            match release().await {
                Ok(_) => return,
                Err(Failure::Rejected(cause)) => {
                    tracing::warn!(key, error = %cause, "release refused");
                    return;
                }
                Err(_) => {}
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// End a hold that was lost: notify its guards, and stop renewing it.
pub(crate) fn end_lost_hold(shared: &Arc<Shared>, hold: &Arc<Hold>, reason: LostReason) {
    if !hold.mark_lost(reason) {
        return;
    }
    shared.renewals.remove(hold);
    let counters = shared.counters.for_kind(hold.request.kind);
    counters.hold_lost(reason);
    counters.held.record(hold.since.elapsed());
    let lock = &hold.request.name;
    let owner = hold.request.owner;
    tracing::warn!(?lock, %owner, %reason, "lock lost");
    if reason == LostReason::Unreachable {
        // A renewal whose answer never came may have extended the lease once more.
        let until = Instant::now() + hold.lease().max(shared.config.command_timeout);
        shared
            .cleanup
            .spawn(reconcile(shared, &hold.request, until));
    }
}

/// Release the lock on the server unless this process holds it.
///
/// For unknown outcomes. Goes on until the server has answered, or until the lease must have ended
/// anyway and the unanswered commands can no longer arrive.
pub(crate) fn reconcile(
    shared: &Arc<Shared>,
    request: &LockRequest,
    until: Instant,
) -> impl Future<Output = ()> + Send + 'static {
    let until = until.max(Instant::now() + shared.connection.generations_kept());
    release_unless_held(shared, request, until)
}

/// Release the lock unless this process holds it, and leave the fair queue unless another call of this
/// owner waits. Goes on until the server has answered, or until `until`.
pub(crate) fn release_unless_held(
    shared: &Arc<Shared>,
    request: &LockRequest,
    until: Instant,
) -> impl Future<Output = ()> + Send + 'static {
    // The caller still has the entry, so this is the same one: it knows the generation.
    let entry = shared.registry.enter(request);
    let shared = shared.clone();
    let request = request.clone();
    async move {
        let shared = &shared;
        let request = &request;
        let entry = &entry;
        release_until(shared, request.name.key(), until, || async move {
            let _command = entry.command_lock.lock().await;
            // Other commands of this owner may have acquired the lock, or have taken until after `until`.
            if entry.live().is_some() || Instant::now() >= until {
                return Ok(true);
            }
            let leave_queue = entry.queued.load(Ordering::Relaxed) == 0;
            let connection = &shared.connection;
            let lease = shared.config.lease;
            connection
                .release(request, lease, 0, 1, leave_queue, &entry.generation)
                .await
        })
        .await;
    }
}
