//! Real servers for the tests.

pub mod api;
pub mod database;
pub mod hold;
pub mod instance;
pub mod nginx;
pub mod stack;
