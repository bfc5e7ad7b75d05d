//! A flash-sale (seckill, 秒杀) backend that cannot be made to lie: it never oversells, never sells
//! one user a second voucher, and never loses an order it has confirmed.
//!
//! # The map
//! - [`config`], [`telemetry`], [`app`], [`router`]: the command line, the logs, the wiring, and the
//!   whole route table. A reader who wants to know what the service answers opens [`router`].
//! - [`user`], [`shop`], [`voucher`], [`order`]: the features. In each, `mod.rs` holds the handlers,
//!   `store.rs` holds the SQL, and the rest is logic. **How a purchase travels** is told by [`order`].
//! - [`lab`]: real loads against the real instances, side by side, for those who learn. It alone knows the load
//!   tool.
//! - [`id`]: small libraries that know nothing of vouchers.
//! - [`http`]: what every handler shares: reply envelope, extractors, sign-in layers, serving.
//! - [`connection`]: connections to MySQL/MariaDB and Redis, and the migrations. Nothing else.
//! - [`command`]: what the binary does besides serving (`seed`, `doctor`).
//!
//! # Who may import whom
//! `main → app → router → openapi → features → {lock, id, http, error} → conn`. A feature never touches another
//! feature's `store`; axum and sqlx appear only where `tests/it/architecture.rs` lets them.

pub mod app;
pub mod clock;
pub mod command;
pub mod config;
pub mod connection;
pub mod error;
pub mod health;
pub mod http;
pub mod id;
pub mod lab;
pub mod metrics;
pub mod openapi;
pub mod order;
pub mod request;
pub mod router;
pub mod session;
pub mod shop;
pub mod telemetry;
pub mod user;
pub mod voucher;
