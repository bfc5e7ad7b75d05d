//! Request scope and load control: the context and step trace of the request that a task works for, client
//! addresses, rate limits and load shedding. Features and [`http`](crate::http) build on it; nothing here answers
//! a request.

pub mod admission;
pub mod client_address;
pub mod context;
pub mod panic;
pub mod rate_limiter;
pub mod step_trace;
pub mod trace;
