//! What a guard holds. It is released once: by the caller, or in the background when the guard is dropped.

use std::future::Future;

use crate::error::Error;
use crate::locks::Locks;

pub(crate) trait Release: Clone + Send + Sync + 'static {
    fn locks(&self) -> &Locks;

    /// What is released, for the log.
    fn name(&self) -> &str;

    fn release(self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Releases what it holds when it is dropped.
pub(crate) struct Armed<H: Release> {
    pub(crate) held: H,
    armed: bool,
}

impl<H: Release> Armed<H> {
    pub(crate) fn new(held: H) -> Self {
        Self { held, armed: true }
    }

    /// There is nothing to release any more: dropping this has no effect.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Release it now; once polled, it is finished in the background even if the future is dropped.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.armed) {
            return Ok(());
        }
        let held = self.held.clone();
        drop(self);
        held.locks().ensure_running();
        let cleanup = held.locks().shared().cleanup.clone();
        cleanup.finish(held.release()).await
    }
}

impl<H: Release> Drop for Armed<H> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let held = self.held.clone();
        self.held.locks().ensure_running();
        self.held.locks().shared().cleanup.spawn(async move {
            let name = held.name().to_owned();
            if let Err(error) = held.release().await {
                tracing::debug!(lock = name, %error, "what a dropped guard held is not released at once");
            }
        });
    }
}
