//! Histories on servers that replicate, of many seconds each: masters that die, lag, and are replaced.

mod cluster;
mod replication;
mod sentinel;
