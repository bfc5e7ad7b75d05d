//! Load scenarios for the flash sale and for reads of shops, and the checkers that judge them.
//!
//! This package judges from outside: it knows HTTP, three tables and a handful of Redis keys, and it
//! depends on nothing of the service, so it cannot share the service's mistakes. It drives any node
//! that speaks the same API.
//!
//! From the bottom up:
//!
//! - [`checker`] is pure: every reply against every row gives a [`checker::Verdict`].
//! - [`reply`] reads one HTTP answer as a claim about an order.
//! - [`target`], [`http`], [`descriptors`] send requests; [`fire`] sends very many at once.
//! - [`buyers`], [`phones`], [`publish`], [`ledger`] prepare a sale and read its end.
//! - [`reads`] reads shops: connections, answers, the service's metrics, the cache's keys.
//! - [`latency`], [`live`], [`table`] count and show.
//! - [`duel`] runs two strategies side by side, watched while they go on; [`trace`] reads what a node tells of
//!   an attempt's steps.
//! - [`chaos`] runs servers of its own, breaks them in the middle of a sale, and judges that.
//! - [`scenario`] has one file per scenario: what the binary `loadtest` and the service's own
//!   integration tests run.

pub mod access;
pub mod buyers;
pub mod chaos;
pub mod checker;
pub mod descriptors;
pub mod duel;
pub mod fault;
pub mod fire;
pub mod http;
pub mod latency;
pub mod ledger;
pub mod live;
mod pending;
pub mod phones;
pub mod publish;
pub mod reads;
pub mod reply;
pub mod scenario;
pub mod table;
pub mod target;
pub mod trace;

pub use access::Access;
pub use fault::Fault;
pub use target::Target;
