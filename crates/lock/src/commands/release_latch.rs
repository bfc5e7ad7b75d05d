//! Release latches: a release that Redis executes late has no effect.
//!
//! A release without an answer may still be on its way: on a connection that broke or was given up, the
//! system goes on retransmitting. Executed after the same owner has acquired the lock again, it would
//! release the new hold. So each sending names a key of its own, its *latch*, and does nothing if that
//! exists; and after a sending without an answer its latch is set, and the setting confirmed, before
//! anything else is sent for this owner. Redisson's releases have a latch too (from 3.24 on), with the
//! answer in it; here it is written only when it is needed. It is declared as a key of the script, as some
//! clusters ask for: so while a cluster moves the slot, with the lock on one node and no latch there, it
//! refuses a release (TRYAGAIN), which is then repeated in the background until the slot has moved.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisResult;
use redis_link::RoutedConnection;

use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::holding::request::LockRequest;

/// How long a latch is kept, in command timeouts and at least: longer than the system retransmits on
/// a connection, which is five command timeouts on Linux.
const KEEP: (u32, Duration) = (10, Duration::from_secs(60));

/// The releases of one lock and owner that were sent and not answered.
#[derive(Debug, Default)]
pub(crate) struct ReleaseLatches {
    unanswered: Mutex<Vec<u64>>,
}

impl ReleaseLatches {
    /// The number of a release that is about to be sent.
    pub(crate) fn next(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.unanswered().push(number);
        number
    }

    /// The server has answered it, or it has never been sent.
    pub(crate) fn answered(&self, number: u64) {
        self.unanswered().retain(|unanswered| *unanswered != number);
    }

    fn unanswered(&self) -> MutexGuard<'_, Vec<u64>> {
        self.unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn key(request: &LockRequest, number: u64) -> String {
    let prefix = request.name.prefixed("redisson_unlock_latch");
    format!("{prefix}:{}:{number}", request.owner)
}

impl CommandConnection {
    /// Make sure that no release of this owner that was not answered has an effect from now on.
    pub(crate) async fn close_latches(
        &self,
        request: &LockRequest,
        latches: &ReleaseLatches,
    ) -> Result<(), Failure> {
        if latches.unanswered().is_empty() {
            return Ok(());
        }
        let closed =
            self.bounded(async |mut c, _| self.close_latches_on(&mut c, request, latches).await);
        closed
            .await
            .map_err(|failure| Failure::NotExecuted(failure.cause()))
    }

    /// As [`close_latches`](Self::close_latches), on a connection that the caller has.
    pub(crate) async fn close_latches_on(
        &self,
        connection: &mut RoutedConnection,
        request: &LockRequest,
        latches: &ReleaseLatches,
    ) -> RedisResult<()> {
        let numbers = latches.unanswered().clone();
        let keep = KEEP.1.max(self.timeout().saturating_mul(KEEP.0));
        let mut set = redis::pipe();
        for number in &numbers {
            set.cmd("SET")
                .arg(key(request, *number))
                .arg("")
                .arg("PX")
                .arg(millis(keep))
                .ignore();
        }
        set.exec_async(connection).await?;
        for number in numbers {
            latches.answered(number);
        }
        Ok(())
    }
}
