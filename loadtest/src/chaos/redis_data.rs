//! What a restarted Redis still knows: everything, an old snapshot, or nothing.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
    time::Duration,
};

use anyhow::{Result, ensure};
use testkit::{redis_server::RedisServer, wait::until};
use workload::redis_connection::connect_to;

/// How long it may take to write its append-only file anew.
const REWRITE_LIMIT: Duration = Duration::from_secs(30);

/// The data with which Redis is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisData {
    /// Everything it had written to its append-only file.
    Intact,
    /// What it knew when the snapshot was taken ([`take_snapshot`]).
    Old,
    /// Nothing.
    Empty,
}

/// Restarts a killed server that [keeps its writes](testkit::redis_server::KEEPS_WRITES) with this data; returns when it
/// answers and keeps every write again.
pub async fn restart(server: &mut RedisServer, data: RedisData) -> Result<()> {
    if data != RedisData::Intact {
        remove(&server.data().join("appendonlydir"))?;
    }
    if data == RedisData::Empty {
        remove(&server.data().join("dump.rdb"))?;
    }
    if data != RedisData::Old {
        return Ok(server.try_restart().await?);
    }
    // It reads the snapshot only where it is not told to keep an append-only file.
    let usual = server.arguments.clone();
    server.arguments.extend(["--appendonly".to_owned(), "no".to_owned()]);
    let restarted = server.try_restart().await;
    server.arguments = usual;
    restarted?;
    keep_writes(server).await
}

/// Writes the snapshot that [`RedisData::Old`] restarts with; a server that is writing one for its replica does so later.
pub async fn take_snapshot(server: &RedisServer) -> Result<()> {
    let mut saved = Ok(());
    until(REWRITE_LIMIT, async || {
        saved = command(server, &["SAVE"]).await;
        saved.is_ok()
    })
    .await;
    saved
}

/// Runs one command, and reads its reply.
pub async fn command<T: redis::FromRedisValue>(server: &RedisServer, words: &[&str]) -> Result<T> {
    let mut redis = connect_to(&server.client()).await?;
    let mut command = redis::Cmd::new();
    command.arg(words);
    Ok(command.query_async(&mut redis).await?)
}

/// Turns the append-only file on, and waits until it holds everything.
async fn keep_writes(server: &RedisServer) -> Result<()> {
    let () = command(server, &["CONFIG", "SET", "appendonly", "yes"]).await?;
    let written = until(REWRITE_LIMIT, async || {
        let info: String = command(server, &["INFO", "persistence"]).await.unwrap_or_default();
        let says = |line: &str| info.lines().any(|found| found.trim() == line);
        says("aof_rewrite_in_progress:0") && says("aof_rewrite_scheduled:0")
    });
    ensure!(written.await, "Redis' append-only file is not written");
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
