//! What the read scenarios are made of: connections that read shops, what their answers say, what
//! the service's metrics and the cache's keys tell. Nothing here judges.

pub mod answer;
pub mod metrics;
pub mod pace;
pub mod readers;
pub mod redis_keys;
pub mod shops;
pub mod way;

pub use answer::Answer;
pub use metrics::{Layers, Nodes};
pub use readers::{Read, Readers, Source};
pub use redis_keys::RedisKeys;
pub use shops::ShopTable;
pub use way::Way;
