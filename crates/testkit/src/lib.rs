//! Throw-away Redis, MariaDB and MySQL servers, a replicated pair behind HAProxy, and a fault-injecting TCP proxy, for tests, tools and examples.
//!
//! Every server listens on a free port of 127.0.0.1, keeps its files in a temporary folder, and is gone with them
//! when it is dropped or when this process ends, however it ends.
//!
//! All but [`database_server`], [`replicated_database`], [`haproxy`] and [`clock`] are files of the lock crate's tests, which must stand alone.

#[path = "../../lock/tests/it/support/certificates.rs"]
pub mod certificates;
pub mod clock;
#[cfg(feature = "database")]
pub mod database_server;
pub mod haproxy;
#[path = "../../lock/tests/it/support/process.rs"]
pub mod process;
#[path = "../../lock/tests/it/support/proxy.rs"]
pub mod proxy;
#[path = "../../lock/tests/it/support/redis_cluster.rs"]
pub mod redis_cluster;
#[path = "../../lock/tests/it/support/redis_sentinel.rs"]
pub mod redis_sentinel;
#[path = "../../lock/tests/it/support/redis_server.rs"]
pub mod redis_server;
#[cfg(feature = "database")]
pub mod replicated_database;
#[path = "../../lock/tests/it/support/wait.rs"]
pub mod wait;
