//! Every example, run against a server of its own. An example fails when what it shows is not so.

use super::soon;
use crate::support::redis_server::RedisServer;

#[path = "../../examples/fenced_resource.rs"]
mod fenced_resource;
#[path = "../../examples/leader_election.rs"]
mod leader_election;
#[path = "../../examples/leased_permits.rs"]
mod leased_permits;
#[path = "../../examples/two_languages.rs"]
mod two_languages;

#[tokio::test]
async fn fenced_resource_runs() {
    let server = RedisServer::start().await;
    soon("fenced_resource", fenced_resource::run(&server.url())).await.unwrap();
}

#[tokio::test]
async fn leader_election_runs() {
    let server = RedisServer::start().await;
    soon("leader_election", leader_election::run(&server.url())).await.unwrap();
}

#[tokio::test]
async fn leased_permits_runs() {
    let server = RedisServer::start().await;
    soon("leased_permits", leased_permits::run(&server.url())).await.unwrap();
}

#[tokio::test]
async fn two_languages_runs() {
    let server = RedisServer::start().await;
    soon("two_languages", two_languages::run(&server.url())).await.unwrap();
}
