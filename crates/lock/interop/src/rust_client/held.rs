//! What an actor of the Rust client holds.

use futures_util::future::BoxFuture;
use lock::{LeasedPermits, LostReason};

type Release = Box<dyn FnOnce() -> BoxFuture<'static, Result<(), lock::Error>> + Send>;

/// One hold of any kind of lock, or permits.
pub(super) struct Held {
    pub(super) fence: Option<u64>,
    /// Ends when it is lost.
    pub(super) lost: Option<BoxFuture<'static, LostReason>>,
    pub(super) kept: Kept,
}

pub(super) enum Kept {
    Leased(LeasedPermits),
    Other(Release),
}

impl Held {
    pub(super) fn releasing(
        release: impl FnOnce() -> BoxFuture<'static, Result<(), lock::Error>> + Send + 'static,
    ) -> Self {
        Self { fence: None, lost: None, kept: Kept::Other(Box::new(release)) }
    }

    pub(super) async fn release(self) -> Result<(), lock::Error> {
        match self.kept {
            Kept::Leased(permits) => permits.release().await,
            Kept::Other(release) => release().await,
        }
    }
}
