//! A flash-sale (seckill, 秒杀) backend: it never oversells, never sells one user a second voucher, and never loses an
//! order that it has confirmed.
//!
//! # The modules, from the top
//! - [`app`], [`command`]: starting, serving and stopping; the other subcommands. [`config`]: the command line.
//! - [`router`]: the route table. [`openapi`]: the API's document.
//! - [`user`], [`shop`], [`voucher`], [`order`]: the features. In each, `mod.rs` has the handlers, `store.rs` or `store/`
//!   the SQL, and the rest is logic.
//! - [`health`], [`metrics`]: for operators.
//! - [`http`]: what handlers and router share. Nothing below imports it.
//! - [`request`], [`session`]: request context, rate limits and load shedding; sessions. [`idempotency`]: admin writes that
//!   are made once.
//! - [`id`], [`error`], [`clock`], [`telemetry`]: order ids, the error type, time zones, logging.
//! - [`keys`]: names of Redis keys. [`connection`]: MySQL/MariaDB, Redis and the migrations. `scripts`: the Lua scripts.
//!
//! # The rules of import
//! Imports go down this list. No two files import each other, a feature never touches another feature's store, and axum
//! and sqlx appear only in some places; `tests/it/architecture.rs` checks all of it.

pub mod app;
pub mod clock;
pub mod command;
pub mod config;
pub mod connection;
pub mod error;
pub mod health;
mod histogram;
pub mod http;
pub mod id;
pub mod idempotency;
pub mod keys;
pub mod metrics;
pub mod openapi;
pub mod order;
pub mod request;
pub mod router;
mod scripts;
pub mod session;
pub mod shop;
pub mod telemetry;
pub mod user;
pub mod voucher;
