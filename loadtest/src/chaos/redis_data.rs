//! What a restarted Redis still knows: everything, an old snapshot, or nothing.

use std::{io, path::PathBuf};

use anyhow::Result;
use testkit::redis_server::RedisServer;
use tokio::fs;
use workload::redis_connection::connect_to;

/// The data with which Redis is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisData {
    /// Everything it had written to its append-only files.
    Intact,
    /// What it knew when the snapshot was taken ([`take_snapshot`]).
    Old,
    /// Nothing.
    Empty,
}

/// Restarts a killed server that [keeps its writes](testkit::redis_server::KEEPS_WRITES) with this data; returns when it
/// answers.
pub async fn restart(server: &mut RedisServer, data: RedisData) -> Result<()> {
    let [files, snapshot] = folders(server);
    if data != RedisData::Intact {
        fs::remove_dir_all(&files).await?;
    }
    if data == RedisData::Old {
        fs::rename(snapshot, files).await?;
    }
    Ok(server.try_restart().await?)
}

/// Copies the append-only files as they are, for [`RedisData::Old`]. The server stands still meanwhile, so that it replaces
/// none of them.
pub async fn take_snapshot(server: &RedisServer) -> Result<()> {
    let process = server.process()?;
    process.pause()?;
    let copied = copy(server).await;
    process.resume()?;
    Ok(copied?)
}

async fn copy(server: &RedisServer) -> io::Result<()> {
    let [files, snapshot] = folders(server);
    // There may be an earlier snapshot that was not used.
    fs::remove_dir_all(&snapshot).await.ok();
    fs::create_dir(&snapshot).await?;
    let mut all = fs::read_dir(&files).await?;
    while let Some(file) = all.next_entry().await? {
        fs::copy(file.path(), snapshot.join(file.file_name())).await?;
    }
    Ok(())
}

/// The server's append-only files, and their copy.
fn folders(server: &RedisServer) -> [PathBuf; 2] {
    ["appendonlydir", "snapshot"].map(|name| server.data().join(name))
}

/// Runs one command, and reads its reply.
pub async fn command<T: redis::FromRedisValue>(server: &RedisServer, words: &[&str]) -> Result<T> {
    let mut redis = connect_to(&server.client()).await?;
    let mut command = redis::Cmd::new();
    command.arg(words);
    Ok(command.query_async(&mut redis).await?)
}
