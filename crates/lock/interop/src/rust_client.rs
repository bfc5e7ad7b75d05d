//! The Rust client process: runs the commands from its standard input with this repository's locks, in
//! the protocol of README.md. It can be started with a fault, to test that the scenarios detect it.

mod fault;
mod held;
mod semaphores;

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use futures_util::future::FutureExt;
use lock::kind::LockKind;
use lock::{Guard, Lock, LockConfig, Locks, Owner};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

pub use fault::Fault;
use held::Held;

/// The kinds of lock that this library has.
const KINDS: [&str; 8] =
    ["reentrant", "fair", "read", "write", "fenced", "multi", "semaphore", "leased"];

/// Runs commands until the standard input ends.
pub async fn run(url: &str, watchdog: Duration, fault: Option<Fault>) -> anyhow::Result<()> {
    let begun = micros();
    let client = redis::Client::open(url)?;
    let config = LockConfig::default()
        .with_lease(watchdog)
        .with_client_tracking(fault != Some(Fault::HearsNoLoss));
    let locks = Locks::connect(client.clone(), config).await?;
    let redis = client.get_multiplexed_async_connection().await?;
    reply("client", begun, "ok");

    let mut actors: HashMap<String, UnboundedSender<Vec<String>>> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let Some(name) = words.first().cloned() else { continue };
        let actor = actors.entry(name).or_insert_with_key(|name| {
            let (sender, commands) = unbounded_channel();
            let (owner, held) = (locks.owner(), HashMap::new());
            let (name, locks, client) = (name.clone(), locks.clone(), client.clone());
            let redis = redis.clone();
            let actor = Actor { name, owner, held, locks, client, redis, watchdog, fault };
            tasks.spawn(actor.act(commands));
            sender
        });
        actor.send(words).context("an actor has ended")?;
    }
    // At once, as in a crash: nothing is released.
    std::process::exit(0);
}

struct Actor {
    name: String,
    owner: Owner,
    /// Its holds, by kind and name.
    held: HashMap<String, Vec<Held>>,
    locks: Locks,
    client: redis::Client,
    redis: MultiplexedConnection,
    watchdog: Duration,
    fault: Option<Fault>,
}

/// A command of the protocol.
#[derive(Clone, Copy)]
struct Command<'a> {
    verb: &'a str,
    kind: &'a str,
    name: &'a str,
    more: &'a [&'a str],
}

impl Command<'_> {
    /// The key of holds: an actor may hold both the read lock and the write lock of a name.
    fn hold(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    fn unknown(&self) -> anyhow::Result<String> {
        anyhow::bail!("there is no command '{}', or not with these arguments", self.verb)
    }
}

impl Actor {
    async fn act(mut self, mut commands: UnboundedReceiver<Vec<String>>) {
        while let Some(words) = commands.recv().await {
            let begun = micros();
            let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
            let answer = match self.carry_out(&words).await {
                Ok(answer) => answer,
                Err(error) => format!("error {error:#}").replace('\n', " "),
            };
            reply(&self.name, begun, &answer);
        }
    }

    async fn carry_out(&mut self, words: &[&str]) -> anyhow::Result<String> {
        let &[verb, kind, name, ref more @ ..] = words else { anyhow::bail!("too few words") };
        let command = Command { verb, kind, name, more };
        match (verb, more) {
            ("supports", []) => {
                Ok(if KINDS.contains(&kind) { "ok" } else { "unsupported" }.to_owned())
            }
            ("unlock", _) => {
                self.release(command).await?;
                Ok("ok".to_owned())
            }
            ("count", [counter, times]) => {
                for _ in 0..times.parse()? {
                    self.on_kind(Command { verb: "lock", more: &[], ..command }).await?;
                    self.increment(counter).await?;
                    self.release(command).await?;
                }
                Ok("ok".to_owned())
            }
            _ => self.on_kind(command).await,
        }
    }

    async fn on_kind(&mut self, command: Command<'_>) -> anyhow::Result<String> {
        let (locks, name) = (self.locks.clone(), command.name);
        match command.kind {
            "fair" if self.fault != Some(Fault::IgnoresQueues) => {
                self.on_lock(locks.fair(name), |_| None, command).await
            }
            "reentrant" | "fair" => self.on_lock(locks.lock(name), |_| None, command).await,
            "read" => {
                let lock = locks.read_write(name).read().clone();
                self.on_lock(lock, |_| None, command).await
            }
            "write" => {
                let lock = locks.read_write(name).write().clone();
                self.on_lock(lock, |_| None, command).await
            }
            "fenced" => {
                let fence = |guard: &Guard<_>| Some(guard.fence());
                self.on_lock(locks.fenced(name), fence, command).await
            }
            "multi" => self.on_multi(command).await,
            "semaphore" => self.on_semaphore(command).await,
            "leased" => self.on_leased(command).await,
            _ => Ok("unsupported".to_owned()),
        }
    }

    async fn on_multi(&mut self, command: Command<'_>) -> anyhow::Result<String> {
        let names = ["a", "b"].map(|part| format!("{}:{part}", command.name));
        let mut lock = self.locks.multi(names.iter().map(String::as_str));
        let guard = match (command.verb, command.more) {
            ("lock", more) => {
                if let [lease] = more {
                    lock = lock.without_renewal(millis(lease)?);
                }
                Some(lock.acquire_as(&self.owner).await?)
            }
            ("try", [wait]) => lock.acquire_within_as(&self.owner, millis(wait)?).await?,
            _ => return command.unknown(),
        };
        let hold = guard.map(|guard| Held::releasing(|| guard.release().boxed()));
        Ok(self.hold(command, hold))
    }

    async fn on_lock<K: LockKind>(
        &mut self,
        mut lock: Lock<K>,
        fence: fn(&Guard<K>) -> Option<u64>,
        command: Command<'_>,
    ) -> anyhow::Result<String> {
        let hold = |guard: Guard<K>| {
            let (fence, lost) = (fence(&guard), Some(guard.lost().boxed()));
            Held { fence, lost, ..Held::releasing(|| guard.release().boxed()) }
        };
        Ok(match (command.verb, command.more) {
            ("lock", more) => {
                if let [lease] = more {
                    lock = lock.without_renewal(millis(lease)?);
                }
                if self.fault == Some(Fault::NeverLocks) {
                    return Ok("ok".to_owned());
                }
                let guard = self.acquire(lock).await?;
                self.hold(command, Some(hold(guard)))
            }
            ("try", [wait]) => {
                let guard = lock.acquire_within_as(&self.owner, millis(wait)?).await?;
                self.hold(command, guard.map(hold))
            }
            ("depth", []) => format!("ok {}", lock.hold_count(&self.owner).await?),
            ("locked", []) => format!("ok {}", lock.is_locked().await?),
            ("remaining", []) => match lock.remaining().await? {
                Some(left) => format!("ok {}", left.as_millis()),
                None => "ok -2".to_owned(),
            },
            ("force", []) => format!("ok {}", lock.force_unlock().await?),
            ("fence", []) => {
                let fence = self.last(command).and_then(|held| held.fence);
                format!("ok {}", fence.context("nothing with a fence is held")?)
            }
            ("lost", []) => {
                let lost = self.last(command).and_then(|held| held.lost.take());
                format!("ok {}", lost.context("nothing that can be lost is held")?.await)
            }
            _ => return command.unknown(),
        })
    }

    async fn acquire<K: LockKind>(&mut self, lock: Lock<K>) -> anyhow::Result<Guard<K>> {
        Ok(match self.fault {
            Some(Fault::NeverRenews) => {
                lock.without_renewal(self.watchdog).acquire_as(&self.owner).await?
            }
            Some(Fault::IgnoresMessages) => {
                // It subscribes, as the scenarios wait for that, and ignores the messages.
                let mut pubsub = self.client.get_async_pubsub().await?;
                pubsub.subscribe(format!("redisson_lock__channel:{{{}}}", lock.name())).await?;
                wait_for_lease_end(&lock, &self.owner).await?
            }
            _ => lock.acquire_as(&self.owner).await?,
        })
    }

    async fn release(&mut self, command: Command<'_>) -> anyhow::Result<()> {
        let last = self.held.get_mut(&command.hold()).and_then(Vec::pop);
        let last = match (last, self.fault) {
            (Some(held), _) => held,
            (None, Some(Fault::NeverLocks)) => return Ok(()),
            (None, _) => anyhow::bail!("not held by this actor"),
        };
        if matches!(self.fault, Some(Fault::PublishesNothing | Fault::ReleasesAllHolds)) {
            self.redis.del::<_, ()>(command.name).await?;
            // The release finds no hold, and publishes nothing.
            return match last.release().await {
                Ok(()) => Err(anyhow::anyhow!("released what was deleted")),
                Err(_) => Ok(()),
            };
        }
        Ok(last.release().await?)
    }

    /// The answer to the command.
    fn hold(&mut self, command: Command<'_>, hold: Option<Held>) -> String {
        let acquired = hold.is_some();
        self.held.entry(command.hold()).or_default().extend(hold);
        yes_or_no(acquired)
    }

    /// Its latest hold of what the command names.
    fn last(&mut self, command: Command<'_>) -> Option<&mut Held> {
        self.held.get_mut(&command.hold())?.last_mut()
    }

    /// Loses updates if the lock does not exclude.
    async fn increment(&mut self, counter: &str) -> anyhow::Result<()> {
        let value: Option<u64> = self.redis.get(counter).await?;
        Ok(self.redis.set(counter, value.unwrap_or(0) + 1).await?)
    }
}

async fn wait_for_lease_end<K: LockKind>(
    lock: &Lock<K>,
    owner: &Owner,
) -> anyhow::Result<Guard<K>> {
    loop {
        if let Some(guard) = lock.try_acquire_as(owner).await? {
            return Ok(guard);
        }
        tokio::time::sleep(lock.remaining().await?.unwrap_or_default()).await;
    }
}

fn yes_or_no(yes: bool) -> String {
    if yes { "ok".to_owned() } else { "no".to_owned() }
}

fn millis(text: &str) -> anyhow::Result<Duration> {
    Ok(Duration::from_millis(text.parse()?))
}

fn reply(actor: &str, begun: u64, answer: &str) {
    let line = format!("{actor} {begun} {} {answer}\n", micros());
    let mut output = std::io::stdout().lock();
    if output.write_all(line.as_bytes()).and_then(|()| output.flush()).is_err() {
        // The orchestrator has ended.
        std::process::exit(1);
    }
}

fn micros() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
