//! Throw-away Redis servers and a fault-injecting proxy for tests. The crate `testkit` of this repository includes these files.

pub mod certificates;
pub mod process;
pub mod proxy;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redis_server;
pub mod scripted_sentinel;
pub mod wait;
