//! Integration tests, in one binary so that they link once. They use real servers, which they start: a
//! MariaDB, redis-server processes and instances of the service.

// A test that cannot continue fails there.
#![allow(clippy::unwrap_used)]

mod admin_writes;
mod admission;
mod architecture;
mod audit;
mod client_address;
mod clock_steps;
mod cluster_style;
mod database_bad_input;
mod database_errors;
mod database_failover;
mod deadline;
mod decide_model;
mod decided;
mod docs;
mod drain;
mod engine_properties;
mod foreign_delete;
mod foreign_keys;
mod group_commit;
mod guards;
mod half_open;
mod ids;
mod java_node;
mod judge;
mod lab;
mod late_commit;
mod law;
mod lifetime;
mod load_tool;
mod logs;
mod lookup;
mod memory_queue;
mod metrics;
mod nginx;
#[cfg(feature = "otlp")]
mod otlp;
mod proxy;
mod purchase;
mod reads;
mod recipes;
mod redis_input;
mod resilience;
mod schema;
mod schema_deviations;
mod session_tracking;
mod shops;
mod sign_in;
mod slow;
mod sold_out;
mod start;
mod strangers;
mod stream;
mod stream_admission;
mod stream_faults;
mod stream_model;
mod stream_outages;
mod stream_rebuild;
mod support;
mod unit_rows;
mod unread_requests;
mod vouchers;
mod webhook;
