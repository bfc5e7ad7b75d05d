//! Bringing the server to what this process knows, after an outcome that never became known or a
//! wait that was given up. Run by the janitor; nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::claim::Claim;
use super::commands::Given;
use super::conn::Failure;
use super::locks::Shared;

/// If nothing is held here, nothing is held there.
///
/// For outcomes that never became known. Goes on until the server has answered, or until the lease
/// must have ended anyway. A first "not held" is checked once more: the command in doubt may have
/// been delayed on a connection that broke.
pub(super) async fn settle(shared: Arc<Shared>, claim: Claim, until: Instant) {
    ask_until(shared, claim, until, 2).await;
}

/// If nobody waits here, nobody is in the queue there.
///
/// For a wait that was given up. No command of it is in doubt, so one answer is enough; after
/// `until` the others take this waiter for dead anyway.
pub(super) async fn leave(shared: Arc<Shared>, claim: Claim, until: Instant) {
    ask_until(shared, claim, until, 1).await;
}

/// Release until "it was yours" was heard once or "it was not" so many times.
async fn ask_until(shared: Arc<Shared>, claim: Claim, until: Instant, mut denials: u32) {
    let entry = shared.registry.enter(&claim);
    let mut pause = Duration::from_millis(25);
    loop {
        {
            let _permit = shared.cleanup_permit().await;
            let _turn = entry.turn.lock().await;
            // Others may have waited so long for their turn that there is nothing left to do.
            if entry.live().is_some() || Instant::now() >= until {
                return;
            }
            let lease = shared.config.lease;
            let leave = entry.queued.load(Ordering::Relaxed) == 0;
            match shared.connection.give(&claim, lease, 0, leave).await {
                Ok(Given::Yes | Given::Gone) => return,
                Ok(Given::No) => denials = denials.saturating_sub(1),
                Err(Failure::Rejected(cause)) => {
                    tracing::warn!(lock = ?claim.name, fault = cause, "lock clean-up refused");
                    return;
                }
                Err(_) => {}
            }
            if denials == 0 {
                return;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
