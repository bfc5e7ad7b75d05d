//! The binary's command line: failed starts say why and what to do, and the other subcommands do what they say.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use secrecy::ExposeSecret;

use crate::support::api::get;
use crate::support::database::TestDatabase;
use crate::support::instance::Instance;
use crate::support::stack::Stack;
use testkit::redis_server::RedisServer;

fn run(args: &[&str], env: &[(&str, String)]) -> (Option<i32>, String) {
    let mut command = Instance::command(args);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    let Output { status, stdout, stderr } = command.output().expect("run seckill");
    let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (status.code(), text)
}

#[tokio::test]
async fn a_start_that_fails_and_doctor_say_why_and_what_to_do() {
    let stack = Stack::start(0, &[]).await;
    // `doctor` passes a healthy stack, and names problems.
    let (code, text) = run(&["doctor"], &stack.env());
    assert_eq!(code, Some(0), "{text}");
    for line in
        ["its version, tables and rights are those", "the user has the rights", "ready to serve"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let mut redis = RedisServer::start().await;
    let mut env = stack.env();
    env[1].1 = redis.url();
    let (code, text) = run(&["doctor"], &env);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("the append-only file is off"), "{text}");
    redis.kill();
    let empty = TestDatabase::empty().await;
    env[0].1 = empty.url().expose_secret().to_owned();
    let (code, text) = run(&["doctor"], &env);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("migration steps are missing"), "{text}");
    assert!(text.contains("cannot connect to Redis"), "{text}");

    let with = |name: &'static str, value: &str| {
        let mut env = stack.env();
        env.retain(|(given, _)| *given != name);
        env.push(("BIND_ADDR", "127.0.0.1:0".to_owned()));
        env.push((name, value.to_owned()));
        env
    };
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = other.local_addr().expect("its address").to_string();
    for (name, value, says) in [
        ("DATABASE_URL", "nonsense", "mysql://user:password@"),
        ("DATABASE_URL", "mysql://root:s3cret@127.0.0.1:1/x", "cannot connect to the database"),
        ("REDIS_URL", "nonsense", "redis://127.0.0.1:6379/"),
        ("REDIS_URL", "redis://127.0.0.1:1/", "cannot connect to Redis"),
        ("BIND_ADDR", &*taken, "is another program using it?"),
        ("ADMIN_TOKEN", "", "ADMIN_TOKEN has 0 characters"),
        ("ADMIN_TOKEN", "s3cret", "ADMIN_TOKEN has 6 characters"),
    ] {
        let (code, text) = run(&["serve"], &with(name, value));
        assert_eq!(code, Some(1), "{name}={value}: {text}");
        assert!(text.contains(says), "{name}={value}: {text}");
        assert!(!text.contains("s3cret"), "a secret in the output: {text}");
    }
    let (code, text) = run(&["serve"], &with("DATABASE_URL", empty.url().expose_secret()));
    assert_eq!(code, Some(1));
    assert!(text.contains("run `seckill migrate` first"), "{text}");

    let (code, text) = run(&["serve"], &[]);
    assert_eq!(code, Some(2));
    assert!(text.contains("--database-url"), "{text}");
    let (code, text) = run(&["serve", "--redis-timeout-ms", "soon"], &stack.env());
    assert_eq!(code, Some(2));
    assert!(text.contains("milliseconds"), "{text}");
    let (code, text) = run(&["serve", "--request-timeout-ms", "10"], &stack.env());
    assert_eq!(code, Some(1));
    assert!(text.contains("must be longer than a purchase"), "{text}");
}

#[tokio::test]
async fn a_start_waits_for_a_server_that_does_not_answer() {
    let stack = Stack::start(0, &[]).await;
    stack.redis.pause();
    let mut command = Instance::command(&["serve", "--bind", "127.0.0.1:0"]);
    command.envs(stack.env()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("start seckill");
    let log = BufReader::new(child.stderr.take().expect("its standard error"));
    let mut log = log.lines().map_while(Result::ok);
    // The log ends where it gives up.
    let retries = log.any(|line| line.contains("a server does not answer; trying again"));
    stack.redis.resume();
    let serves = log.any(|line| line.contains("serving"));
    child.kill().expect("kill it");
    child.wait().expect("wait for it");
    assert_eq!((retries, serves), (true, true));
}

#[tokio::test]
async fn seed_is_idempotent_and_its_tokens_are_signed_in() {
    let stack = Stack::start(1, &[]).await;
    stack.database.run("DELETE FROM tb_shop").await;
    let file = std::env::temp_dir().join(format!("seckill-tokens-{}", std::process::id()));
    let path = file.display().to_string();
    for _ in 0..2 {
        let args = ["seed", "--tokens", "70", "--tokens-file", &path];
        let (code, text) = run(&args, &stack.env());
        assert_eq!(code, Some(0), "{text}");
    }
    assert_eq!(stack.database.number("SELECT COUNT(*) FROM tb_shop").await, 3);
    assert_eq!(stack.database.number("SELECT COUNT(*) FROM tb_seckill_voucher").await, 1);
    assert_eq!(stack.database.number("SELECT COUNT(*) FROM tb_user").await, 70);
    let tokens = std::fs::read_to_string(&file).unwrap();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(mode & 0o777, 0o600, "only the owner may read tokens");
    let tokens: Vec<&str> = tokens.lines().collect();
    assert_eq!(tokens.len(), 70);
    for token in [tokens[0], tokens[69]] {
        get(stack.url(), "/user/me").token(token).send().await.data();
    }
}

#[test]
fn help_names_every_setting_with_its_unit() {
    let (code, text) = run(&["serve", "--help"], &[]);
    assert_eq!(code, Some(0));
    for word in ["DATABASE_URL", "REDIS_URL", "BIND_ADDR", "ADMIN_TOKEN", "milliseconds", "default"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}
