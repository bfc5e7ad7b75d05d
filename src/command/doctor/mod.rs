//! `seckill doctor`: checks what a start needs and what an operator can mend, prints each finding with what to do about it,
//! and fails where something must be repaired.

use anyhow::bail;

use self::findings::Findings;
use crate::config::DoctorConfig;
use crate::connection::redis::Redis;
use crate::connection::{self, mysql};
use crate::keys::Keys;
use crate::order::store::OrderStore;

mod database;
mod findings;
mod redis;

/// Runs the command.
pub async fn run(config: DoctorConfig) -> anyhow::Result<()> {
    let mut findings = Findings::default();
    let zone = config.time_zone;
    println!("time zone\n  ok    {}: it is {}", zone.0, zone.now());

    println!("database");
    let server = &config.database;
    let database = mysql::connect(&server.database_url, 1, server.database_timeout).await;
    let database = findings.value_or_fail(database);
    // Set where the tables can be used.
    let mut orders = None;
    if let Some(database) = database {
        let checked = database::check(&mut findings, &database, &config).await;
        if findings.value_or_fail(checked) == Some(true) {
            orders = Some(OrderStore::new(database, zone));
        }
    }

    println!("redis");
    let keys = Keys::new(config.redis.key_style()?);
    if let Some(redis) = findings.value_or_fail(connect_to_redis(&config).await) {
        let mut redis = redis.commands();
        let checked = redis::check(&mut findings, &mut redis, keys.style).await;
        findings.value_or_fail(checked);
        if let Some(store) = orders
            && let Err(error) = redis::java_sales(&findings, &store, &mut redis, &keys).await
        {
            findings.warn(
                &format!("sales of Java nodes are not read: {error:#}"),
                "see above",
            );
        }
    }

    if findings.failures > 0 {
        bail!("{} problems to solve before serving", findings.failures);
    }
    println!("ready to serve");
    Ok(())
}

async fn connect_to_redis(config: &DoctorConfig) -> anyhow::Result<Redis> {
    let server = config.redis.server()?;
    connection::redis::connect(server, config.redis.redis_timeout).await
}
