//! Raw commands to a throw-away Redis server, and what it counts.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};

/// A raw command.
pub fn command(name: &str, args: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(args);
    command
}

/// Sends a raw command and returns its reply; panics where it fails.
pub async fn query<T: FromRedisValue>(
    raw: &mut MultiplexedConnection,
    name: &str,
    args: &[&str],
) -> T {
    let reply = command(name, args).query_async(raw).await;
    reply.unwrap_or_else(|error| panic!("{name} {args:?}: {error}"))
}

/// How many times the server has run `command` since its start or the last `CONFIG RESETSTAT`.
pub async fn calls_of(raw: &mut MultiplexedConnection, command: &str) -> i64 {
    let stats: String = query(raw, "INFO", &["commandstats"]).await;
    let prefix = format!("cmdstat_{command}:calls=");
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// A number of `INFO <section>`; 0 where it is not there.
pub async fn info(raw: &mut MultiplexedConnection, section: &str, name: &str) -> u64 {
    let text: String = query(raw, "INFO", &[section]).await;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or("0").trim().parse().expect("a number")
}

/// How many connections have been made to the server since its start.
pub async fn connections(raw: &mut MultiplexedConnection) -> u64 {
    info(raw, "stats", "total_connections_received").await
}
