//! Ctrl-C and SIGTERM: work that has started servers is dropped together with them; a load is stopped, and what it has
//! seen is reported.

use std::pin::pin;

use tokio::signal::{
    ctrl_c,
    unix::{SignalKind, signal},
};
use workload::{Error, live::Progress};

/// Drops `work` on Ctrl-C or SIGTERM, and with it the servers that it has started and their folder.
///
/// # Errors
/// Those of `work`; [`Error::Usage`]: it was interrupted, or signals cannot be received.
pub async fn or_interrupted<T, E: From<Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::select! {
        outcome = work => outcome,
        signal = stop_signal() => Err(Error::Usage(signal?.to_owned()).into()),
    }
}

/// Calls `stop` on the first Ctrl-C or SIGTERM; `work` should then end soon, with what it has. The second signal drops
/// `work`.
///
/// # Errors
/// As [`or_interrupted`].
pub async fn or_stopped<T, E: From<Error>>(
    stop: impl FnOnce(),
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut work = pin!(work);
    let signal = tokio::select! {
        outcome = &mut work => return outcome,
        signal = stop_signal() => signal?,
    };
    Progress::Stderr.say(&format!(
        "{signal}: what is under way is waited for, then comes what was seen; a second time ends it at once"
    ));
    stop();
    or_interrupted(work).await
}

/// Waits for either signal; returns a word for it.
async fn stop_signal() -> Result<&'static str, Error> {
    let mut terminate = signal(SignalKind::terminate())
        .map_err(|error| Error::Usage(format!("no signals: {error}")))?;
    tokio::select! {
        _ = ctrl_c() => Ok("interrupted"),
        _ = terminate.recv() => Ok("terminated"),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};
    use tokio::sync::Notify;

    use super::*;

    /// One test for both, because a signal goes to the whole process.
    #[tokio::test]
    async fn the_first_signal_stops_work_and_the_second_drops_it() {
        // From here on SIGTERM does not end the process.
        let _received = signal(SignalKind::terminate()).expect("signals");
        let terminate = || kill_process(getpid(), Signal::TERM).expect("a signal");

        let stopped = Notify::new();
        let report = or_stopped(|| stopped.notify_one(), async {
            // After a yield the other branch of `select!` has been polled too, and listens for signals.
            tokio::task::yield_now().await;
            terminate();
            stopped.notified().await;
            Ok::<_, Error>("what was seen")
        })
        .await;
        assert_eq!(report.expect("a report"), "what was seen");

        let dropped = or_stopped(|| stopped.notify_one(), async {
            tokio::task::yield_now().await;
            terminate();
            stopped.notified().await;
            tokio::task::yield_now().await;
            terminate();
            std::future::pending::<Result<(), Error>>().await
        })
        .await;
        assert_eq!(dropped.expect_err("no report").to_string(), "terminated");
    }
}
