//! Client tracking: Redis reports each session that ends or changes, so that a session in memory is valid until then.
//! Source: <https://redis.io/docs/latest/develop/reference/client-side-caching/>.
//!
//! The reports arrive on a connection of their own, in the order in which Redis executed the commands. So a PING that is
//! answered on it proves that every end before it was reported. A connection that dies in silence proves nothing from then on,
//! and sessions are used only as long as without tracking: [`TRUST`](super::memory::TRUST). The same holds where Redis, or a
//! proxy before it, refuses tracking. On a cluster, whose sessions are on many nodes, nothing is tracked.
//!
//! In broadcasting mode Redis keeps no table of what each client has read. The price is that all sign-ins and renewals are
//! reported to all processes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisResult,
    Value,
};
use tokio::time::{Instant, MissedTickBehavior};

use super::memory::SessionMemory;
use super::token::{KEY_PREFIX, Token};
use crate::connection::redis::{Redis, info_field};

/// Interval of the PINGs: a few may be late before sessions are looked up more often.
const PING_EVERY: Duration = Duration::from_millis(200);

/// Time limit for connecting, and for each command.
const LIMIT: Duration = Duration::from_secs(2);

/// First pause before another connection is tried. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Longest pause before another connection is tried: a refusal is likely to last.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Reports ends to `memory`, on one connection after the other, until it is dropped.
pub(super) async fn receive(nodes: Redis, memory: Arc<SessionMemory>) {
    let mut pause = FIRST_PAUSE;
    let mut logged = false;
    loop {
        let confirmed = || {
            pause = FIRST_PAUSE;
            if std::mem::take(&mut logged) {
                tracing::info!("Redis reports ended sessions again");
            }
        };
        let Err(error) = follow(&nodes, &memory, confirmed).await;
        memory.lose_track();
        nodes.recheck();
        if !logged {
            logged = true;
            tracing::warn!(
                %error,
                "sessions are looked up every 0.8 s, as Redis does not report those that end; trying again. It needs \
                 RESP3 and the right to CLIENT TRACKING (docs/OPERATIONS.md)"
            );
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reports ends on one connection until it fails, or commands go to another server.
async fn follow(
    nodes: &Redis,
    memory: &Arc<SessionMemory>,
    mut confirmed: impl FnMut(),
) -> RedisResult<Infallible> {
    let mut tracking = connect(nodes.client_of(KEY_PREFIX).await?, memory.clone()).await?;
    let server = run_id(&mut tracking).await?;
    let mut track = redis::cmd("CLIENT");
    track
        .arg("TRACKING")
        .arg("ON")
        .arg("BCAST")
        .arg("PREFIX")
        .arg(KEY_PREFIX);
    track.exec_async(&mut tracking).await?;
    // What ended before was not reported.
    memory.end_all();
    let mut commands = nodes.commands();
    let mut tick = tokio::time::interval(PING_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let asked_at = Instant::now();
        redis::cmd("PING").exec_async(&mut tracking).await?;
        // A server that was replaced may go on answering here.
        match run_id(&mut commands).await {
            Ok(id) if id == server => {
                memory.confirm(asked_at);
                confirmed();
            }
            Ok(_) => return Err((ErrorKind::Client, "another server is the master now").into()),
            Err(error) => tracing::debug!(%error, "not confirmed that Redis is the same server"),
        }
    }
}

/// A connection whose reports end sessions in `memory`. A report takes effect before a later reply is returned.
async fn connect(client: Client, memory: Arc<SessionMemory>) -> RedisResult<MultiplexedConnection> {
    let info = client.get_connection_info().clone();
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3);
    let client = Client::open(info.set_redis_settings(settings))?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMIT))
        .set_response_timeout(Some(LIMIT))
        .set_push_sender(move |push| -> Result<(), SendError> {
            report(&memory, push);
            Ok(())
        });
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// Ends the sessions of a report.
fn report(memory: &SessionMemory, PushInfo { kind, data }: PushInfo) {
    if kind != PushKind::Invalidate {
        return;
    }
    let Some(Value::Array(keys)) = data.first() else {
        // The data was flushed.
        return memory.end_all();
    };
    for key in keys {
        if let Value::BulkString(key) = key
            && let Some(token) = Token::of_key(key)
        {
            memory.end(&token);
        }
    }
}

/// The id that a server gets at each start.
async fn run_id(connection: &mut impl ConnectionLike) -> RedisResult<Option<String>> {
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(connection)
        .await?;
    Ok(info_field(&info, "run_id").map(str::to_owned))
}
