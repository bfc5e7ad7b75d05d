//! Parts of the read scenarios: connections that read shops, their answers, the service's metrics, the cache's keys
//! in Redis. Nothing here checks a guarantee.

pub mod answer;
pub mod metrics;
pub mod read_strategy;
pub mod readers;
pub mod redis_keys;
pub mod schedule;
pub mod shops;

pub use answer::Answer;
pub use metrics::{Layers, Nodes};
pub use read_strategy::ReadStrategy;
pub use readers::{Read, Readers, Source};
pub use redis_keys::RedisKeys;
pub use shops::ShopTable;
