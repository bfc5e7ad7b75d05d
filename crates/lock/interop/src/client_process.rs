//! A client process: reads commands as lines on its standard input, and replies with lines on its
//! standard output (see README.md). Nothing here depends on locks.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// Time limit for a command that does not wait for a lock.
const REPLY_LIMIT: Duration = Duration::from_secs(15);

/// Time limit for a process to start: a Java machine on a busy one of ours takes its time.
const START_LIMIT: Duration = Duration::from_secs(60);

type Actors = Arc<Mutex<HashMap<String, UnboundedSender<Reply>>>>;

/// One answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// When the command was begun, in microseconds since 1970.
    pub begun: u64,
    /// When it was done.
    pub ended: u64,
    /// `ok`, `ok VALUE`, `no`, `unsupported` or `error TEXT`.
    pub answer: String,
}

/// The client does not have what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("this version of Redisson does not have it")]
pub struct Unsupported;

/// A running client process.
pub struct ClientProcess {
    child: Child,
    input: UnboundedSender<String>,
    actors: Actors,
}

/// An owner of locks in a client process. Its commands run one after the other, and independently of
/// those of other actors.
pub struct Actor {
    name: String,
    input: UnboundedSender<String>,
    replies: UnboundedReceiver<Reply>,
}

impl ClientProcess {
    /// Starts a process and waits until it is ready. Its standard error goes to `log`.
    pub async fn start(mut command: Command, log: std::fs::File) -> anyhow::Result<Self> {
        let what = format!("{command:?}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot run {what}"))?;
        let stdin = child.stdin.take().context("no standard input")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let actors = Actors::default();
        let (input, lines) = unbounded_channel();
        let (sender, replies) = unbounded_channel();
        register(&actors, "client", sender);
        // Both end with the process.
        tokio::spawn(write(stdin, lines));
        tokio::spawn(read(BufReader::new(stdout).lines(), actors.clone()));
        let peer = Self { child, input: input.clone(), actors };
        let mut client = Actor { name: "client".to_owned(), input, replies };
        client.reply(START_LIMIT).await.with_context(|| format!("{what} did not start"))?.ok()?;
        Ok(peer)
    }

    /// A new actor.
    pub fn actor(&self) -> Actor {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("actor{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let (sender, replies) = unbounded_channel();
        register(&self.actors, &name, sender);
        Actor { name, input: self.input.clone(), replies }
    }

    /// Ends the process at once (SIGKILL) and waits until it is gone.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill a client process")
    }
}

impl Actor {
    /// Sends a command; its answer is read with [`reply`](Self::reply).
    pub fn send(&self, command: &str) -> anyhow::Result<()> {
        self.input
            .send(format!("{} {command}\n", self.name))
            .context("the client process has ended")
    }

    /// The next answer, or an error if there is none within `limit`.
    pub async fn reply(&mut self, limit: Duration) -> anyhow::Result<Reply> {
        match timeout(limit, self.replies.recv()).await {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => bail!("the client process has ended"),
            Err(_) => bail!("no answer within {} ms", limit.as_millis()),
        }
    }

    /// Sends a command that does not wait for a lock, and returns the answer.
    pub async fn ask(&mut self, command: &str) -> anyhow::Result<Reply> {
        self.send(command)?;
        self.reply(REPLY_LIMIT).await.with_context(|| command.to_owned())
    }

    /// The same; expects `ok` and returns the text after it.
    pub async fn get(&mut self, command: &str) -> anyhow::Result<String> {
        Ok(self.ask(command).await?.ok().with_context(|| command.to_owned())?.to_owned())
    }

    /// Expects that no answer arrives within `time`: that the command still waits.
    pub async fn waits(&mut self, time: Duration) -> anyhow::Result<()> {
        match timeout(time, self.replies.recv()).await {
            Err(_) => Ok(()),
            Ok(Some(reply)) => bail!("did not wait, but answered '{}'", reply.answer),
            Ok(None) => bail!("the client process has ended"),
        }
    }
}

impl Reply {
    /// The text after `ok`; any other answer is an error.
    pub fn ok(&self) -> anyhow::Result<&str> {
        self.supported()?;
        let value = self.answer.strip_prefix("ok").map(str::trim);
        value.with_context(|| format!("it answered '{}'", self.answer))
    }

    /// Expects the answer of an attempt that found the lock held.
    pub fn no(&self) -> anyhow::Result<()> {
        self.supported()?;
        ensure!(self.answer == "no", "expected 'no', it answered '{}'", self.answer);
        Ok(())
    }

    fn supported(&self) -> anyhow::Result<()> {
        if self.answer == "unsupported" { Err(Unsupported.into()) } else { Ok(()) }
    }

    /// Expects a failure.
    pub fn error(&self) -> anyhow::Result<()> {
        ensure!(self.answer.starts_with("error"), "expected an error, not '{}'", self.answer);
        Ok(())
    }
}

fn register(actors: &Actors, name: &str, sender: UnboundedSender<Reply>) {
    let mut actors = actors.lock().unwrap_or_else(PoisonError::into_inner);
    // Removes the actors of scenarios that have ended.
    actors.retain(|_, sender| !sender.is_closed());
    actors.insert(name.to_owned(), sender);
}

async fn write(mut stdin: ChildStdin, mut lines: UnboundedReceiver<String>) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return; // the process has ended, which its actors learn from its output
        }
    }
}

async fn read(mut lines: Lines<BufReader<ChildStdout>>, actors: Actors) {
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((actor, reply)) = parse(&line) else {
            eprintln!("unexpected output: {line}");
            continue;
        };
        let actors = actors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = actors.get(actor)
            && sender.send(reply).is_err()
        {
            // Its scenario has ended without waiting for the answer.
            continue;
        }
    }
    actors.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn parse(line: &str) -> Option<(&str, Reply)> {
    let mut words = line.splitn(4, ' ');
    let actor = words.next()?;
    let (begun, ended) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((actor, Reply { begun, ended, answer: words.next()?.to_owned() }))
}
