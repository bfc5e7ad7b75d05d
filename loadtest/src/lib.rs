//! Load scenarios for the flash sale and for reads of shops, and the benchmark.
//!
//! Like [`workload`], on which it builds, this package checks from outside and depends on nothing of the service.
//!
//! - `shop_cache` reads shops, and checks what their cache promises.
//! - [`chaos`] runs servers of its own, injects faults in the middle of a sale, and checks every reply.
//! - [`lab`] serves the page on which visitors run and break sales.
//! - [`judge`] judges a node of anybody's: hm-dianping, at any stage.
//! - `plan` calculates a sale of any size; it needs no server.
//! - `burst` sells once, `ladder` on every strategy; [`rolling`] restarts instances under load; `bench` measures.
//! - [`report`] is what a run found, and its exit code; `interrupt` ends a run early.
//! - `cli` turns words into options, `command` runs them.

mod bench;
pub mod burst;
pub mod chaos;
mod cli;
mod command;
mod interrupt;
pub mod judge;
pub mod lab;
pub mod ladder;
pub mod options;
mod plan;
pub mod report;
pub mod rolling;
pub mod shop_cache;
mod spread;

pub use command::main;
