//! Connections to the service's Redis, whichever way it is run, for sessions and injected faults.

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, RedisError, aio::MultiplexedConnection};
use redis_link::{Redis, RoutedConnection, Server};

use crate::Error;

/// Longest wait for a connection or a reply: the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The Redis at `url`: one server, a cluster, or a master that Sentinel monitors. Makes no connection yet.
pub fn open(url: &str) -> Result<Redis, Error> {
    if url.is_empty() {
        return Err(Error::unset(
            "sessions and keys are in the service's Redis",
            "REDIS_URL",
        ));
    }
    let server = Server::from_url(url);
    let opened = server.and_then(|server| Redis::new(server, TIMEOUT, TIMEOUT));
    opened.map_err(|error| Error::Usage(format!("REDIS_URL (--redis-url): {error}")))
}

/// Connects to the Redis at `url`; each command goes to the node that serves its key.
pub async fn connect(url: &str) -> Result<RoutedConnection, Error> {
    let mut connection = open(url)?.commands();
    redis::cmd("PING")
        .query_async::<()>(&mut connection)
        .await
        .map_err(failed)?;
    Ok(connection)
}

/// A connection to every master of the Redis at `url`.
pub async fn masters(url: &str) -> Result<Vec<MultiplexedConnection>, Error> {
    let mut connections = Vec::new();
    for client in open(url)?.masters().await.map_err(failed)? {
        connections.push(connect_to(&client).await?);
    }
    Ok(connections)
}

/// Connects to one server, whatever it is.
pub async fn connect_to(client: &Client) -> Result<MultiplexedConnection, Error> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .map_err(failed)
}

fn failed(source: RedisError) -> Error {
    Error::Redis {
        what: "while connecting",
        source,
    }
}
