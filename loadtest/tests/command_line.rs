//! The binary's command line: exit code 2 and a way out for every error of usage or set-up, and no
//! secret in its output.

use std::process::{Command, Output};

/// Runs `loadtest` with nothing in its environment but `env`.
fn loadtest(args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args(args)
        .env_clear()
        .envs(env.iter().copied())
        .output()
        .expect("the binary starts")
}

#[track_caller]
fn refused(args: &[&str], env: &[(&str, &str)], way_out: &str) {
    let output = loadtest(args, env);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(
        stderr.contains(way_out),
        "{args:?}: no {way_out:?} in: {stderr}"
    );
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn an_error_of_usage_or_set_up_exits_2_and_names_the_way_out() {
    refused(&["burst"], &[], "set DATABASE_URL");
    refused(&["publish"], &[], "set ADMIN_TOKEN");
    refused(
        &["ladder", "--buyers", "10", "--stock", "4"],
        &[],
        "three times as many",
    );
    refused(
        &["burst", "--targets", "https://127.0.0.1"],
        &[],
        "http://127.0.0.1:8080",
    );
    refused(&["burst", "--buyers", "0"], &[], "--buyers");
    refused(
        &["burst", "--time-zone", "Mars/Olympus"],
        &[],
        "--time-zone",
    );
    refused(&["dance"], &[], "Usage");
    for scenario in ["stampede", "penetration", "avalanche", "updates", "read"] {
        refused(&["cache", scenario], &[], "set DATABASE_URL");
        let nodes = [("NODES", "https://127.0.0.1")];
        refused(&["cache", scenario], &nodes, "http://127.0.0.1:8080");
    }
    let unknown = ["cache", "stampede", "--read-strategies", "mutex,mutexes"];
    refused(&unknown, &[], "values: cache-aside, ");
    refused(&["cache", "read", "--rate", "0"], &[], "above 0");
    let closed = "http://127.0.0.1:1";
    refused(
        &["publish", "--targets", closed],
        &[("ADMIN_TOKEN", "x")],
        "./dev up",
    );
    let database = [("DATABASE_URL", "mysql://user:hidden-password@127.0.0.1:1/x")];
    refused(&["burst", "--buyers", "1"], &database, "./dev env");
}

#[test]
fn no_secret_is_printed() {
    let env = [
        ("DATABASE_URL", "mysql://user:hidden-password@127.0.0.1:1/x"),
        ("REDIS_URL", "redis://:hidden-password@127.0.0.1:1/"),
        ("ADMIN_TOKEN", "hidden-password"),
    ];
    for args in [
        ["burst", "--help"].as_slice(),
        &["ladder", "--help"],
        &["compare", "--help"],
        &["chaos", "--help"],
        &["rolling", "--help"],
        &["plan", "--help"],
        &["publish", "--help"],
        &["cache", "stampede", "--help"],
        &["cache", "updates", "--help"],
        &["bench", "--help"],
        &["cache", "read"],
        &["burst", "--buyers", "1"],
        &["publish", "--targets", "http://127.0.0.1:1"],
    ] {
        let output = loadtest(args, &env);
        let all = [output.stdout, output.stderr].concat();
        let all = String::from_utf8_lossy(&all);
        // As clap does at a definition that contradicts itself.
        assert!(
            !all.contains("hidden-password") && !all.contains("panicked"),
            "{args:?}: {all}"
        );
    }
}
