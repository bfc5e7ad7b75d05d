//! What only real time shows, on a machine that does nothing else: failovers, takeovers, rolling restarts, chaos.
//! `./dev test slow` runs them one after the other.

mod chaos;
mod judged;
mod late_texts;
mod locked_sales;
mod mixed_sale;
pub mod redis_sentinel;
mod rolling;
