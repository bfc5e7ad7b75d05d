//! Runs one command within a time limit, and once more if its connection broke.
//!
//! Every script of this crate is idempotent for the same arguments. So a command whose connection
//! broke can be sent again straight away: an idle connection that a restarted server closed costs
//! no caller an error.

use std::future::Future;
use std::time::Duration;

use redis::{ErrorKind, RedisResult, ServerErrorKind};
use redis_link::{Redis, RoutedConnection};

use crate::connection::failure::Failure;

/// Run `command` within `timeout`, at most twice. Its second argument says whether an earlier
/// sending may have been executed.
///
/// # Errors
/// [`Failure::Unknown`] at the timeout, and whenever the first sending may have been executed.
pub(crate) async fn bounded<T, F>(
    redis: &Redis,
    timeout: Duration,
    mut command: impl FnMut(RoutedConnection, bool) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = RedisResult<T>>,
{
    let run = async {
        let first = match command(redis.commands(), false).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let failure = Failure::of(&first);
        let resent = matches!(failure, Failure::Unknown(_));
        // Scripts may have been flushed, or the master replaced: the connection has noticed by now.
        let answered = matches!(
            first.kind(),
            ErrorKind::Server(ServerErrorKind::NoScript | ServerErrorKind::ReadOnly)
        );
        if !first.is_connection_dropped() && !answered {
            return Err(failure);
        }
        match (command(redis.commands(), resent).await, resent) {
            (Ok(value), _) => Ok(value),
            // The second sending failed, but the first may have been executed.
            (Err(second), true) => Err(Failure::Unknown(second.into())),
            (Err(second), false) => Err(Failure::of(&second)),
        }
    };
    match tokio::time::timeout(timeout, run).await {
        Ok(result) => result,
        Err(_) => {
            redis.recheck();
            Err(Failure::Unknown(
                format!("no answer within {timeout:?}").into(),
            ))
        }
    }
}
