//! The address of the database, and why a connection to it failed, as one sentence that names `DATABASE_URL`. The driver
//! ignores parameters that it does not know: a misspelt `ssl-mode` would be a connection without TLS.

use std::fs::File;

use anyhow::{Context, anyhow, ensure};
use secrecy::{ExposeSecret, SecretString};
use sqlx::mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlSslMode};

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

/// Those of them that name a file, or are the text of one.
const FILES: [&str; 3] = ["ssl-ca", "ssl-cert", "ssl-key"];

/// Connection options for `url`.
///
/// # Errors
/// It is no address of a database, has a parameter that is not known or does nothing, or names a file that cannot be read.
/// The message holds no password.
pub fn options(url: &SecretString) -> anyhow::Result<MySqlConnectOptions> {
    let url = url.expose_secret();
    let form = "DATABASE_URL is not a database address; it looks like mysql://user:password@127.0.0.1:3306/seckill";
    let (scheme, rest) = url.split_once("://").context(form)?;
    ensure!(
        matches!(scheme, "mysql" | "mariadb"),
        "{form}, and begins with mysql:// or mariadb://"
    );
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let parameters: Vec<(&str, &str)> = query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
        .collect();
    for (name, value) in &parameters {
        let known = PARAMETERS.join(", ");
        ensure!(
            PARAMETERS.contains(name),
            "DATABASE_URL has the parameter {name}, which is not one of {known}"
        );
        // Percent-encoded names are left to the driver.
        if FILES.contains(name) && !value.contains("BEGIN") && !value.contains('%') {
            File::open(value).with_context(|| format!("DATABASE_URL: {name}={value}"))?;
        }
    }
    let has = |name| parameters.iter().any(|(given, _)| *given == name);
    let options: MySqlConnectOptions = url.parse().map_err(|error| match error {
        // Tells the value of a parameter, or what is wrong with the form.
        sqlx::Error::Configuration(error) => anyhow!("{form}: {error}"),
        other => anyhow!("{form}: {other}"),
    })?;
    ensure!(options.get_database().is_some(), "DATABASE_URL names no database; {}", &form[35..]);
    let verifies =
        matches!(options.get_ssl_mode(), MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity);
    ensure!(
        verifies || !has("ssl-ca"),
        "DATABASE_URL has ssl-ca, but without ssl-mode=VERIFY_IDENTITY (or VERIFY_CA) any certificate is accepted"
    );
    ensure!(
        has("ssl-cert") == has("ssl-key"),
        "DATABASE_URL has one of ssl-cert and ssl-key, which need each other"
    );
    Ok(options)
}

/// What a failed connection means, as one sentence.
pub fn cannot_connect(error: &sqlx::Error, options: &MySqlConnectOptions) -> anyhow::Error {
    let server = options.get_socket().map_or_else(
        || format!("{}:{}", options.get_host(), options.get_port()),
        |socket| socket.display().to_string(),
    );
    anyhow!("cannot connect to the database at {server}: {} ({error})", reason(error))
}

const UNTRUSTED: &str = "TLS failed: is ssl-ca in DATABASE_URL the authority of its certificate, and does it want ssl-cert \
     and ssl-key?";

/// What the text of an error says, of the driver, the TLS library or the server; the first that fits counts.
const REASONS: [(&str, &str); 5] = [
    ("does not support TLS", "it has no TLS, which ssl-mode in DATABASE_URL asks for"),
    ("not valid for name", "its certificate is for another name than the host in DATABASE_URL"),
    ("certificate", UNTRUSTED),
    ("UnknownIssuer", UNTRUSTED),
    ("insecure transport", "it demands TLS: add ssl-mode=VERIFY_IDENTITY to DATABASE_URL"),
];

/// What to look at.
fn reason(error: &sqlx::Error) -> &'static str {
    let text = error.to_string();
    if let Some((_, says)) = REASONS.iter().find(|(words, _)| text.contains(words)) {
        return says;
    }
    let number = error.as_database_error().and_then(|error| {
        error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
    });
    match number {
        Some(1045 | 1698) => {
            "it refuses the user, the password, or the connection without TLS, of DATABASE_URL"
        }
        Some(1044 | 1049) => {
            "the database of DATABASE_URL is not there, or its user has no right to it"
        }
        Some(1040 | 1203 | 1226) => {
            "it has no connection left: lower --database-connections, or raise max_connections"
        }
        Some(1129 | 1130) => "it does not accept connections from this machine",
        None if matches!(error, sqlx::Error::Tls(_)) => {
            "TLS failed: see ssl-mode, ssl-ca, ssl-cert and ssl-key in DATABASE_URL"
        }
        _ => "is it running, and is DATABASE_URL right?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_would_not_do_what_it_says_is_refused() {
        for (url, says) in [
            ("nonsense", "it looks like mysql://user:password@"),
            ("jdbc:mysql://h/d", "begins with mysql://"),
            ("postgres://h/d", "begins with mysql://"),
            ("mysql://u:s3cret@h:99999/d", "invalid port"),
            ("mysql://u:s3cret@h", "names no database"),
            ("mysql://u:s3cret@h/d?ssl_mode=VERIFY_CA", "the parameter ssl_mode"),
            ("mysql://u:s3cret@h/d?useSSL=true", "the parameter useSSL"),
            ("mysql://u:s3cret@h/d?time-zone=%2B08:00", "the parameter time-zone"),
            ("mysql://u:s3cret@h/d?ssl-mode=VERIFY", "ssl_mode"),
            ("mysql://u:s3cret@h/d?ssl-ca=/nowhere/ca.pem&ssl-mode=VERIFY_CA", "/nowhere/ca.pem"),
            ("mysql://u:s3cret@h/d?ssl-ca=/dev/null", "any certificate is accepted"),
            ("mysql://u:s3cret@h/d?ssl-cert=/dev/null", "need each other"),
        ] {
            let Err(error) = options(&url.into()) else { panic!("{url} is accepted") };
            let error = format!("{error:#}");
            assert!(error.contains(says) && error.contains("DATABASE_URL"), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        options(&"mysql://u:p@h/d?charset=utf8mb4".into()).expect("an address");
    }
}
