//! The binary's command line: failed starts say why and what to do, and the other subcommands do what they say.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use seckill::connection::mysql;
use secrecy::ExposeSecret;

use crate::support::acl;
use crate::support::api::get;
use crate::support::database::{TestDatabase, is_oceanbase, server};
use crate::support::instance::Instance;
use crate::support::stack::Stack;
use sqlx::Executor;
use testkit::database_server::DatabaseServer;
use testkit::proxy::Mode;
use testkit::raw;
use testkit::redis_sentinel::in_sync;
use testkit::redis_server::{RedisServer, Role};

/// Inserts three orders, made just now by a node whose clock is this far ahead of UTC. The upper half of an order's id is the
/// node's time, in seconds since 2022.
async fn insert_orders(stack: &Stack, first_user: i64, hours_ahead: i64, status: u8) {
    for user in first_user..first_user + 3 {
        let insert = format!(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES \
             (((UNIX_TIMESTAMP() + {hours_ahead} * 3600 - 1640995200) << 32) + {user}, {user}, 1, {status})"
        );
        stack.database.run(&insert).await;
    }
}

/// Whatever settings a server gives to its sessions, ours commit each write, and may delete rows by a condition without a key.
async fn assert_sessions_have_settings_of_their_own(server: &DatabaseServer) {
    let mut admin = server.admin().await.expect("connect");
    let settings = "SET GLOBAL autocommit = 0, GLOBAL sql_safe_updates = 1";
    admin.execute(settings).await.expect("settings");
    let url = server.url().into();
    let database = mysql::connect(&url, 1, Duration::from_secs(20)).await;
    let database = database.expect("connect");
    for (write, rows) in [
        ("INSERT INTO tb_stock_unit (voucher_id) VALUES (1), (2)", 2),
        ("DELETE FROM tb_stock_unit WHERE voucher_id + 0 = 1", 1),
    ] {
        let writing = database.write(async |c| c.execute(write).await);
        let done = writing.await.expect(write);
        assert_eq!(done.rows_affected(), rows);
    }
    // What was not committed is lost with the connection.
    database.pool.close().await;
    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM seckill.tb_stock_unit")
        .fetch_one(&mut admin)
        .await
        .expect("a number");
    assert_eq!(rows, 1);
    let settings = "SET GLOBAL autocommit = 1, GLOBAL sql_safe_updates = 0";
    admin.execute(settings).await.expect("settings");
}

/// `doctor` names a database's clock that is ahead of this machine's or behind. `init_connect` moves it for every session but
/// those of administrators.
async fn assert_another_clock_is_named(server: &DatabaseServer, env: &[(&str, String)]) {
    let mut admin = server.admin().await.expect("connect");
    for difference in ["- 3600", "+ 3600"] {
        let set_clock = format!("SET @@timestamp = UNIX_TIMESTAMP() {difference}");
        let at_connect = format!("SET GLOBAL init_connect = '{set_clock}'");
        admin.execute(at_connect.as_str()).await.expect("a step");
        let text = Instance::says(1, &["doctor"], env, "the database's clock is 3");
        assert!(text.contains("run a time service"), "{text}");
    }
    let nothing_at_connect = "SET GLOBAL init_connect = ''";
    admin
        .execute(nothing_at_connect)
        .await
        .expect("stepped back");
}

#[tokio::test]
async fn doctor_passes_a_healthy_stack_and_says_what_is_wrong_with_redis() {
    let stack = Stack::start(0, &[]).await;
    let text = Instance::says(0, &["doctor"], &stack.env(), "ready to serve");
    for line in [
        "its version, tables and rights are those",
        "the user has the rights",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    for problem in ["maxmemory-policy", "clock", "replicas", "may not publish"] {
        assert!(!text.contains(problem), "{problem}: {text}");
    }
    let mut redis = RedisServer::start().await;
    let mut env = stack.env();
    env[1].1 = redis.url();
    Instance::says(0, &["doctor"], &env, "Redis keeps nothing");
    // A Redis that keeps snapshots is told apart from one that keeps nothing: `doctor` says how old the last one is.
    let config = async |name: &str, value: &str| {
        let set = raw::command("CONFIG", &["SET", name, value]);
        set.exec_async(&mut redis.conn().await).await.unwrap();
    };
    config("save", "3600 1").await;
    Instance::says(
        0,
        &["doctor"],
        &env,
        "Redis keeps snapshots only; and has made none since its start",
    );
    raw::command("SAVE", &[])
        .exec_async(&mut redis.conn().await)
        .await
        .unwrap();
    Instance::says(
        0,
        &["doctor"],
        &env,
        "Redis keeps snapshots only; the last was made",
    );
    // Now Redis evicts keys, the master takes writes that no replica has, and the user may not publish that a lock was released.
    config("maxmemory-policy", "allkeys-lru").await;
    let replica = RedisServer::start_as(Role::ReplicaOf(redis.port())).await;
    in_sync(&redis, &replica).await;
    acl(&redis, "app", "~* resetchannels &cache:invalidate +@all").await;
    env[1].1 = format!("redis://app:secret@{}/", redis.address());
    let text = Instance::says(0, &["doctor"], &env, "maxmemory-policy is allkeys-lru");
    for says in [
        "use noeviction",
        "1 replicas, and the master takes writes when it has lost them",
        "the user may not publish on the locks' channels",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    config("maxmemory-policy", "noeviction").await;
    config("min-replicas-to-write", "1").await;
    let text = Instance::says(0, &["doctor"], &env, "ready to serve");
    for problem in ["maxmemory-policy", "replicas, and"] {
        assert!(!text.contains(problem), "{problem}: {text}");
    }
    redis.kill();
    let empty = TestDatabase::empty().await;
    env[0].1 = empty.url().expose_secret().to_owned();
    let text = Instance::says(1, &["doctor"], &env, "migration steps are missing");
    assert!(text.contains("cannot connect to Redis"), "{text}");
}

#[tokio::test]
async fn doctor_says_what_is_wrong_with_the_database_server() {
    if is_oceanbase() {
        // It does not limit connections, and a test cannot change its clock.
        return;
    }
    let stack = Stack::start(0, &[]).await;
    // The server must have room for all the connections that an instance may open.
    let mut env = stack.env();
    env.push(("DATABASE_CONNECTIONS", "1000".to_owned()));
    env.push(("READ_CONNECTIONS", "995".to_owned()));
    Instance::says(
        0,
        &["doctor"],
        &env,
        "max_connections=3000 has room for 1 instances of 2000 connections each",
    );
    let text = {
        let limited_server = server(&["--max-connections=60", "--max-user-connections=40"])
            .await
            .expect("a server");
        let mut env = stack.env();
        env[0].1 = limited_server.url();
        Instance::says(0, &["migrate"], &env, "");
        assert_sessions_have_settings_of_their_own(&limited_server).await;
        assert_another_clock_is_named(&limited_server, &env).await;
        Instance::says(1, &["doctor"], &env, "max_user_connections=40")
    };
    for says in [
        "one instance may open 45",
        "--database-connections 32",
        "--read-connections 8",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    assert!(!text.contains("ready to serve"), "{text}");
}

#[tokio::test]
async fn a_start_that_cannot_succeed_says_why_and_one_that_may_waits() {
    let stack = Stack::start(0, &[]).await;
    let env_with = |name: &'static str, value: &str| {
        let mut env = stack.env();
        env.retain(|(given, _)| *given != name);
        env.push(("BIND_ADDR", "127.0.0.1:0".to_owned()));
        env.push((name, value.to_owned()));
        env
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("its address").to_string();
    for (name, value, says) in [
        ("DATABASE_URL", "nonsense", "mysql://user:password@"),
        (
            "DATABASE_URL",
            "mysql://root:s3cret@127.0.0.1:1/x",
            "cannot connect to the database",
        ),
        ("REDIS_URL", "nonsense", "redis://127.0.0.1:6379/"),
        (
            "REDIS_URL",
            "redis://127.0.0.1:1/",
            "cannot connect to Redis",
        ),
        ("BIND_ADDR", &*taken, "is another program using it?"),
        ("ADMIN_TOKEN", "", "ADMIN_TOKEN has 0 characters"),
        ("ADMIN_TOKEN", "s3cret", "ADMIN_TOKEN has 6 characters"),
        ("REQUEST_TIMEOUT_MS", "10", "must be longer than a purchase"),
    ] {
        let text = Instance::says(1, &["serve"], &env_with(name, value), says);
        assert!(!text.contains("s3cret"), "a secret in the output: {text}");
    }
    Instance::says(2, &["serve"], &[], "--database-url");
    Instance::says(
        2,
        &["serve"],
        &env_with("REDIS_TIMEOUT_MS", "soon"),
        "milliseconds",
    );

    // A server that does not answer is waited for.
    stack.redis.pause();
    let waiting = Instance::launch(&[], &stack.env());
    waiting
        .wait_for_line("a server does not answer; trying again")
        .await;
    stack.redis.resume();
    waiting.wait_for_line("serving").await;
}

/// The last step of a start waits for Redis, as the first ones do.
#[tokio::test]
async fn a_start_waits_for_redis_until_it_has_joined_the_stream() {
    let stack = Stack::start(0, &[]).await;
    let proxy = &stack.proxies.redis;
    // What the script of the stream is asked for then.
    proxy.set(Mode::HoldRequests("tidy"));
    let mut env = stack.env();
    env.retain(|(name, _)| !["REDIS_URL", "REDIS_TIMEOUT_MS"].contains(name));
    env.push(("REDIS_URL", format!("redis://{}/", proxy.address)));
    let waiting = Instance::launch(&[], &env);
    waiting
        .wait_for_line("a server does not answer; trying again")
        .await;
    proxy.set(Mode::Forward);
    waiting.wait_for_line("serving").await;
}

#[tokio::test]
async fn seeding_is_idempotent_and_its_tokens_are_signed_in() {
    let stack = Stack::start(1, &[]).await;
    stack.database.run("DELETE FROM tb_shop").await;
    let file = std::env::temp_dir().join(format!("seckill-tokens-{}", std::process::id()));
    let path = file.display().to_string();
    for _ in 0..2 {
        let args = ["seed", "--tokens", "70", "--tokens-file", &path];
        Instance::says(0, &args, &stack.env(), "");
    }
    assert_eq!(
        stack.database.number("SELECT COUNT(*) FROM tb_shop").await,
        3
    );
    assert_eq!(
        stack
            .database
            .number("SELECT COUNT(*) FROM tb_seckill_voucher")
            .await,
        1
    );
    assert_eq!(
        stack.database.number("SELECT COUNT(*) FROM tb_user").await,
        70
    );
    let tokens = std::fs::read_to_string(&file).unwrap();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(mode & 0o777, 0o600, "only the owner may read tokens");
    let tokens: Vec<&str> = tokens.lines().collect();
    assert_eq!(tokens.len(), 70);
    for token in [tokens[0], tokens[69]] {
        get(stack.url(), "/user/me")
            .token(token)
            .send()
            .await
            .data();
    }
}

#[tokio::test]
async fn doctor_compares_the_time_zones_of_sessions_nodes_and_ids() {
    let stack = Stack::start(0, &[]).await;
    let offset = "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), \
                  CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', @@global.time_zone))";
    let hours = stack.database.number(offset).await / 3600;
    // First the server's own zone, then one that certainly is another.
    let doctor = |zone: &str, says: &str| {
        Instance::says(0, &["doctor", "--time-zone", zone], &stack.env(), says)
    };
    // The sign in the name of such a zone is turned round: Etc/GMT-8 is UTC+8.
    let same = -hours;
    let different = -(hours + 3);
    let text = doctor(&format!("Etc/GMT{same:+}"), "");
    assert!(!text.contains("a session that sets no time zone"), "{text}");
    doctor(
        &format!("Etc/GMT{different:+}"),
        "forceConnectionTimeZoneToSession=true",
    );

    insert_orders(&stack, 10, 8, 1).await;
    let text = doctor("Asia/Shanghai", "");
    assert!(
        !text.contains("have ids made"),
        "they were made in our zone: {text}"
    );
    // A JVM in UTC: its ids are eight hours behind.
    insert_orders(&stack, 20, 0, 2).await;
    let text = doctor(
        "Asia/Shanghai",
        "3 of the last 6 orders have ids made at +00:00",
    );
    assert!(text.contains("-Duser.timezone=Asia/Shanghai"), "{text}");
}
