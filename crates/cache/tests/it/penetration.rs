//! Cache penetration: ids that do not exist.

use std::time::Duration;

use cache_aside::ReadStrategy;
use redis::AsyncCommands;

use super::{KEY, Source, command, get, nodes, policy, version};
use testkit::redis_server::RedisServer;

#[tokio::test]
async fn every_strategy_but_plain_cache_aside_caches_nulls() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for strategy in ReadStrategy::ALL {
        let _: () = command(&mut raw, "FLUSHALL", &[]).await;
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.missing, true);
        for turn in 0..20 {
            assert_eq!(version(&nodes[turn % 2], strategy, &policy(), &source).await, None);
        }
        if strategy == ReadStrategy::CacheAside {
            assert_eq!(source.loads(), 20, "a load per read");
            continue;
        }
        assert_eq!(source.loads(), 1, "{strategy}");
        assert_eq!(get(&mut raw, KEY).await.as_deref(), Some(""), "{strategy}");
        let left: i64 = raw.pttl(KEY).await.unwrap();
        assert!((100_000..=120_000).contains(&left), "{strategy}: {left} ms");
        // The row is inserted, and its writer invalidates.
        source.set(|source| &source.missing, false);
        assert_eq!(nodes[0].invalidate(&[KEY]).await, cache_aside::InvalidationStatus::Delivered);
        assert_eq!(version(&nodes[0], strategy, &policy(), &source).await, Some(1), "{strategy}");
    }
}
