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
    refused(&["judge"], &[], "--targets");
    let judged = ["judge", "--targets", "http://127.0.0.1:1"];
    refused(&judged, &[], "--database-url");
    // The address is taken, so that a lab which did not ask for a token would fail as well, and not serve for ever.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = format!("--bind={}", taken.local_addr().expect("its address"));
    refused(&["lab", &taken], &[], "set ADMIN_TOKEN");
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
    refused(&["burst", "--buyer", "3"], &[], "'--buyers'");
    refused(&["cache", "stampeed"], &[], "'stampede'");
    for command in ["burst", "publish"] {
        refused(
            &[command, "--strategy", "reentrant"],
            &[],
            "'reentrant-lock'",
        );
    }
    for scenario in ["stampede", "penetration", "avalanche", "updates", "read"] {
        refused(&["cache", scenario], &[], "set DATABASE_URL");
        let nodes = [("NODES", "https://127.0.0.1")];
        refused(&["cache", scenario], &nodes, "http://127.0.0.1:8080");
    }
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
fn bash_completes_commands_flags_and_strategies() {
    let script = r#"
        source <("$0" completions bash)
        complete_words() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _loadtest loadtest "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            echo "${COMPREPLY[@]}"
        }
        complete_words loadtest comp
        complete_words loadtest cache stam
        complete_words loadtest burst --buy
        complete_words loadtest burst --strategy unit
    "#;
    let output = Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_loadtest")])
        .output()
        .expect("bash starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr, "");
    let completed = String::from_utf8_lossy(&output.stdout);
    let completed: Vec<_> = completed.lines().collect();
    assert_eq!(
        completed,
        ["compare completions", "stampede", "--buyers", "unit-rows"]
    );
    for shell in ["zsh", "fish"] {
        let output = loadtest(&["completions", shell], &[]);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("stampede"), "{shell}: {printed}");
    }
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
        &["judge", "--help"],
        &["publish", "--help"],
        &["cache", "stampede", "--help"],
        &["cache", "updates", "--help"],
        &["bench", "--help"],
        &["cache", "read"],
        &["burst", "--buyers", "1"],
        &["publish", "--targets", "http://127.0.0.1:1"],
        &["judge", "--targets", "http://127.0.0.1:1"],
    ] {
        let output = loadtest(args, &env);
        let all = [output.stdout, output.stderr].concat();
        let all = String::from_utf8_lossy(&all);
        // clap panics at a definition that contradicts itself.
        assert!(
            !all.contains("hidden-password") && !all.contains("panicked"),
            "{args:?}: {all}"
        );
    }
}

/// `./dev` has lists of its own, by which it refuses unknown flags before a build of minutes.
#[test]
fn dev_knows_the_flags_of_bench_chaos_and_rolling() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/tools.sh");
    let script = std::fs::read_to_string(script).expect("the script");
    for command in ["bench", "chaos", "rolling"] {
        let list = format!("{}_FLAGS=(", command.to_uppercase());
        let (_, after_list) = script.split_once(&list).expect(command);
        let (listed, _) = after_list.split_once(')').expect(command);
        let mut listed: Vec<_> = listed.split_whitespace().map(str::to_owned).collect();
        listed.sort_unstable();

        let help = loadtest(&[command, "--help"], &[]).stdout;
        let help = String::from_utf8(help).expect("text");
        let flags = help.lines().map(str::trim_start);
        let flags = flags.filter(|line| line.starts_with("--"));
        let mut flags: Vec<_> = flags.map(flag).collect();
        flags.sort_unstable();
        assert_eq!(listed, flags, "of {command}, in scripts/tools.sh");
    }
}

/// The flag that a line of help begins with, with a `=` where it takes a value.
fn flag(line: &str) -> String {
    let (name, value) = line.split_once(' ').unwrap_or((line, ""));
    let equals = if value.trim_start().starts_with('<') {
        "="
    } else {
        ""
    };
    format!("{name}{equals}")
}
