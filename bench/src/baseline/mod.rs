//! Baselines: programs as fast as possible that do less than the service. Each runs in a process of its own, as the
//! service does (`bench baseline-…`).

pub mod bare_route;
mod server;
pub mod transaction;
