//! A server in cluster mode, which refuses scripts with keys in several slots.

use std::time::Duration;

use cache_aside::{BloomSize, InvalidationStatus, ReadStrategy};

use super::{KEY, MUTEX, Source, command, get, policy, version};
use testkit::redis_server::{RedisServer, Role};

/// A cluster of one node.
async fn cluster() -> RedisServer {
    let server = RedisServer::start_as(Role::ClusterNode(60_000)).await;
    let mut raw = server.conn().await;
    let _: () = command(&mut raw, "CLUSTER", &["ADDSLOTSRANGE", "0", "16383"]).await;
    super::eventually("it serves", async || {
        let info: String = command(&mut raw, "CLUSTER", &["INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
    server
}

#[tokio::test]
async fn every_strategy_invalidations_and_the_filter_work_on_a_cluster() {
    let server = cluster().await;
    let mut raw = server.conn().await;
    let [cache, other_cache] = super::nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    for strategy in ReadStrategy::ALL {
        let policy = policy();
        assert_eq!(
            cache.invalidate(&[KEY]).await,
            InvalidationStatus::Delivered,
            "{strategy}"
        );
        let expected = Some(source.change());
        assert_eq!(
            version(&cache, strategy, &policy, &source).await,
            expected,
            "{strategy}"
        );
        super::eventually("it is stored", async || get(&mut raw, KEY).await.is_some()).await;
        let loads = source.loads();
        assert_eq!(
            version(&other_cache, strategy, &policy, &source).await,
            expected,
            "{strategy}"
        );
        assert_eq!(source.loads(), loads, "{strategy}: loaded twice");
        assert_eq!(
            get(&mut raw, MUTEX).await,
            None,
            "{strategy}: the mutex is released"
        );
    }
    let filter = cache.bloom_filter("product", BloomSize::for_items(1000, 0.01));
    assert_eq!(filter.fill(&single_page).await.unwrap(), 1);
    assert!(filter.may_contain("1").await);
    assert!(!filter.may_contain("2").await);
}

async fn single_page(last: Option<String>) -> Result<Vec<String>, super::Broken> {
    Ok(if last.is_none() {
        vec!["1".to_owned()]
    } else {
        Vec::new()
    })
}
