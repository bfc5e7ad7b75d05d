//! `seckill doctor`: checks what a start needs and what an operator can mend, prints each finding with what to do about it,
//! and fails where something must be repaired.

use anyhow::bail;

use self::findings::Findings;
use crate::config::DoctorConfig;
use crate::connection::{self, mysql};
use crate::keys::Keys;
use crate::order::store::OrderStore;

mod database;
mod findings;
mod java;
mod redis;

/// Runs the command.
pub async fn run(config: DoctorConfig) -> anyhow::Result<()> {
    let mut findings = Findings::default();
    let zone = config.time_zone;
    println!("time zone");
    findings.good(&format!("{}: it is {}", zone.0, zone.now()));

    println!("database");
    let server = &config.database;
    let database = mysql::connect(&server.database_url, 1, server.database_timeout).await;
    let store = match findings.end(database) {
        Some(database) => {
            let connections = server.database_connections;
            let checked = database::check(&mut findings, &database, zone, connections).await;
            findings.end(checked);
            Some(OrderStore::new(database, zone))
        }
        None => None,
    };

    println!("redis");
    let style = config.keys.style(&config.redis.redis_url)?;
    let connecting = async {
        connection::redis::connect(config.redis.server()?, config.redis.redis_timeout).await
    };
    let redis = match findings.end(connecting.await) {
        Some(redis) => {
            let mut redis = redis.commands();
            let checked = redis::check(&mut findings, &mut redis, style).await;
            findings.end(checked);
            Some(redis)
        }
        None => None,
    };

    if let (Some(store), Some(mut redis)) = (store, redis) {
        println!("beside Java nodes");
        let keys = Keys::new(style);
        if let Err(error) = java::check(&findings, &store, &mut redis, &keys).await {
            findings.warn(&format!("not read: {error:#}"), "see above");
        }
    }

    if findings.failures > 0 {
        bail!("{} problems to solve before serving", findings.failures);
    }
    println!("ready to serve");
    Ok(())
}
