//! The connection for commands: multiplexed, reconnecting, with a time limit for each command.
//! The commands themselves are in `commands`.

use std::future::Future;
use std::time::Duration;

use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ScriptInvocation, ServerErrorKind};
use redis_link::{AddressError, Redis, RoutedConnection, Server};

use crate::config::LockConfig;
use crate::connection::failure::Failure;
use crate::connection::refusals::Refusals;

/// The connection for commands. Reconnects by itself; commands are multiplexed over it, in the
/// order in which they are sent.
pub(crate) struct CommandConnection {
    redis: Redis,
    timeout: Duration,
    /// Channels that the server does not allow.
    pub(crate) refusals: Refusals,
}

impl CommandConnection {
    /// A connection that is opened by its first command.
    pub(crate) fn lazy(server: Server, config: &LockConfig) -> Result<Self, AddressError> {
        let redis = Redis::new(server, config.connect_timeout, config.command_timeout)?;
        Ok(Self {
            timeout: config.command_timeout,
            redis,
            refusals: Refusals::default(),
        })
    }

    pub(crate) fn redis(&self) -> &Redis {
        &self.redis
    }

    /// The Redis commands that publish a release. On a cluster both kinds: Redisson subscribes to
    /// sharded channels from 3.22 on, and to ordinary ones before.
    pub(crate) fn publish_commands(&self) -> &'static [&'static str] {
        if self.redis.is_cluster() {
            &["PUBLISH", "SPUBLISH"]
        } else {
            &["PUBLISH"]
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) async fn ping(&self) -> Result<(), Failure> {
        self.query(&redis::cmd("PING")).await
    }

    /// Run a command that may be sent twice without harm, within the command timeout.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failure> {
        self.bounded(async |mut c, _| command.query_async(&mut c).await)
            .await
    }

    /// Run `command` within the command timeout, at most twice. Its second argument says whether an earlier
    /// sending may have been executed.
    ///
    /// Every script of this crate is idempotent for the same arguments. So a command whose connection broke
    /// can be sent again straight away: an idle connection that a restarted server closed costs no caller an
    /// error.
    ///
    /// # Errors
    /// [`Failure::Unknown`] at the timeout, and whenever the first sending may have been executed.
    pub(crate) async fn bounded<T, F>(
        &self,
        command: impl FnMut(RoutedConnection, bool) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = RedisResult<T>>,
    {
        self.bounded_by(self.timeout, command).await
    }

    /// Run a script whose reply does not depend on whether it was sent twice, within `timeout` if that is shorter
    /// than the command timeout.
    pub(crate) async fn invoke_within<T: FromRedisValue>(
        &self,
        timeout: Duration,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Failure> {
        let timeout = timeout.min(self.timeout);
        self.bounded_by(timeout, async |mut c, _| script.invoke_async(&mut c).await)
            .await
    }

    async fn bounded_by<T, F>(
        &self,
        timeout: Duration,
        command: impl FnMut(RoutedConnection, bool) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = RedisResult<T>>,
    {
        match tokio::time::timeout(timeout, self.send_at_most_twice(command)).await {
            Ok(result) => result,
            Err(_) => {
                self.redis.recheck();
                Err(Failure::Unknown(
                    format!("no answer within {timeout:?}").into(),
                ))
            }
        }
    }

    /// Run `command`, and once more if the connection broke, the script was not loaded, or the server is
    /// not the master any more.
    async fn send_at_most_twice<T, F>(
        &self,
        mut command: impl FnMut(RoutedConnection, bool) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let first = match command(self.redis.commands(), false).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let failure = Failure::from_redis_error(&first);
        let may_be_executed = matches!(failure, Failure::Unknown(_));
        // Scripts may have been flushed, or the master replaced: the connection has noticed by now.
        let obstacle_is_gone = matches!(
            first.kind(),
            ErrorKind::Server(ServerErrorKind::NoScript | ServerErrorKind::ReadOnly)
        );
        if !first.is_connection_dropped() && !obstacle_is_gone {
            return Err(failure);
        }
        let second = command(self.redis.commands(), may_be_executed).await;
        match (second, may_be_executed) {
            (Ok(value), _) => Ok(value),
            // The second sending failed, but the first may have been executed.
            (Err(error), true) => Err(Failure::Unknown(error.into())),
            (Err(error), false) => Err(Failure::from_redis_error(&error)),
        }
    }
}
