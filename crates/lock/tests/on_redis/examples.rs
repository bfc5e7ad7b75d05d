//! Every example, run against a server of its own. An example checks what it shows, and fails otherwise.

use super::soon;
use testkit::redis_server::RedisServer;

#[path = "../../examples/fenced_resource.rs"]
mod fenced_resource;
#[path = "../../examples/leader_election.rs"]
mod leader_election;
#[path = "../../examples/two_languages.rs"]
mod two_languages;

/// Makes each example a test.
macro_rules! run {
    ($($example:ident)+) => {
        mod run {
            $(#[tokio::test]
            async fn $example() {
                let server = super::RedisServer::start().await;
                let url = server.url();
                let run = super::$example::run(&url);
                super::soon(stringify!($example), run).await.unwrap();
            })+
        }
    };
}

run!(fenced_resource leader_election two_languages);
