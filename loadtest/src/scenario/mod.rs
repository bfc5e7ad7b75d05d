//! The scenarios, one folder each. A scenario prepares, runs, checks, and returns a report; what it
//! prints is made from that report, so a test and a terminal see the same run.

pub mod avalanche;
pub mod check_result;
pub mod ladder;
pub mod penetration;
pub mod read;
pub mod rolling;
pub mod stampede;
pub mod updates;
