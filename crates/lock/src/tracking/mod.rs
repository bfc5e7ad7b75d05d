//! Client tracking: Redis reports when the key of a held lock changes, so that a lock that is taken
//! away is reported at once. Without it, the next renewal would find out.
//!
//! - [`tracker`]: assigns the holds that have lasted for a moment to the nodes of their keys
//! - [`node`]: the holds on one node, and what to do when their keys change
//! - [`connection`]: one connection with client tracking
//!
//! It only speeds up what the watchdog would find: where tracking is refused, late or interrupted,
//! nothing but time is lost. Source:
//! <https://redis.io/docs/latest/develop/reference/client-side-caching/>.

mod connection;
mod node;
pub(crate) mod tracker;
