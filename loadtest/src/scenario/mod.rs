//! The scenarios, one file each. A scenario prepares, runs, judges, and returns a report; what it
//! prints is made from that report, so a test and a terminal see the same run.

pub mod avalanche;
pub mod ladder;
pub mod overload;
pub mod penetration;
pub mod read;
pub mod stampede;
pub mod standing;
pub mod updates;
