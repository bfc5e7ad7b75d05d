//! What a restarted Redis still knows: everything, an old snapshot, or nothing.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
    time::Duration,
};

use serde::Serialize;
use testkit::{
    redis_server::{RedisServer, Role},
    wait::until,
};
use workload::{Error, redis_connection::connect};

/// How long it may take to write its append-only file anew.
const REWRITE_LIMIT: Duration = Duration::from_secs(30);

/// The data with which Redis is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RedisData {
    /// Everything it had written to its append-only file.
    Intact,
    /// What it knew when the snapshot was taken ([`take_snapshot`]).
    Old,
    /// Nothing.
    Empty,
}

/// Restarts a killed [`Role::Durable`] server with this data; returns when it answers and keeps every write again.
///
/// # Errors
/// [`Error::Server`], [`Error::Redis`].
pub async fn restart(server: &mut RedisServer, data: RedisData) -> Result<(), Error> {
    let failed = |error: io::Error| Error::server("redis-server", error.to_string());
    if data != RedisData::Intact {
        remove(&server.data().join("appendonlydir")).map_err(failed)?;
    }
    if data == RedisData::Empty {
        remove(&server.data().join("dump.rdb")).map_err(failed)?;
    }
    // It reads the snapshot only where it is not told to keep an append-only file.
    server.role = if data == RedisData::Old { Role::Alone } else { Role::Durable };
    server.try_restart().await.map_err(failed)?;
    if data == RedisData::Old { keep_writes(server).await } else { Ok(()) }
}

/// Writes the snapshot that [`RedisData::Old`] restarts with.
///
/// # Errors
/// [`Error::Redis`].
pub async fn take_snapshot(server: &RedisServer) -> Result<(), Error> {
    command(server, &["SAVE"]).await.map(drop)
}

/// Runs one command.
///
/// # Errors
/// [`Error::Redis`].
pub async fn command(server: &RedisServer, words: &[&str]) -> Result<redis::Value, Error> {
    let mut redis = connect(&server.url()).await?;
    let mut command = redis::Cmd::new();
    command.arg(words);
    let sent = command.query_async(&mut redis).await;
    sent.map_err(|source| Error::Redis { what: "while a fault was injected", source })
}

/// Turns the append-only file on, and waits until it holds everything.
async fn keep_writes(server: &RedisServer) -> Result<(), Error> {
    command(server, &["CONFIG", "SET", "appendonly", "yes"]).await?;
    let written = until(REWRITE_LIMIT, async || {
        let Ok(info) = command(server, &["INFO", "persistence"]).await else { return false };
        let info: String = redis::from_redis_value(info).unwrap_or_default();
        let says = |line: &str| info.lines().any(|found| found.trim() == line);
        says("aof_rewrite_in_progress:0") && says("aof_rewrite_scheduled:0")
    });
    if written.await {
        return Ok(());
    }
    Err(Error::server("redis-server", "its append-only file is not written".to_owned()))
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
