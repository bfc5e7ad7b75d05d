//! Throw-away Redis servers and a proxy for tests: copies of files in `lock/tests/it/support`, so that this crate
//! stands alone. A test of the repository holds them equal.

pub mod process;
pub mod proxy;
pub mod redis_server;
pub mod wait;
