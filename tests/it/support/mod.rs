//! Real servers for the tests, and how long a test waits for what comes by itself.

use std::path::Path;
use std::time::Duration;

use testkit::{raw, redis_server::RedisServer};
use tokio::net::TcpStream;

pub mod api;
pub mod database;
pub mod hold;
pub mod instance;
pub mod lab;
pub mod nginx;
pub mod receiver;
pub mod stack;

/// How long a test waits for what a service does by itself; enough on a busy machine, too.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Waits until the condition holds; panics after [`PATIENCE`], naming `what`.
pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    testkit::wait::eventually(what, PATIENCE, condition).await;
}

/// Waits until nothing listens at this address any more. Dropping a listener does not end it at once: a child process that
/// another test starts has a copy of it until it runs its program.
pub async fn until_refused(address: &str) {
    eventually("the port refuses", async || {
        TcpStream::connect(address).await.is_err()
    })
    .await;
}

/// A file of the project.
pub fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Adds these rights to those of a Redis user, who has the password `secret`; creates the user if there is none.
pub async fn acl(server: &RedisServer, user: &str, rights: &str) {
    let words = format!("SETUSER {user} on >secret {rights}");
    let words: Vec<&str> = words.split_whitespace().collect();
    raw::command("ACL", &words)
        .exec_async(&mut server.conn().await)
        .await
        .expect("a user");
}
