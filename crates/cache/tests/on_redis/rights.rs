//! A user of Redis with the rights that the README lists, and no others.

use std::time::Duration;

use cache_aside::{BloomSize, Cache, InvalidationStatus, ReadStrategy};

use super::{Broken, KEY, Source, command, eventually, patient, policy, redis_at, version};
use testkit::redis_server::RedisServer;

#[tokio::test]
async fn the_rights_in_the_readme_are_enough() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (_, listed) = include_str!("../../README.md")
        .split_once("ACL SETUSER ")
        .expect("the rights");
    let (listed, _) = listed.split_once("```").expect("their end");
    let words: Vec<&str> = ["SETUSER"]
        .into_iter()
        .chain(listed.split_whitespace())
        .collect();
    let _: () = command(&mut raw, "ACL", &words).await;

    let url = format!("redis://app:secret@{}/", server.address());
    let redis = redis_at(redis::Client::open(url).unwrap());
    let cache = Cache::new(&redis, patient());
    eventually("the node is subscribed", async || {
        cache.stats().local_enabled
    })
    .await;
    let source = Source::new(Duration::ZERO);
    for strategy in ReadStrategy::ALL {
        let policy = policy();
        let now = source.change();
        let status = cache.invalidate(&[KEY]).await;
        assert_eq!(status, InvalidationStatus::Delivered, "{strategy}");
        for _ in 0..2 {
            let read = version(&cache, strategy, &policy, &source).await;
            assert_eq!(read, Some(now), "{strategy}");
        }
        assert_eq!(policy.stats().loads, 1, "{strategy}");
    }
    let filter = cache.bloom_filter("product", BloomSize::for_items(1000, 0.01));
    filter.fill(&single_page).await.unwrap();
    assert!(filter.may_contain(KEY).await);
    assert!(!filter.may_contain("cache:product:2").await);

    let refused: Vec<redis::Value> = command(&mut raw, "ACL", &["LOG"]).await;
    // Where the server knows CLIENT SETINFO (from Redis 7.2), the client sends it, and goes on if it is refused.
    let refused: Vec<String> = refused
        .iter()
        .map(|entry| format!("{entry:?}"))
        .filter(|entry| !entry.contains("client|setinfo"))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

async fn single_page(last: Option<String>) -> Result<Vec<String>, Broken> {
    Ok(if last.is_none() {
        vec![KEY.to_owned()]
    } else {
        Vec::new()
    })
}
