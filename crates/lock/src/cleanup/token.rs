//! What is held under a token of its own, without an owner and a hold count: the key of a `SET NX` lock,
//! and permits. How it is released, and cleaned up after an outcome that never became known.

use std::future::Future;

use tokio::time::Instant;

use crate::cleanup::armed::Release;
use crate::cleanup::reconcile::release_until;
use crate::connection::failure::Failure;
use crate::error::{Error, LostReason};
use crate::locks::Locks;
use crate::stats::KindCounters;

pub(crate) trait Token: Release {
    /// How often the server has to say that nothing is held: twice where a first answer may have come
    /// before the acquire in doubt.
    const DENIALS: u32;

    fn counters(locks: &Locks) -> &KindCounters;

    fn since(&self) -> Instant;

    /// Until when the server may have it, and a release without an answer is repeated.
    fn ends(&self) -> Instant;

    /// The acquire was not answered: its lease may begin as late as now.
    fn unanswered(&mut self) {}

    /// Send one release. `false`: the server says that it is not held.
    fn send_release(&self) -> impl Future<Output = Result<bool, Failure>> + Send;
}

/// Release it; without an answer, the release is repeated in the background.
pub(crate) async fn release(held: impl Token) -> Result<(), Error> {
    count_end(&held);
    match held.send_release().await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Lost(LostReason::Expired)),
        Err(failure) => {
            if !matches!(failure, Failure::Rejected(_)) {
                let cleanup = held.locks().shared().cleanup.clone();
                cleanup.spawn(reconcile(held));
            }
            Err(failure.into_error("release"))
        }
    }
}

pub(crate) fn count_end<T: Token>(held: &T) {
    T::counters(held.locks())
        .held
        .record(held.since().elapsed());
}

/// The error of an acquire that failed; what the server may have granted is released in the background.
pub(crate) fn not_acquired(mut held: impl Token, failure: Failure) -> Error {
    if matches!(failure, Failure::Unknown(_)) {
        held.unanswered();
        let cleanup = held.locks().shared().cleanup.clone();
        cleanup.spawn(reconcile(held));
    }
    failure.into_unavailable("acquire")
}

/// Repeat the release until it is answered, or until the server must have forgotten it.
async fn reconcile<T: Token>(held: T) {
    let (shared, name) = (held.locks().shared(), held.name());
    let release = || held.send_release();
    if !release_until(shared, name, held.ends(), T::DENIALS, release).await {
        tracing::warn!(
            key = name,
            "a release was never answered; permits without a lease may stay acquired"
        );
    }
}
