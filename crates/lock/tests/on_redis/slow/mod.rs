//! What only real time shows, or takes many seconds: holders that die one after the other, crowds, a node that hangs.
//! `./dev test slow` runs these tests one at a time.

mod crowds;
mod fair_short_leases;
mod hung_shard;
mod late_commands;
