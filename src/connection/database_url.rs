//! The address of the database, and why a connection to it failed, as one sentence that names `DATABASE_URL`. The driver
//! ignores parameters that it does not know: a misspelt `ssl-mode` would be a connection without TLS.

use anyhow::{Context, anyhow, ensure};
use secrecy::{ExposeSecret, SecretString};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

/// The parameters an address may have. The session's time zone is none of them: it is UTC, so that TIMESTAMP columns are
/// instants.
const PARAMETERS: [&str; 8] = [
    "ssl-mode",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "socket",
    "charset",
    "collation",
    "statement-cache-capacity",
];

/// An example of an address.
const LOOKS_LIKE: &str = "it looks like mysql://user:password@127.0.0.1:3306/seckill";

/// Connection options for `url`.
///
/// # Errors
/// It is no address of a database, or has a parameter that is not known or does nothing. The message holds no password.
pub fn options(url: &SecretString) -> anyhow::Result<MySqlConnectOptions> {
    let url = url.expose_secret();
    let form = format!("DATABASE_URL is not a database address; {LOOKS_LIKE}");
    let (scheme, rest) = url.split_once("://").context(form.clone())?;
    ensure!(
        matches!(scheme, "mysql" | "mariadb"),
        "{form}, and begins with mysql:// or mariadb://"
    );
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let names: Vec<&str> = query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            parameter
                .split_once('=')
                .map_or(parameter, |(name, _)| name)
        })
        .collect();
    for name in &names {
        ensure!(
            PARAMETERS.contains(name),
            "DATABASE_URL has the parameter {name}, which is not one of {}",
            PARAMETERS.join(", ")
        );
    }
    let mut options: MySqlConnectOptions = url
        .parse()
        .map_err(|error: sqlx::Error| anyhow!("{form}: {error}"))?;
    if !names.contains(&"charset") && !names.contains(&"collation") {
        // The driver's own choice is not on every server.
        options = options.collation("utf8mb4_general_ci");
    }
    ensure!(
        options.get_database().is_some(),
        "DATABASE_URL names no database; {LOOKS_LIKE}"
    );
    let verifies = matches!(
        options.get_ssl_mode(),
        MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity
    );
    ensure!(
        verifies || !names.contains(&"ssl-ca"),
        "DATABASE_URL has ssl-ca, but without ssl-mode=VERIFY_IDENTITY (or VERIFY_CA) any certificate is accepted"
    );
    Ok(options)
}

/// What a failed connection means, as one sentence.
pub fn cannot_connect(error: &sqlx::Error, options: &MySqlConnectOptions) -> anyhow::Error {
    let server = options.get_socket().map_or_else(
        || format!("{}:{}", options.get_host(), options.get_port()),
        |socket| socket.display().to_string(),
    );
    anyhow!(
        "cannot connect to the database at {server} ({error}): is it running, does it let this machine in, and are user, \
         password, database and ssl-mode with its files in DATABASE_URL right?"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_would_not_do_what_it_says_is_refused() {
        for (url, says) in [
            ("jdbc:mysql://h/d", "begins with mysql://"),
            ("mysql://u:s3cret@h:99999/d", "invalid port"),
            (
                "mysql://u:s3cret@h",
                "DATABASE_URL names no database; it looks like mysql://user:password@127.0.0.1:3306/seckill",
            ),
            (
                "mysql://u:s3cret@h/d?ssl_mode=VERIFY_CA",
                "the parameter ssl_mode",
            ),
            (
                "mysql://u:s3cret@h/d?time-zone=%2B08:00",
                "the parameter time-zone",
            ),
            ("mysql://u:s3cret@h/d?ssl-mode=VERIFY", "ssl_mode"),
            (
                "mysql://u:s3cret@h/d?ssl-ca=/dev/null",
                "any certificate is accepted",
            ),
        ] {
            let Err(error) = options(&url.into()) else {
                panic!("{url} is accepted")
            };
            let error = format!("{error:#}");
            assert!(
                error.contains(says) && error.contains("DATABASE_URL"),
                "{url}: {error}"
            );
            assert!(!error.contains("s3cret"), "{error}");
        }
        options(&"mysql://u:p@h/d?charset=utf8mb4".into()).expect("an address");
    }
}
