//! Real servers for the tests. Nothing here knows what is tested.

pub mod api;
pub mod database;
pub mod instance;
pub mod stack;
