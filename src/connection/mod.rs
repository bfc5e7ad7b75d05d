//! Connections to the database and Redis, the migrations, the coalescer of round trips, and an HTTP client. No table, key or
//! feature is known here, except by the migrations and the [check at start](database_check).

pub mod coalescer;
pub mod database_check;
pub mod database_clock;
pub mod database_url;
pub mod fresh_cache;
pub mod http_post;
pub mod migrate;
pub mod mysql;
mod opener;
pub mod pool;
mod product;
pub mod redis;
pub mod row;
pub mod schema_check;
pub mod server_check;
pub mod server_error;
pub mod server_settings;
