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
        let [command, kind, name, more @ ..] = words else { anyhow::bail!("too few words") };
        let locks = self.locks.clone();
        match *kind {
            "reentrant" => self.act_on(locks.lock(name), |_| None, command, words, more).await,
            "fair" if self.fault == Some(Fault::IgnoresQueues) => {
                self.act_on(locks.lock(name), |_| None, command, words, more).await
            }
            "fair" => self.act_on(locks.fair(name), |_| None, command, words, more).await,
            "read" => {
                let lock = locks.read_write(name).read().clone();
                self.act_on(lock, |_| None, command, words, more).await
            }
            "write" => {
                let lock = locks.read_write(name).write().clone();
                self.act_on(lock, |_| None, command, words, more).await
            }
            "fenced" => {
                let fence = |guard: &Guard<_>| Some(guard.fence());
                self.act_on(locks.fenced(name), fence, command, words, more).await
            }
            "multi" => self.on_multi(command, name, more).await,
            "semaphore" => self.on_semaphore(command, name, more).await,
            "leased" => self.on_leased(command, name, more).await,
            _ => Ok("unsupported".to_owned()),
        }
    }

    async fn on_multi(
        &mut self,
        command: &str,
        name: &str,
        more: &[&str],
    ) -> anyhow::Result<String> {
        let names = [format!("{name}:a"), format!("{name}:b")];
        let mut lock = self.locks.multi(names.iter().map(String::as_str));
        let held = format!("multi {name}");
        Ok(match (command, more) {
            ("supports", []) => "ok".to_owned(),
            ("lock", more) => {
                if let [lease] = more {
                    lock = lock.without_renewal(millis(lease)?);
                }
                let guard = lock.acquire_as(&self.owner).await?;
                self.hold(held, Held::releasing(|| guard.release().boxed()));
                "ok".to_owned()
            }
            ("try", [wait]) => match lock.acquire_within_as(&self.owner, millis(wait)?).await? {
                Some(guard) => {
                    self.hold(held, Held::releasing(|| guard.release().boxed()));
                    yes_or_no(true)
                }
                None => yes_or_no(false),
            },
            ("unlock", []) => self.unlock(name, &held).await?,
            ("count", [counter, times]) => {
                for _ in 0..times.parse()? {
                    let guard = lock.acquire_as(&self.owner).await?;
                    self.increment(counter).await?;
                    guard.release().await?;
                }
                "ok".to_owned()
            }
            _ => return unknown(command),
        })
    }

    async fn act_on<K: LockKind>(
        &mut self,
        mut lock: Lock<K>,
        fence: fn(&Guard<K>) -> Option<u64>,
        command: &str,
        words: &[&str],
        more: &[&str],
    ) -> anyhow::Result<String> {
        // An actor may hold both the read lock and the write lock of a name.
        let held = words[1..3].join(" ");
        let name = words[2];
        Ok(match (command, more) {
            ("supports", []) => "ok".to_owned(),
            ("lock", more) => {
                if let [lease] = more {
                    lock = lock.without_renewal(millis(lease)?);
                }
                let guard = self.lock(name, lock).await?;
                self.hold_guard(held, guard, fence);
                "ok".to_owned()
            }
            ("try", [wait]) => match lock.acquire_within_as(&self.owner, millis(wait)?).await? {
                Some(guard) => {
                    self.hold_guard(held, Some(guard), fence);
                    "ok".to_owned()
                }
                None => "no".to_owned(),
            },
            ("unlock", []) => self.unlock(name, &held).await?,
            ("depth", []) => format!("ok {}", lock.hold_count(&self.owner).await?),
            ("locked", []) => format!("ok {}", lock.is_locked().await?),
            ("remaining", []) => match lock.remaining().await? {
                Some(left) => format!("ok {}", left.as_millis()),
                None => "ok -2".to_owned(),
            },
            ("force", []) => format!("ok {}", lock.force_unlock().await?),
            ("fence", []) => {
                let last = self.held.get(&held).and_then(|held| held.last()?.fence);
                format!("ok {}", last.context("nothing with a fence is held")?)
            }
            ("lost", []) => {
                let last = self.held.get_mut(&held).and_then(|held| held.last_mut()?.lost.take());
                format!("ok {}", last.context("nothing that can be lost is held")?.await)
            }
            ("count", [counter, times]) => {
                for _ in 0..times.parse()? {
                    let guard = self.lock(name, lock.clone()).await?;
                    self.hold_guard(held.clone(), guard, fence);
                    self.increment(counter).await?;
                    self.release(name, &held).await?;
                }
                "ok".to_owned()
            }
            _ => return unknown(command),
        })
    }

    /// `None` with [`Fault::NeverLocks`].
    async fn lock<K: LockKind>(
        &mut self,
        name: &str,
        lock: Lock<K>,
    ) -> anyhow::Result<Option<Guard<K>>> {
        Ok(Some(match self.fault {
            Some(Fault::NeverLocks) => return Ok(None),
            Some(Fault::NeverRenews) => {
                lock.without_renewal(self.watchdog).acquire_as(&self.owner).await?
            }
            Some(Fault::IgnoresMessages) => {
                // It subscribes, as the scenarios wait for that, and ignores the messages.
                let mut pubsub = self.client.get_async_pubsub().await?;
                pubsub.subscribe(format!("redisson_lock__channel:{{{name}}}")).await?;
                wait_for_lease_end(&lock, &self.owner).await?
            }
            _ => lock.acquire_as(&self.owner).await?,
        }))
    }

    /// The answer to the command.
    async fn unlock(&mut self, name: &str, held: &str) -> anyhow::Result<String> {
        self.release(name, held).await?;
        Ok("ok".to_owned())
    }

    async fn release(&mut self, name: &str, held: &str) -> anyhow::Result<()> {
        let last = match (self.held.get_mut(held).and_then(Vec::pop), self.fault) {
            (Some(held), _) => held,
            (None, Some(Fault::NeverLocks)) => return Ok(()),
            (None, _) => anyhow::bail!("not held by this actor"),
        };
        if matches!(self.fault, Some(Fault::PublishesNothing | Fault::ReleasesAllHolds)) {
            self.redis.del::<_, ()>(name).await?;
            // The release finds no hold, and publishes nothing.
            return match last.release().await {
                Ok(()) => Err(anyhow::anyhow!("released what was deleted")),
                Err(_) => Ok(()),
            };
        }
        Ok(last.release().await?)
    }

    fn hold_guard<K: LockKind>(
        &mut self,
        held: String,
        guard: Option<Guard<K>>,
        fence: fn(&Guard<K>) -> Option<u64>,
    ) {
        let Some(guard) = guard else { return };
        let (fence, lost) = (fence(&guard), Some(guard.lost().boxed()));
        let hold = Held { fence, lost, ..Held::releasing(|| guard.release().boxed()) };
        self.hold(held, hold);
    }

    fn hold(&mut self, held: String, hold: Held) {
        self.held.entry(held).or_default().push(hold);
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

fn unknown(command: &str) -> anyhow::Result<String> {
    anyhow::bail!("there is no command '{command}', or not with these arguments")
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
