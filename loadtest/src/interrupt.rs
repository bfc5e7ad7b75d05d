//! Ctrl-C and SIGTERM, for work that has started servers.

use tokio::signal::{
    ctrl_c,
    unix::{SignalKind, signal},
};
use workload::Error;

/// Drops `work` on Ctrl-C or SIGTERM, and with it the servers that it has started and their folder.
///
/// # Errors
/// Those of `work`; [`Error::Usage`]: it was interrupted, or signals cannot be received.
pub async fn or_interrupted<T, E: From<Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut terminate = signal(SignalKind::terminate())
        .map_err(|error| Error::Usage(format!("no signals: {error}")))?;
    tokio::select! {
        outcome = work => outcome,
        _ = ctrl_c() => Err(Error::Usage("interrupted".to_owned()).into()),
        _ = terminate.recv() => Err(Error::Usage("terminated".to_owned()).into()),
    }
}
