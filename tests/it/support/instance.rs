//! A process of the service: the real binary on a free port, its log kept for failures.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use testkit::wait::until;

use super::PATIENCE;

/// The log also has what is written at debug level: the sign-in codes, and each time that a server was not available.
const LOG: &str = "info,seckill::user::code=debug,seckill::error=debug";

const BINARY: &str = env!("CARGO_BIN_EXE_seckill");

/// A running instance; killed when dropped.
pub struct Instance {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    /// `http://127.0.0.1:<port>`
    pub url: String,
}

impl Instance {
    /// Starts `seckill serve` with these arguments and environment, and waits until it serves.
    pub async fn start(args: &[String], env: &[(&str, String)]) -> Self {
        let mut instance = Self::launch(args, env);
        let line = instance.wait_for_line("serving").await;
        // The line is text or JSON.
        let address = line
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|line_from_port| line_from_port.split([' ', '"']).next());
        let address = address.map(|port| format!("127.0.0.1:{port}"));
        instance.url = format!("http://{}", address.expect("an address in the log"));
        instance
    }

    /// As [`Instance::start`], without waiting: it has no address yet.
    pub fn launch(args: &[String], env: &[(&str, String)]) -> Self {
        let mut command = Self::clean_command(BINARY, &["serve", "--bind", "127.0.0.1:0"]);
        command
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)));
        let mut child = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("start seckill");
        let log = Arc::<Mutex<Vec<_>>>::default();
        let stderr = child.stderr.take().expect("its standard error");
        let lines = log.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            }
        });
        Instance {
            child,
            log,
            reader: Some(reader),
            url: String::new(),
        }
    }

    /// A command with an environment that is empty but for a few variables.
    fn clean_command(program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).env_clear().env("RUST_LOG", LOG);
        // A fault that somebody has planted to see whether the tests find it (CONTRIBUTING.md).
        if let Some(fault) = std::env::var_os("PLANTED") {
            command.env("PLANTED", fault);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs a subcommand until it ends by itself; returns its exit code and its output. If it takes more than two minutes it is
    /// ended, and the code is 124.
    pub fn run(args: &[&str], env: &[(&str, String)]) -> (Option<i32>, String) {
        let mut command = Self::clean_command("timeout", &[&["120", BINARY][..], args].concat());
        command.envs(env.iter().map(|(name, value)| (name, value)));
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().expect("run seckill");
        let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (status.code(), text.concat())
    }

    /// As [`Instance::run`], and asserts the exit code and that the output contains `says`; returns the output.
    pub fn says(code: i32, args: &[&str], env: &[(&str, String)], says: &str) -> String {
        let (found, text) = Self::run(args, env);
        assert_eq!(found, Some(code), "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: not `{says}` in\n{text}");
        text
    }

    /// Waits for a line of the log that contains `text`; returns the first.
    pub async fn wait_for_line(&self, text: &str) -> String {
        until(PATIENCE, async || !self.lines_with(text).is_empty()).await;
        let line = self.lines_with(text).into_iter().next();
        line.unwrap_or_else(|| panic!("no line with `{text}` in:\n{}", self.log().join("\n")))
    }

    /// The lines of the log so far that contain `text`.
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        self.log()
            .into_iter()
            .filter(|line| line.contains(text))
            .collect()
    }

    pub fn log(&self) -> Vec<String> {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("kill the instance");
        self.child.wait().expect("wait for the instance");
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("a signal");
    }

    /// Asks it to end, and waits until it has ended.
    pub async fn stop(&mut self) {
        self.terminate();
        self.ended().await;
    }

    pub fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("look at the instance")
            .is_none()
    }

    /// Waits until it has ended by itself, with success.
    pub async fn ended(&mut self) {
        self.ended_with(0).await;
    }

    /// Waits until it has ended by itself, with this exit code.
    pub async fn ended_with(&mut self, code: i32) {
        let has_ended = until(PATIENCE, async || !self.is_running()).await;
        assert!(has_ended, "did not end:\n{}", self.log().join("\n"));
        if let Some(reader) = self.reader.take() {
            reader.join().expect("read the log to its end");
        }
        let status = self.child.wait().expect("its status");
        let log = self.log().join("\n");
        assert_eq!(status.code(), Some(code), "{status}:\n{log}");
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("── log of {} ──\n{}", self.url, self.log().join("\n"));
        }
    }
}
