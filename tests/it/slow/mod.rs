//! Tests that need real time, and a machine that does nothing else: `./dev test slow` runs them one after the other.

mod chaos;
