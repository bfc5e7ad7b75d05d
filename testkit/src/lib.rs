//! Throw-away Redis servers, clusters, sentinels and a fault-injecting TCP proxy, for tests, tools and examples.
//!
//! The sources are those of the lock crate's tests, which must stand alone.

#[path = "../../lock/tests/it/support/proxy.rs"]
pub mod proxy;
#[path = "../../lock/tests/it/support/redis_cluster.rs"]
pub mod redis_cluster;
#[path = "../../lock/tests/it/support/redis_sentinel.rs"]
pub mod redis_sentinel;
#[path = "../../lock/tests/it/support/redis_server.rs"]
pub mod redis_server;
#[path = "../../lock/tests/it/support/wait.rs"]
pub mod wait;
