//! `seckill doctor`: checks everything that a start needs, prints each finding with what to do about it, and fails where
//! something must be repaired.

use anyhow::bail;

use self::findings::Findings;
use crate::config::DoctorConfig;
use crate::connection::{self, mysql};

mod database;
mod durability;
mod findings;
mod java_sales;
mod join;
mod key_style;
mod redis;
mod time_zones;

/// Runs the command.
pub async fn run(config: DoctorConfig) -> anyhow::Result<()> {
    let mut findings = Findings::default();
    println!("time zone");
    findings.good(&format!("{}: it is {}", config.time_zone.0, config.time_zone.now()));

    println!("database");
    let server = &config.database;
    match mysql::connect(&server.database_url, 1, server.database_timeout).await {
        Ok(pool) => {
            if let Err(error) = database::check(&mut findings, &pool, &config).await {
                findings.fail(&format!("{error:#}"), "see the message");
            }
        }
        Err(error) => findings.fail(&format!("{error:#}"), "start it, or correct DATABASE_URL"),
    }

    println!("redis");
    let timeout = config.redis.redis_timeout;
    let connected = match config.redis.server() {
        Ok(server) => connection::redis::connect(server, timeout).await,
        Err(error) => Err(error),
    };
    match connected {
        Ok(redis) => {
            if let Err(error) = redis::check(&mut findings, &mut redis.commands()).await {
                findings.fail(&format!("{error:#}"), "see the message");
            }
            let style = config.keys.style(&config.redis.redis_url)?;
            if let Err(error) = key_style::check(&mut findings, &mut redis.commands(), style).await
            {
                findings.fail(&format!("{error:#}"), "see the message");
            }
        }
        Err(error) => findings.fail(&format!("{error:#}"), "see the message"),
    }

    println!("sales of Java nodes");
    if let Err(error) = java_sales::check(&findings, &config).await {
        findings.warn(&format!("not read: {error:#}"), "see above");
    }

    if config.join {
        println!("joining the stream");
        if let Err(error) = join::check(&findings, &config).await {
            findings.warn(&format!("not read: {error:#}"), "see above");
        }
    }

    if findings.failures > 0 {
        bail!("{} problems to solve before serving", findings.failures);
    }
    println!("ready to serve");
    Ok(())
}
