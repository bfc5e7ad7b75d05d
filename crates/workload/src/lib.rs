//! Workload generation and judgement for the flash sale: what the load tool and the
//! integration tests share.
//!
//! This package judges from outside: it knows HTTP, three tables and a handful of Redis keys, and it
//! depends on nothing of the service, so it cannot share the service's mistakes. It drives any node
//! that speaks the same API.
//!
//! From the bottom up:
//!
//! - [`checker`] is pure: every reply against every row gives a [`checker::Verdict`].
//! - [`conformance`] compares a verdict to the guarantees in the table of [`strategies`].
//! - [`reply`] reads one HTTP answer as a claim about an order.
//! - [`keys`] names the Redis keys that the tools look at.
//! - [`environment`]: the servers, as command lines name them.
//! - [`target`], [`http`], [`descriptors`] send requests; [`driver`] sends very many, each when it is due; [`generator`]
//!   makes purchases with it.
//! - [`buyers`], [`sessions`], [`publish`], [`order_rows`] prepare a sale and read its end.
//! - [`kill`] kills an instance.
//! - [`latency`], [`live`], [`table`] count and show; [`markdown`] is for documents.
//! - [`burst`] runs and judges one sale; [`comparison`] runs two strategies side by side, watched while they go
//!   on; [`trace`] reads what a node tells of an attempt's steps, [`batches`] how many orders shared a commit.

pub mod batches;
pub mod burst;
pub mod burst_options;
pub mod buyers;
pub mod checker;
pub mod comparison;
pub mod conformance;
pub mod descriptors;
pub mod driver;
pub mod environment;
pub mod error;
pub mod generator;
pub mod http;
pub mod keys;
pub mod kill;
pub mod latency;
pub mod live;
pub mod markdown;
pub mod order_rows;
pub mod pending;
pub mod publish;
pub mod redis_connection;
pub mod reply;
pub mod sessions;
pub mod table;
pub mod target;
pub mod trace;

pub use environment::{Access, Environment};
pub use error::Error;
pub use target::Target;
