//! Redis: the cache's commands and scripts, each with a timeout, behind a circuit breaker.

pub(crate) mod circuit_breaker;
pub(crate) mod redis_commands;
