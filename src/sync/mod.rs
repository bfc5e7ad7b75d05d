//! Locks and atomics of the hand-written concurrent cores: those of `parking_lot` and `std`, and in this crate's unit
//! tests those of shuttle, a concurrency explorer, with the same signatures. At each operation of the latter another task
//! may run first, and they work only within an exploration (`explored::explore`, or `explored::once`).

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(test))]
pub(crate) use std::sync::atomic;

#[cfg(test)]
pub(crate) use explored::Mutex;
#[cfg(test)]
pub(crate) use shuttle::sync::atomic;

#[cfg(test)]
pub(crate) mod explored;
