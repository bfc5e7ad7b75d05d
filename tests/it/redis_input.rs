//! Addresses and settings of Redis that cannot work: the start fails with one sentence that names the setting, and `doctor`
//! says the same. And what has to work: TLS, and a user who has only the documented rights.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use secrecy::ExposeSecret;
use testkit::certificates::Certificates;
use testkit::process::free_port;
use testkit::raw::query;
use testkit::redis_cluster::RedisCluster;
use testkit::redis_server::{RedisServer, Role};

use crate::slow::redis_sentinel::{buy_by_every_strategy, read_shops};
use crate::support::acl;
use crate::support::api::ADMIN_TOKEN;
use crate::support::database::TestDatabase;
use crate::support::instance::Instance;
use crate::support::stack::{PATIENT, sign_in};

/// The rights that docs/OPERATIONS.md lists.
const RIGHTS: &str = "~* resetchannels &redisson_* &cache:invalidate +@read +@write +@scripting \
                      +@connection +time +info +publish +subscribe +unsubscribe +multi +exec +cluster|slots +cluster|info +role";

/// Processes that start at the same time.
const STARTS_AT_ONCE: usize = 6;

fn environment(database: &TestDatabase, url: &str) -> Vec<(&'static str, String)> {
    vec![
        ("DATABASE_URL", database.url().expose_secret().to_owned()),
        ("REDIS_URL", url.to_owned()),
        ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
    ]
}

/// A server that also listens for TLS, on the port that is returned, and asks its clients for a certificate.
async fn with_tls(certificates: &Certificates) -> (RedisServer, u16) {
    let port = free_port().expect("a port");
    let arguments = certificates.arguments(port);
    (
        RedisServer::start_with_arguments(Role::Alone, arguments).await,
        port,
    )
}

fn path(file: &Path) -> String {
    file.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_setting_that_cannot_work_fails_with_one_sentence_that_names_it() {
    let certificates = Certificates::new();
    let untrusted = Certificates::new();
    let (plain, (tls, tls_port), cluster, database) = tokio::join!(
        RedisServer::start(),
        with_tls(&certificates),
        RedisCluster::start(),
        TestDatabase::migrated()
    );
    let replica = RedisServer::start_with_arguments(Role::ReplicaOf(plain.port()), vec![]).await;
    let monitor = format!("sentinel monitor known 127.0.0.1 {} 1\n", plain.port());
    let sentinel = RedisServer::start_with_arguments(Role::Sentinel(monitor), vec![]).await;
    acl(&plain, "app", "~* &* +@all").await;
    acl(&plain, "keys", "~login:* ~{login:* &* +@all").await;
    acl(&plain, "commands", "~* &* +@all -geosearch").await;
    acl(&plain, "channels", "~* resetchannels +@all").await;
    acl(&plain, "scripts", "~* &* +@all -@scripting").await;
    acl(&plain, "transactions", "~* &* +@all -multi").await;
    acl(&tls, "app", "~* &* +@all").await;

    let plain = plain.address();
    let replica = replica.address();
    let sentinel = sentinel.address();
    let node = cluster.nodes[0].address();
    let authority = path(&certificates.path("authority.crt"));
    let other_authority = path(&untrusted.path("authority.crt"));
    let [certificate, key] =
        ["client.crt", "client.key"].map(|file| path(&certificates.path(file)));
    let at_tls = format!("rediss://127.0.0.1:{tls_port}/");
    let ca = Some(authority.as_str());
    let cases: Vec<(String, Option<&str>, &str)> = vec![
        (plain.clone(), None, "not a Redis address"),
        (
            format!("redis://{plain},{replica}/"),
            None,
            "several hosts need redis-cluster://",
        ),
        (
            format!("redis-sentinel://{sentinel}"),
            None,
            "the name under which",
        ),
        (format!("redis-cluster://{node}/2"), None, "database 0"),
        (
            format!("redis://{node}/"),
            None,
            "redis-cluster:// is for a cluster",
        ),
        (
            format!("redis-cluster://{plain}"),
            None,
            "cluster support disabled",
        ),
        (
            format!("redis://{sentinel}/"),
            None,
            "redis-sentinel:// finds it",
        ),
        (format!("redis-sentinel://{plain}/known"), None, "SENTINEL"),
        (
            format!("redis-sentinel://{sentinel}/other"),
            None,
            "No such master",
        ),
        (
            format!("redis://{replica}/"),
            None,
            "it needs the master of",
        ),
        (
            format!("rediss://{plain}/"),
            None,
            "where the port expects TLS",
        ),
        (
            format!("redis://127.0.0.1:{tls_port}/"),
            None,
            "begins with rediss where",
        ),
        (
            at_tls.clone(),
            Some(&other_authority),
            "invalid peer certificate",
        ),
        (at_tls.clone(), None, "invalid peer certificate"),
        (at_tls.clone(), ca, "REDIS_CERT and REDIS_KEY right?"),
        (
            at_tls.clone(),
            Some("/none"),
            "REDIS_CA (--redis-ca): cannot read /none",
        ),
        (at_tls.clone(), Some(&key), "REDIS_CA"),
        (format!("redis://{plain}/"), ca, "has to begin with rediss"),
        (
            format!("redis://app:wrong@{plain}/"),
            None,
            "user, password",
        ),
        (
            format!("redis://keys:secret@{plain}/"),
            None,
            "keys like cache:shop:",
        ),
        (
            format!("redis://commands:secret@{plain}/"),
            None,
            "docs/OPERATIONS.md lists",
        ),
        (
            format!("redis://channels:secret@{plain}/"),
            None,
            "the channel cache:invalidate",
        ),
        (
            format!("redis://transactions:secret@{plain}/"),
            None,
            "MULTI and EXEC",
        ),
        (
            format!("redis://scripts:secret@{plain}/"),
            None,
            "docs/OPERATIONS.md lists",
        ),
    ];
    let assert_refused = |command: &str, (url, authority, says): &(String, Option<&str>, &str)| {
        let mut env = environment(&database, url);
        env.extend(authority.map(|file| ("REDIS_CA", file.to_owned())));
        env.push(("BIND_ADDR", "127.0.0.1:0".to_owned()));
        if command == "doctor" {
            env.retain(|(name, _)| *name != "BIND_ADDR" && *name != "ADMIN_TOKEN");
        }
        let text = Instance::says(1, &[command], &env, says);
        let line = text
            .lines()
            .find(|line| line.contains(says))
            .expect("in one line");
        assert!(line.contains("REDIS_"), "{command} {url}: {line}");
        assert!(!text.contains("secret"), "a password in the output: {text}");
    };
    // Several at a time, because a start waits for fifteen seconds where a port says nothing.
    let tried = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..STARTS_AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(tried.fetch_add(1, Relaxed)) {
                    assert_refused("serve", case);
                    assert_refused("doctor", case);
                }
            });
        }
    });
    let mut without_key = environment(&database, &at_tls);
    without_key.push(("REDIS_CERT", certificate));
    Instance::says(2, &["serve"], &without_key, "--redis-key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_works_over_tls_with_the_documented_rights() {
    let certificates = Certificates::new();
    let ((server, port), database) =
        tokio::join!(with_tls(&certificates), TestDatabase::migrated());
    acl(&server, "app", RIGHTS).await;
    let mut env = environment(&database, &format!("rediss://app:secret@127.0.0.1:{port}/"));
    for (name, file) in [
        ("REDIS_CA", "authority.crt"),
        ("REDIS_CERT", "client.crt"),
        ("REDIS_KEY", "client.key"),
    ] {
        env.push((name, path(&certificates.path(file))));
    }
    env.extend(PATIENT.map(|(name, value)| (name, value.to_owned())));
    let instance = Instance::start(&[], &env).await;
    let user = sign_in(&instance.url, &mut server.conn().await, "13800000001").await;
    read_shops(&instance.url).await;
    buy_by_every_strategy(&instance.url, &user).await;
    let clients: String = query(&mut server.conn().await, "CLIENT", &["LIST"]).await;
    let service_clients = clients.lines().filter(|line| line.contains("user=app"));
    let ports: Vec<&str> = service_clients
        .filter_map(|line| line.split(' ').find(|word| word.starts_with("laddr=")))
        .collect();
    assert!(ports.len() >= 3, "{clients}");
    assert!(
        ports
            .iter()
            .all(|laddr| laddr.ends_with(&format!(":{port}"))),
        "{clients}"
    );
    assert!(
        instance.lines_with("NOPERM").is_empty(),
        "a right is missing"
    );
}
