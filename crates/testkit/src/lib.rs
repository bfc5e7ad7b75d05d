//! Throw-away Redis, MariaDB, MySQL and OceanBase servers, a replicated pair behind a proxy, and a fault-injecting TCP
//! proxy, for tests, tools and examples.
//!
//! Every server listens on a free port of 127.0.0.1, keeps its files in a temporary folder, and is gone with them
//! when it is dropped or when this process ends, however it ends.

pub mod certificates;
pub mod clock;
#[cfg(feature = "database")]
pub mod database_server;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redis_server;
#[cfg(feature = "database")]
pub mod replicated_database;
pub mod scripted_sentinel;
pub mod wait;
