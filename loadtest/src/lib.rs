//! Load scenarios for the flash sale and for reads of shops.
//!
//! Like [`workload`], on which it builds, this package checks from outside and depends on nothing of the service.
//!
//! - [`reads`] reads shops: connections, answers, the service's metrics, the cache's keys.
//! - [`chaos`] runs servers of its own, injects faults in the middle of a sale, and checks every reply.
//! - [`plan`] calculates a sale of any size; it needs no server.
//! - [`scenario`] has one folder per scenario: what the binary `loadtest` and the service's own
//!   integration tests run.

pub mod chaos;
pub mod links;
pub mod options;
pub mod plan;
pub mod reads;
pub mod scenario;
