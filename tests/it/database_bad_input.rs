//! A database that cannot be used: each reason is one sentence at start, which names `DATABASE_URL` and no password. And the
//! forms of TLS that work.

use std::time::Duration;

use seckill::connection::mysql;
use sqlx::{Connection, Executor, MySqlConnection, Row};
use testkit::certificates::Certificates;
use testkit::redis_server::RedisServer;

use crate::database_failover::is_mariadb;
use crate::support::database::{is_oceanbase, server};
use crate::support::instance::Instance;

const LIMIT: Duration = Duration::from_secs(20);

/// The password of the users that the tests make.
const PASSWORD: &str = "s3cret";

/// Nothing listens at this address of Redis: a database that cannot be used is reported before Redis is asked.
fn environment(url: &str) -> [(&'static str, String); 3] {
    let redis = ("REDIS_URL", "redis://127.0.0.1:1/");
    [("DATABASE_URL", url), redis, ("BIND_ADDR", "127.0.0.1:0")]
        .map(|(name, value)| (name, value.to_owned()))
}

fn assert_refused(command: &str, url: &str, says: &str) {
    let text = Instance::says(1, &[command], &environment(url), says);
    assert!(text.contains("DATABASE_URL"), "{command}, {says}: {text}");
    // If a server does not answer, the log also says that it is tried again.
    let said = text.trim().lines().filter(|line| !line.contains(" WARN "));
    assert_eq!(said.count(), 1, "{text}");
    assert!(!text.contains(PASSWORD), "a password: {text}");
}

fn assert_migrates(url: &str) {
    Instance::says(0, &["migrate"], &environment(url), "");
}

/// The cipher of a connection, empty without TLS.
async fn cipher(url: &str) -> String {
    let connection = mysql::connect_once(&url.into(), LIMIT).await;
    let mut connection = connection.unwrap_or_else(|error| panic!("{url}: {error}"));
    let row = connection
        .fetch_one("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        .await;
    row.expect("a row").get(1)
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_named_in_one_sentence() {
    let server = server(&[]).await.expect("a database server");
    let mut admin = MySqlConnection::connect(&server.admin_url())
        .await
        .expect("connect");
    let mut sql = async |statement: &str| {
        admin
            .execute(statement)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    };
    let url = server.url();
    let as_user = |user: &str, database: &str| {
        format!("mysql://{user}:{PASSWORD}@{}/{database}", server.address())
    };
    for (user, rights) in [
        ("reader", "SELECT ON seckill.*"),
        ("writer", "SELECT, INSERT, UPDATE, DELETE ON seckill.*"),
    ] {
        sql(&format!(
            "CREATE USER '{user}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'"
        ))
        .await;
        sql(&format!("GRANT {rights} TO '{user}'@'127.0.0.1'")).await;
    }

    // Not a database, or not with this user.
    let redis = RedisServer::start().await;
    let url_of_redis = format!("mysql://writer:{PASSWORD}@{}/seckill", redis.address());
    assert_refused("serve", &url_of_redis, "in DATABASE_URL right?");
    let nobody = as_user("nobody", "seckill");
    let nothing = as_user("writer", "nothing");
    for command in ["serve", "migrate"] {
        assert_refused(command, &nobody, "Access denied");
        assert_refused(command, &nothing, "to database 'nothing'");
    }

    // Without all the rights to migrate, CREATE alone included; a user who has them all repeats the step that failed.
    assert_refused(
        "migrate",
        &as_user("writer", "seckill"),
        "may not change the tables",
    );
    sql("GRANT CREATE ON seckill.* TO 'writer'@'127.0.0.1'").await;
    assert_refused(
        "migrate",
        &as_user("writer", "seckill"),
        "may not change the tables",
    );
    assert_refused("serve", &url, "run `seckill migrate` first");
    assert_migrates(&url);
    sql("REVOKE CREATE ON seckill.* FROM 'writer'@'127.0.0.1'").await;
    assert_refused(
        "serve",
        &as_user("reader", "seckill"),
        "its user needs SELECT, INSERT",
    );
    // These rights are enough to serve: the start comes as far as Redis.
    let enough = environment(&as_user("writer", "seckill"));
    Instance::says(1, &["serve"], &enough, "cannot connect to Redis");

    // A replica, and tables of another release.
    sql("SET GLOBAL read_only = 1").await;
    for command in ["serve", "migrate"] {
        assert_refused(command, &url, "is read-only, as a replica is");
    }
    sql("SET GLOBAL read_only = 0").await;
    sql("ALTER TABLE seckill.tb_idempotency DROP COLUMN result").await;
    assert_refused(
        "serve",
        &url,
        "tb_idempotency has no column result. Remedy: ",
    );
    sql("INSERT INTO seckill._sqlx_migrations \
         SELECT 99, 'later', installed_on, 1, checksum, 1 FROM seckill._sqlx_migrations LIMIT 1")
    .await;
    assert_refused("migrate", &url, "was migrated by a newer release");
}

#[tokio::test]
async fn tls_to_the_database_is_what_the_address_says() {
    if is_oceanbase() {
        // OceanBase does not get its certificates as arguments of its start.
        return;
    }
    let ours = Certificates::new();
    let untrusted = Certificates::new();
    let file = |name: &str| ours.path(name).display().to_string();
    let arguments = [
        ("ca", "authority.crt"),
        ("cert", "server.crt"),
        ("key", "server.key"),
    ];
    let arguments = arguments.map(|(name, path)| format!("--ssl-{name}={}", file(path)));
    let tls = server(&arguments.each_ref().map(String::as_str))
        .await
        .expect("a database server");
    let mut admin = MySqlConnection::connect(&tls.admin_url())
        .await
        .expect("connect");
    for statement in [
        &format!("CREATE USER 'certified'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}' REQUIRE X509"),
        "GRANT ALL ON seckill.* TO 'certified'@'127.0.0.1'",
    ] {
        admin.execute(statement).await.expect(statement);
    }
    let ca = file("authority.crt");
    let with = |parameters: &str| format!("{}&{parameters}", tls.url());
    let certified = |parameters: &str| {
        format!(
            "mysql://certified:{PASSWORD}@{}/seckill?{parameters}",
            tls.address()
        )
    };
    let client_certificate = format!(
        "ssl-cert={}&ssl-key={}",
        file("client.crt"),
        file("client.key")
    );

    for encrypted in [
        tls.url(),
        with("ssl-mode=REQUIRED"),
        with(&format!("ssl-mode=VERIFY_CA&ssl-ca={ca}")),
        with(&format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}")),
        certified(&format!(
            "ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}&{client_certificate}"
        )),
    ] {
        assert_ne!(cipher(&encrypted).await, "", "{encrypted}");
        assert_migrates(&encrypted);
    }
    assert_eq!(cipher(&with("ssl-mode=DISABLED")).await, "");

    let other_ca = untrusted.path("authority.crt").display().to_string();
    let by_name = |mode: &str| {
        with(&format!("ssl-mode={mode}&ssl-ca={ca}")).replace("127.0.0.1", "localhost")
    };
    for (url, says) in [
        (
            with(&format!("ssl-mode=VERIFY_CA&ssl-ca={other_ca}")),
            "invalid peer certificate",
        ),
        // The system's authorities do not know it.
        (with("ssl-mode=VERIFY_CA"), "invalid peer certificate"),
        (by_name("VERIFY_IDENTITY"), "not valid for name"),
        // The driver looks at the name for VERIFY_CA, too.
        (by_name("VERIFY_CA"), "not valid for name"),
        (certified("ssl-mode=DISABLED"), "Access denied"),
        (
            certified(&format!("ssl-mode=VERIFY_CA&ssl-ca={ca}")),
            "Access denied",
        ),
    ] {
        assert_refused("serve", &url, says);
    }
    admin
        .execute("SET GLOBAL require_secure_transport = 1")
        .await
        .expect("a setting");
    // MariaDB only says that access is denied; the sentence names what to check.
    assert_refused(
        "serve",
        &with("ssl-mode=DISABLED"),
        "ssl-mode with its files",
    );

    // A server without TLS, and of a version that is too old.
    if !is_mariadb() {
        return;
    }
    let old = server(&["--skip-ssl", "--version=5.7.44-log"])
        .await
        .expect("a database server");
    let demanding = format!("{}&ssl-mode=VERIFY_CA&ssl-ca={ca}", old.url());
    assert_refused("serve", &demanding, "does not support TLS");
    for command in ["serve", "migrate"] {
        assert_refused(
            command,
            &old.url(),
            "is version 5.7.44-log; MySQL 8.0, MariaDB 10.5",
        );
    }
}
