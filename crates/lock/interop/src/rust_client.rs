//! The Rust client process: runs the commands from its standard input with this repository's locks, in
//! the protocol of README.md. It can be started with a fault, to test that the scenarios detect it.

use std::any::Any;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use futures_util::future::{BoxFuture, FutureExt};
use lock::kind::{Fenced, LockKind};
use lock::{Guard, Lock, LockConfig, Locks, LostReason, Owner};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::client_process::WATCHDOG;

/// A fault of this client, to test that a scenario detects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "verbatim")]
pub enum Fault {
    /// It ignores release messages: a waiter tries again only when the holder's lease ends.
    IgnoresMessages,
    /// It releases without publishing a message.
    PublishesNothing,
    /// It does not lock at all.
    NeverLocks,
    /// It has no watchdog.
    NeverRenews,
    /// Its first release of a hold count above one frees the lock.
    ReleasesAllHolds,
    /// Its fair locks do not queue.
    IgnoresQueues,
}

/// Runs commands until the standard input ends.
pub async fn run(url: &str, fault: Option<Fault>) -> anyhow::Result<()> {
    let begun = micros();
    let client = redis::Client::open(url)?;
    let config = LockConfig::default().with_lease(WATCHDOG);
    let locks = Locks::connect(client.clone(), config).await?;
    let redis = client.get_multiplexed_async_connection().await?;
    reply("client", begun, "ok");

    let mut actors: HashMap<String, UnboundedSender<String>> = HashMap::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let name = line.split(' ').next().unwrap_or_default();
        let actor = actors.entry(name.to_owned()).or_insert_with_key(|name| {
            let (sender, commands) = unbounded_channel();
            let owner = locks.owner();
            let held = HashMap::new();
            let name = name.clone();
            let locks = locks.clone();
            let client = client.clone();
            let redis = redis.clone();
            let actor = Actor {
                name,
                owner,
                held,
                locks,
                client,
                redis,
                fault,
            };
            tokio::spawn(actor.act(commands));
            sender
        });
        actor.send(line).context("an actor has ended")?;
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
    fault: Option<Fault>,
}

/// One hold of any kind of lock.
struct Held {
    fence: Option<u64>,
    /// Ends when it is lost.
    lost: Option<BoxFuture<'static, LostReason>>,
    release: BoxFuture<'static, Result<(), lock::Error>>,
}

/// A command of the protocol.
#[derive(Clone, Copy)]
struct Command<'a> {
    verb: &'a str,
    kind: &'a str,
    name: &'a str,
    arguments: &'a [&'a str],
}

impl Command<'_> {
    /// The key in [`Actor::held`]: an actor may hold both the read lock and the write lock of a name.
    fn hold(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    fn unknown(&self) -> anyhow::Result<String> {
        bail!(
            "there is no command '{}', or not with these arguments",
            self.verb
        )
    }

    /// The lease or the time limit, if there is one.
    fn time(&self) -> anyhow::Result<Option<Duration>> {
        let millis = self
            .arguments
            .first()
            .map(|text| text.parse::<u64>())
            .transpose()?;
        Ok(millis.map(Duration::from_millis))
    }
}

impl Actor {
    async fn act(mut self, mut commands: UnboundedReceiver<String>) {
        while let Some(line) = commands.recv().await {
            let begun = micros();
            let answer = match self.carry_out(&line).await {
                Ok(answer) => answer,
                Err(error) => format!("error {error:#}").replace('\n', " "),
            };
            reply(&self.name, begun, &answer);
        }
    }

    async fn carry_out(&mut self, line: &str) -> anyhow::Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, verb, kind, name, ref arguments @ ..] = &*words else {
            bail!("too few words")
        };
        let command = Command {
            verb,
            kind,
            name,
            arguments,
        };
        match (verb, arguments) {
            ("unlock", _) => {
                self.release(command).await?;
                Ok("ok".to_owned())
            }
            ("count", [counter, times]) => {
                for _ in 0..times.parse()? {
                    self.on_kind(Command {
                        verb: "lock",
                        arguments: &[],
                        ..command
                    })
                    .await?;
                    self.increment(counter).await?;
                    self.release(command).await?;
                }
                Ok("ok".to_owned())
            }
            _ => self.on_kind(command).await,
        }
    }

    async fn on_kind(&mut self, command: Command<'_>) -> anyhow::Result<String> {
        let locks = self.locks.clone();
        let name = command.name;
        match command.kind {
            "fair" if self.fault != Some(Fault::IgnoresQueues) => {
                self.on_lock(locks.fair(name), command).await
            }
            "reentrant" | "fair" => self.on_lock(locks.lock(name), command).await,
            "read" => {
                self.on_lock(locks.read_write(name).read().clone(), command)
                    .await
            }
            "write" => {
                self.on_lock(locks.read_write(name).write().clone(), command)
                    .await
            }
            "fenced" => self.on_lock(locks.fenced(name), command).await,
            "multi" => self.on_multi(command).await,
            kind => bail!("there is no {kind} lock"),
        }
    }

    async fn on_multi(&mut self, command: Command<'_>) -> anyhow::Result<String> {
        let names = ["a", "b"].map(|part| format!("{}:{part}", command.name));
        let lock = self.locks.multi(names.iter().map(String::as_str));
        let owner = &self.owner;
        let guard = match (command.verb, command.time()?) {
            ("lock", None) => Some(lock.acquire_as(owner).await?),
            ("lock", Some(lease)) => Some(lock.without_renewal(lease).acquire_as(owner).await?),
            ("try", Some(limit)) => lock.acquire_within_as(owner, limit).await?,
            _ => return command.unknown(),
        };
        let hold = guard.map(|guard| {
            let lost = Some(guard.lost().boxed());
            let release = guard.release().boxed();
            Held {
                fence: None,
                lost,
                release,
            }
        });
        Ok(self.hold(command, hold))
    }

    async fn on_lock<K: LockKind>(
        &mut self,
        mut lock: Lock<K>,
        command: Command<'_>,
    ) -> anyhow::Result<String> {
        let hold = |guard: Guard<K>| {
            let fence = (&guard as &dyn Any)
                .downcast_ref()
                .map(Guard::<Fenced>::fence);
            let lost = Some(guard.lost().boxed());
            Held {
                fence,
                lost,
                release: guard.release().boxed(),
            }
        };
        Ok(match (command.verb, command.time()?) {
            ("lock", lease) => {
                if let Some(lease) = lease {
                    lock = lock.without_renewal(lease);
                }
                if self.fault == Some(Fault::NeverLocks) {
                    return Ok("ok".to_owned());
                }
                let guard = self.acquire(lock).await?;
                self.hold(command, Some(hold(guard)))
            }
            ("try", Some(limit)) => {
                let guard = lock.acquire_within_as(&self.owner, limit).await?;
                self.hold(command, guard.map(hold))
            }
            ("depth", None) => format!("ok {}", lock.hold_count(&self.owner).await?),
            ("locked", None) => format!("ok {}", lock.is_locked().await?),
            ("remaining", None) => match lock.remaining().await? {
                Some(remaining_lease) => format!("ok {}", remaining_lease.as_millis()),
                None => "ok -2".to_owned(),
            },
            ("force", None) => format!("ok {}", lock.force_unlock().await?),
            ("fence", None) => match self.last(command) {
                Some(Held {
                    fence: Some(fence), ..
                }) => format!("ok {fence}"),
                _ => bail!("nothing with a fence is held"),
            },
            ("lost", None) => match self.last(command) {
                Some(Held { lost, .. }) => {
                    format!("ok {}", lost.take().context("asked before")?.await)
                }
                None => bail!("nothing is held"),
            },
            _ => return command.unknown(),
        })
    }

    async fn acquire<K: LockKind>(&mut self, lock: Lock<K>) -> anyhow::Result<Guard<K>> {
        Ok(match self.fault {
            Some(Fault::NeverRenews) => {
                lock.without_renewal(WATCHDOG)
                    .acquire_as(&self.owner)
                    .await?
            }
            Some(Fault::IgnoresMessages) => {
                // It subscribes, as the scenarios wait for that, and ignores the messages.
                let mut pubsub = self.client.get_async_pubsub().await?;
                pubsub
                    .subscribe(format!("redisson_lock__channel:{{{}}}", lock.name()))
                    .await?;
                loop {
                    if let Some(guard) = lock.try_acquire_as(&self.owner).await? {
                        break guard;
                    }
                    tokio::time::sleep(lock.remaining().await?.unwrap_or_default()).await;
                }
            }
            _ => lock.acquire_as(&self.owner).await?,
        })
    }

    async fn release(&mut self, command: Command<'_>) -> anyhow::Result<()> {
        let last = self.held.get_mut(&command.hold()).and_then(Vec::pop);
        let release = match (last, self.fault) {
            (Some(held), _) => held.release,
            (None, Some(Fault::NeverLocks)) => return Ok(()),
            (None, _) => bail!("not held by this actor"),
        };
        if matches!(
            self.fault,
            Some(Fault::PublishesNothing | Fault::ReleasesAllHolds)
        ) {
            self.redis.del::<_, ()>(command.name).await?;
            // The release finds no hold, and publishes nothing.
            ensure!(release.await.is_err(), "released what was deleted");
            return Ok(());
        }
        Ok(release.await?)
    }

    /// Keeps the hold, if there is one. Returns the answer to the command.
    fn hold(&mut self, command: Command<'_>, hold: Option<Held>) -> String {
        let acquired = hold.is_some();
        self.held.entry(command.hold()).or_default().extend(hold);
        yes_or_no(acquired)
    }

    /// The actor's latest hold of the lock that the command names.
    fn last(&mut self, command: Command<'_>) -> Option<&mut Held> {
        self.held.get_mut(&command.hold())?.last_mut()
    }

    /// Loses updates if the lock does not exclude.
    async fn increment(&mut self, counter: &str) -> anyhow::Result<()> {
        let value: Option<u64> = self.redis.get(counter).await?;
        Ok(self.redis.set(counter, value.unwrap_or(0) + 1).await?)
    }
}

fn yes_or_no(yes: bool) -> String {
    if yes {
        "ok".to_owned()
    } else {
        "no".to_owned()
    }
}

fn reply(actor: &str, begun: u128, answer: &str) {
    println!("{actor} {begun} {} {answer}", micros());
}

fn micros() -> u128 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    now.as_micros()
}
