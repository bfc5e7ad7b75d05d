//! Connections to the backing servers, and nothing else: no table, no key, no feature is named here
//! except by the migrations.

pub mod migrate;
pub mod mysql;
pub mod redis;
pub mod shared_trip;
