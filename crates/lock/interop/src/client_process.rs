//! A client process: reads commands as lines on its standard input, and replies with lines on its
//! standard output (see README.md).

use std::fmt::Display;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex, broadcast};
use tokio::time::timeout;

/// The lease that both watchdogs renew: short, so that leases end during a row; long enough for a busy machine.
pub const WATCHDOG: Duration = Duration::from_millis(1500);

/// Time limit for a wake-up by a message, on a busy machine.
pub const WAKEUP_LIMIT: Duration = Duration::from_secs(3);

/// A waiter that has not answered for this long counts as waiting.
pub const WATCH: Duration = Duration::from_millis(150);

/// Time limit for what does not wait for a lock. It is long because a JVM starts slowly on a busy machine.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// The language of a client process, and thereby its lock library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Redisson.
    Java,
    /// The lock package of this repository.
    Rust,
}

impl Language {
    /// The other language.
    pub fn counterpart(self) -> Self {
        match self {
            Self::Java => Self::Rust,
            Self::Rust => Self::Java,
        }
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub struct Reply {
    actor: String,
    /// When the command was begun, since 1970.
    pub begun: Duration,
    /// When it was done.
    pub ended: Duration,
    /// `ok`, `ok VALUE`, `no` or `error TEXT`. After [`Reply::ok`], only the text that follows `ok`.
    pub answer: String,
}

/// A row without a result: this Redisson does not have it, or fails it among Java processes alone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoResult(pub String);

/// A running client process.
pub struct ClientProcess {
    language: Language,
    child: Child,
    input: Arc<Mutex<ChildStdin>>,
    replies: broadcast::Receiver<Reply>,
}

/// An owner of locks in a client process. Its commands are about one lock, and run one after the other,
/// independently of those of other actors.
pub struct Actor {
    pub language: Language,
    name: String,
    kind: String,
    lock: String,
    input: Arc<Mutex<ChildStdin>>,
    replies: broadcast::Receiver<Reply>,
}

impl ClientProcess {
    /// Starts a process and waits until it is ready. Its standard error goes to `log`.
    pub async fn start(
        language: Language,
        mut command: Command,
        log: std::fs::File,
    ) -> anyhow::Result<Self> {
        let what = format!("{command:?}");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {what}"))?;
        let input = child.stdin.take().context("no standard input")?;
        let output = child.stdout.take().context("no standard output")?;
        // How many answers an actor may be behind: far more than a scenario has commands.
        let (sender, replies) = broadcast::channel(4096);
        let process = Self {
            language,
            child,
            input: Arc::new(Mutex::new(input)),
            replies,
        };
        let mut client = process.actor("", "");
        client.name = "client".to_owned();
        let mut lines = BufReader::new(output).lines();
        // Ends with the process.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                match Reply::parse(&line) {
                    // Without actors there is nobody to read it.
                    Some(reply) => drop(sender.send(reply)),
                    None => eprintln!("unexpected output: {line}"),
                }
            }
        });
        client
            .reply(REPLY_LIMIT)
            .await
            .with_context(|| format!("{what} did not start"))?
            .ok()?;
        Ok(process)
    }

    /// A new actor, for the lock of this kind and name.
    pub fn actor(&self, kind: &str, lock: &str) -> Actor {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let language = self.language;
        Actor {
            language,
            name: format!("{language:?}{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            kind: kind.to_owned(),
            lock: lock.to_owned(),
            input: self.input.clone(),
            replies: self.replies.resubscribe(),
        }
    }

    /// Ends the process at once (SIGKILL) and waits until it is gone.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.child
            .kill()
            .await
            .context("cannot kill a client process")
    }
}

impl Actor {
    /// The same owner, whose commands are from now on about this kind of lock.
    pub fn use_kind(&mut self, kind: &str) -> &mut Self {
        kind.clone_into(&mut self.kind);
        self
    }

    /// Sends a command, such as `unlock` or `lock 500`; its answer is read with [`reply`](Self::reply).
    pub async fn send(&self, command: &str) -> anyhow::Result<()> {
        let (verb, arguments) = command.split_once(' ').unwrap_or((command, ""));
        let line = format!(
            "{} {verb} {} {} {arguments}\n",
            self.name, self.kind, self.lock
        );
        let sent = self.input.lock().await.write_all(line.as_bytes()).await;
        sent.with_context(|| format!("{} has ended", self.name))
    }

    /// The next answer, or an error if there is none within `limit`.
    pub async fn reply(&mut self, limit: Duration) -> anyhow::Result<Reply> {
        match timeout(limit, self.next()).await {
            Ok(reply) => reply,
            Err(_) => bail!("{}: no answer within {} ms", self.name, limit.as_millis()),
        }
    }

    async fn next(&mut self) -> anyhow::Result<Reply> {
        loop {
            let reply = self.replies.recv().await;
            let reply = reply.with_context(|| format!("{} has ended", self.name))?;
            if reply.actor == self.name {
                let text = "this version of Redisson does not have it";
                ensure!(reply.answer != "unsupported", NoResult(text.to_owned()));
                return Ok(reply);
            }
        }
    }

    /// Sends a command that does not wait for a lock, and returns the answer.
    async fn ask(&mut self, command: &str) -> anyhow::Result<Reply> {
        self.send(command).await?;
        self.reply(REPLY_LIMIT)
            .await
            .with_context(|| command.to_owned())
    }

    /// Sends a command that does not wait for a lock, and expects `ok`.
    pub async fn get(&mut self, command: &str) -> anyhow::Result<Reply> {
        self.ask(command)
            .await?
            .ok()
            .with_context(|| command.to_owned())
    }

    /// Sends a query, and expects `ok` with this text.
    pub async fn shows(&mut self, query: &str, expected: impl Display) -> anyhow::Result<()> {
        let shown = self.get(query).await?.answer;
        let expected = expected.to_string();
        ensure!(
            shown == expected,
            "{}: {query} is {shown}, not {expected}",
            self.name
        );
        Ok(())
    }

    /// Sends an attempt, which must find the lock held.
    pub async fn refused(&mut self, command: &str) -> anyhow::Result<()> {
        self.ask(command)
            .await?
            .no()
            .with_context(|| command.to_owned())
    }

    /// Sends a command that must fail.
    pub async fn fails(&mut self, command: &str) -> anyhow::Result<()> {
        let Reply { actor, answer, .. } = self.ask(command).await?;
        ensure!(
            answer.starts_with("error"),
            "{command}: {actor} answered '{answer}'"
        );
        Ok(())
    }

    /// Expects that no answer arrives within `time`: that the command still waits.
    pub async fn waits(&mut self, time: Duration) -> anyhow::Result<()> {
        match timeout(time, self.next()).await {
            Err(_) => Ok(()),
            Ok(reply) => bail!("did not wait: {:?}", reply?),
        }
    }

    /// Sends a command that waits.
    pub async fn begins(&mut self, command: &str) -> anyhow::Result<()> {
        self.send(command).await?;
        self.waits(WATCH).await.with_context(|| command.to_owned())
    }

    /// Expects that a command which waited succeeds now.
    pub async fn wakes(&mut self) -> anyhow::Result<Reply> {
        self.reply(WAKEUP_LIMIT).await.context("not woken")?.ok()
    }
}

impl Reply {
    /// Leaves the text after `ok`; any other answer is an error.
    pub fn ok(mut self) -> anyhow::Result<Self> {
        let value = self
            .answer
            .strip_prefix("ok")
            .map(|value| value.trim().to_owned());
        self.answer =
            value.with_context(|| format!("{} answered '{}'", self.actor, self.answer))?;
        Ok(self)
    }

    /// Expects the answer of an attempt that found the lock held.
    pub fn no(&self) -> anyhow::Result<()> {
        ensure!(
            self.answer == "no",
            "{} answered '{}', not 'no'",
            self.actor,
            self.answer
        );
        Ok(())
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let mut next = || words.next();
        let micros = |text: &str| text.parse().ok().map(Duration::from_micros);
        Some(Self {
            actor: next()?.to_owned(),
            begun: micros(next()?)?,
            ended: micros(next()?)?,
            answer: next()?.to_owned(),
        })
    }
}
