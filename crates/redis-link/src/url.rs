//! The address of a Redis as one line of text, for settings and command lines.

use redis::{ConnectionInfo, IntoConnectionInfo};

use crate::server::{AddressError, Server};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl Server {
    /// The Redis at `url`, which takes one of these forms; `rediss`, `rediss-sentinel` and
    /// `rediss-cluster` are the same with TLS:
    ///
    /// - `redis://[user[:password]@]host[:port][/database]`, as redis-rs reads it (also `unix://`)
    /// - `redis-sentinel://[user[:password]@]host[:port],…/master[/database][?sentinel_user=…&sentinel_password=…]`,
    ///   with the master's user and password
    /// - `redis-cluster://[user[:password]@]host[:port],…`, with some of the nodes; the others are discovered
    ///
    /// User and password are percent-encoded. The default port is 6379, that of a sentinel 26379; the
    /// address of an IPv6 host is in brackets.
    ///
    /// # Errors
    /// When it has none of the forms. The message never contains the address, which may hold a password.
    ///
    /// ```
    /// # fn example() -> Result<(), redis_link::AddressError> {
    /// use redis_link::Server;
    ///
    /// Server::from_url("redis://127.0.0.1:6379/")?;
    /// Server::from_url("redis-sentinel://app:secret@10.0.0.1:26379,10.0.0.2:26379/mymaster")?;
    /// Server::from_url("redis-cluster://app:secret@10.0.0.1:7000,10.0.0.2:7000")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_url(url: &str) -> Result<Self, AddressError> {
        let (scheme, after_scheme) = url
            .trim()
            .split_once("://")
            .ok_or_else(|| AddressError::new(FORMS))?;
        let tls = scheme.starts_with("rediss");
        match scheme {
            "redis-sentinel" | "rediss-sentinel" => sentinel(after_scheme, tls),
            "redis-cluster" | "rediss-cluster" => cluster(after_scheme, tls),
            "redis" | "rediss" | "unix" | "redis+unix" => {
                // A password may have a comma.
                let authority = after_scheme.split(['/', '?', '#']).next();
                let hosts = authority.and_then(|authority| authority.rsplit('@').next());
                if hosts.is_some_and(|hosts| hosts.contains(',')) {
                    return Err(AddressError::new(
                        "several hosts need redis-cluster:// or redis-sentinel://",
                    ));
                }
                Ok(Self::from(redis::Client::open(url.trim())?))
            }
            _ => Err(AddressError::new(FORMS)),
        }
    }
}

const FORMS: &str = "not a Redis address; it looks like redis://127.0.0.1:6379/, \
    redis-sentinel://host:26379,host:26379/master or redis-cluster://host:6379,host:6379, with TLS rediss…";

/// An address with several hosts, in parts that are still percent-encoded.
struct Parts<'a> {
    /// `user:password@`, or empty.
    login: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
    query: &'a str,
}

/// As [`Server::from_url`].
impl TryFrom<&str> for Server {
    type Error = AddressError;

    fn try_from(url: &str) -> Result<Self, AddressError> {
        Self::from_url(url)
    }
}

impl<'a> Parts<'a> {
    fn parse(after_scheme: &'a str) -> Result<Self, AddressError> {
        let (without_query, query) = after_scheme.split_once('?').unwrap_or((after_scheme, ""));
        let (authority, path) = without_query.split_once('/').unwrap_or((without_query, ""));
        let (login, hosts) = match authority.rfind('@') {
            Some(at_sign) => authority.split_at(at_sign + 1),
            None => ("", authority),
        };
        let hosts: Vec<&str> = hosts.split(',').map(str::trim).collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(AddressError::new(
                "a host is missing between two commas, or before the path",
            ));
        }
        Ok(Self {
            login,
            hosts,
            path,
            query,
        })
    }

    /// The nodes, each with this login.
    fn nodes(
        &self,
        tls: bool,
        login: &str,
        port: u16,
    ) -> Result<Vec<ConnectionInfo>, AddressError> {
        let scheme = if tls { "rediss" } else { "redis" };
        self.hosts
            .iter()
            .map(|host| {
                let with_port = host
                    .rsplit_once(':')
                    .is_some_and(|(_, port)| !port.contains(']'));
                let url = if with_port {
                    format!("{scheme}://{login}{host}")
                } else {
                    format!("{scheme}://{login}{host}:{port}")
                };
                Ok(url.into_connection_info()?)
            })
            .collect()
    }
}

fn cluster(after_scheme: &str, tls: bool) -> Result<Server, AddressError> {
    let parts = Parts::parse(after_scheme)?;
    if !matches!(parts.path, "" | "0") || !parts.query.is_empty() {
        return Err(AddressError::new(
            "a cluster's address ends after its hosts: it has database 0 only",
        ));
    }
    Server::cluster(parts.nodes(tls, parts.login, REDIS_PORT)?)
}

fn sentinel(after_scheme: &str, tls: bool) -> Result<Server, AddressError> {
    let parts = Parts::parse(after_scheme)?;
    let mut path = parts.path.trim_end_matches('/').splitn(2, '/');
    let master = path.next().unwrap_or_default();
    if master.is_empty() || !master.chars().all(is_allowed_in_master_name) {
        return Err(AddressError::new(
            "the name under which the sentinels know the master is missing after the hosts: \
             redis-sentinel://host:26379,host:26379/mymaster",
        ));
    }
    let mut user = "";
    let mut password = "";
    for pair in parts.query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            _ => {
                return Err(AddressError::new(
                    "only sentinel_user and sentinel_password may follow the ?",
                ));
            }
        }
    }
    if [user, password]
        .iter()
        .any(|part| part.contains(['@', '/', ':', '#']))
    {
        return Err(AddressError::new(
            "the sentinels' user and password have to be percent-encoded",
        ));
    }
    let sentinel_login = if password.is_empty() {
        String::new()
    } else {
        format!("{user}:{password}@")
    };
    let sentinels = parts.nodes(tls, &sentinel_login, SENTINEL_PORT)?;
    // redis-rs parses the master's login and database. The host is not used: the sentinels name it.
    let database = path.next().unwrap_or_default();
    let master_url = format!("redis://{}localhost/{database}", parts.login);
    let master_info: ConnectionInfo = master_url.into_connection_info()?;
    Server::sentinel(sentinels, master, master_info.redis_settings().clone())
}

fn is_allowed_in_master_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

#[cfg(test)]
#[path = "../tests/unit/url.rs"]
mod tests;
