//! What a Redis must be to be used: a version, and the kind that its address names.

use anyhow::{bail, ensure};
use redis_link::Redis;

use super::redis_errors::sentence;

/// The oldest Redis that has what the scripts use: GEOSEARCH came with 6.2.
const OLDEST: (u32, u32) = (6, 2);

/// Checks a Redis that answers.
///
/// # Errors
/// One sentence that names the setting.
pub async fn check(redis: &Redis) -> anyhow::Result<()> {
    let mut commands = redis.commands();
    let info: String =
        redis::cmd("INFO").query_async(&mut commands).await.map_err(|error| sentence(&error))?;
    let clustered = !redis.is_cluster() && field(&info, "cluster_enabled") == Some("1");
    let masters = if clustered {
        let mut command = redis::cmd("CLUSTER");
        let told: String = command
            .arg("INFO")
            .query_async(&mut commands)
            .await
            .map_err(|error| sentence(&error))?;
        field(&told, "cluster_size").and_then(|size| size.parse().ok()).unwrap_or(0)
    } else {
        1
    };
    judge(&info, masters)
}

/// What INFO says, and how many masters a cluster has that was given as one server.
fn judge(info: &str, masters: u32) -> anyhow::Result<()> {
    // Valkey names it otherwise.
    if [field(info, "redis_mode"), field(info, "server_mode")].contains(&Some("sentinel")) {
        bail!(
            "REDIS_URL (--redis-url): this is a sentinel: redis-sentinel://host:port,host:port/master names a master by \
             its sentinels"
        );
    }
    if field(info, "role") == Some("slave") {
        let master = field(info, "master_host").unwrap_or("unknown");
        let port = field(info, "master_port").unwrap_or("?");
        bail!(
            "REDIS_URL (--redis-url): the server is a replica of {master}:{port}, which takes no writes: name its \
             master, or the sentinels that know it"
        );
    }
    ensure!(
        masters <= 1,
        "REDIS_URL (--redis-url): the server is one of {masters} masters of a cluster: its address begins with \
         redis-cluster://"
    );
    let told = field(info, "redis_version").unwrap_or("unknown");
    let mut numbers = told.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    ensure!(
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST,
        "REDIS_URL (--redis-url): the server's version is {told}; Redis {}.{} is the oldest that has what is needed",
        OLDEST.0,
        OLDEST.1
    );
    Ok(())
}

/// A field of INFO.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn what_cannot_be_used_is_named() {
        for (info, masters, says) in [
            ("redis_version:6.0.16\r\nrole:master\r\n", 1, "version is 6.0.16"),
            ("redis_version:7.2.4\r\nredis_mode:sentinel\r\n", 1, "redis-sentinel://"),
            ("redis_version:7.2.4\r\nserver_mode:sentinel\r\n", 1, "redis-sentinel://"),
            ("redis_version:7.2.4\r\nrole:slave\r\nmaster_host:h\r\n", 1, "replica of h"),
            ("redis_version:7.2.4\r\nrole:master\r\n", 3, "one of 3 masters"),
            ("role:master\r\n", 1, "version is unknown"),
        ] {
            let error = judge(info, masters).expect_err(info).to_string();
            assert!(error.contains(says) && error.contains("--redis-url"), "{error}");
        }
        judge("redis_version:6.2.0\r\nrole:master\r\n", 1).unwrap();
        judge("redis_version:10.0.0\r\nrole:master\r\n", 1).unwrap();
    }
}
