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
    let database = findings.end(database);
    if let Some(database) = &database {
        let connections = server.database_connections;
        let checked = database::check(&mut findings, database, zone, connections).await;
        findings.end(checked);
    }

    println!("redis");
    let style = config.redis.key_style()?;
    let connecting = async {
        connection::redis::connect(config.redis.server()?, config.redis.redis_timeout).await
    };
    let redis = findings.end(connecting.await);
    if let Some(redis) = &redis {
        let checked = redis::check(&mut findings, &mut redis.commands(), style).await;
        findings.end(checked);
    }

    if let (Some(database), Some(redis)) = (database, redis) {
        println!("beside Java nodes");
        let (store, keys) = (OrderStore::new(database, zone), Keys::new(style));
        if let Err(error) = java::check(&findings, &store, &mut redis.commands(), &keys).await {
            findings.warn(&format!("not read: {error:#}"), "see above");
        }
    }

    if findings.failures > 0 {
        bail!("{} problems to solve before serving", findings.failures);
    }
    println!("ready to serve");
    Ok(())
}
