//! The tracked holds whose keys are on one node. After each change of a key its holders' fields are
//! read, and where one is missing, the loss is confirmed and reported.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use redis_link::{Address, Unusable};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::cleanup::reconcile::end_lost_hold;
use crate::connection::failure::Failure;
use crate::error::LostReason;
use crate::holding::hold::Hold;
use crate::shared::Shared;
use crate::tracking::connection::{Change, TrackingConnection};

/// For how long changes are collected before the keys are read: a bound on the number of reads where
/// others change a key all the time, as readers do.
const COLLECT: Duration = Duration::from_millis(25);

/// How many keys are read in one pipeline.
const BATCH: usize = 500;

/// How often the connection is checked, and holds that have ended are forgotten.
const TICK: Duration = Duration::from_secs(1);

/// After how many ticks without a hold the connection is closed.
const UNUSED_TICKS: u32 = 10;

/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How long after a refusal tracking is not tried again: rights may be granted.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// A node and the holds that are tracked on it.
pub(super) struct Node {
    shared: Arc<Shared>,
    address: Address,
    /// Holds that are to be tracked here. Closed when the node is not wanted any more.
    new: UnboundedReceiver<Arc<Hold>>,
    /// Notified when the connection breaks.
    disconnected: Arc<Notify>,
    holds: HashMap<String, Vec<Arc<Hold>>>,
    /// Keys that have to be read.
    changed: HashSet<String>,
    /// Holds whose keys could not be read: they may be on another node.
    misplaced: Vec<Arc<Hold>>,
}

impl Node {
    pub(super) fn new(
        shared: Arc<Shared>,
        address: Address,
        new: UnboundedReceiver<Arc<Hold>>,
        disconnected: Arc<Notify>,
    ) -> Self {
        let (holds, changed, misplaced) = Default::default();
        Self {
            shared,
            address,
            new,
            disconnected,
            holds,
            changed,
            misplaced,
        }
    }

    /// Track until the node is not wanted any more, or has had nothing to track for a while. What is
    /// left then is given back.
    pub(super) async fn run(mut self) {
        let mut pause = PAUSES.0;
        loop {
            match self.session(&mut pause).await {
                Ok(()) => break,
                Err(Unusable::Refused(error)) => {
                    self.shared.connection.refusals.tracking(&error);
                    self.holds.clear();
                    self.discard_new(REFUSED_PAUSE).await;
                    break;
                }
                Err(Unusable::Broken(error)) => {
                    tracing::debug!(error, node = &*self.address, "no client tracking; retrying");
                    self.shared.connection.redis().recheck();
                    self.disconnected.notify_one();
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
        self.new.close();
        let mut rest: Vec<_> = self
            .holds
            .into_values()
            .flatten()
            .chain(self.misplaced)
            .collect();
        while let Ok(hold) = self.new.try_recv() {
            rest.push(hold);
        }
        self.shared.renewals.track_again(rest);
    }

    /// One connection, from connecting to its end.
    async fn session(&mut self, pause: &mut Duration) -> Result<(), Unusable> {
        let redis = self.shared.connection.redis();
        let mut connection = TrackingConnection::open(redis, &self.address).await?;
        // What happened before this connection is not reported.
        self.changed.extend(self.holds.keys().cloned());
        let mut read_at = Instant::now();
        let mut new = Vec::new();
        let mut unused = 0;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let collecting = !self.changed.is_empty();
            tokio::select! {
                received = self.new.recv_many(&mut new, BATCH) => {
                    if received == 0 {
                        return Ok(());
                    }
                    for hold in new.drain(..) {
                        let key = hold.request.name.key();
                        self.changed.insert(key.to_owned());
                        self.holds.entry(key.to_owned()).or_default().push(hold);
                    }
                    read_at = Instant::now();
                }
                change = connection.changed() => {
                    match change? {
                        Change::Keys(keys) => {
                            let known = keys.into_iter().filter(|key| self.holds.contains_key(key));
                            self.changed.extend(known);
                        }
                        Change::All => self.changed.extend(self.holds.keys().cloned()),
                    }
                    if !collecting {
                        read_at = Instant::now() + COLLECT;
                    }
                }
                () = sleep_until(read_at), if collecting => {
                    self.read(&mut connection).await?;
                    *pause = PAUSES.0;
                }
                _ = tick.tick() => {
                    connection.ping().await?;
                    self.shared.renewals.track_again(self.misplaced.drain(..));
                    self.holds.retain(|_, holds| {
                        holds.retain(|hold| hold.is_live());
                        !holds.is_empty()
                    });
                    unused = if self.holds.is_empty() { unused + 1 } else { 0 };
                    if unused > UNUSED_TICKS {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Read the keys that have changed.
    async fn read(&mut self, connection: &mut TrackingConnection) -> Result<(), Unusable> {
        let changed: Vec<String> = self.changed.drain().collect();
        for keys in changed.chunks(BATCH) {
            // A lock that was released is a changed key as well.
            let mut asked: Vec<(&str, Vec<Arc<Hold>>)> = Vec::new();
            for key in keys {
                let Some(holds) = self.holds.get_mut(key) else {
                    continue;
                };
                holds.retain(|hold| hold.is_live());
                if holds.is_empty() {
                    self.holds.remove(key);
                } else {
                    asked.push((key, holds.clone()));
                }
            }
            if asked.is_empty() {
                continue;
            }
            let fields = |holds: &[Arc<Hold>]| holds.iter().map(|h| h.request.field()).collect();
            let replies = connection
                .read(asked.iter().map(|(key, holds)| (*key, fields(holds))))
                .await?;
            for ((key, holds), reply) in asked.into_iter().zip(replies) {
                match reply {
                    Ok(exist) => {
                        for (hold, _) in holds.into_iter().zip(exist).filter(|(_, held)| !held) {
                            let confirming = confirm_loss(self.shared.clone(), hold);
                            self.shared.cleanup.spawn(confirming);
                        }
                    }
                    Err(error) => self.unreadable(key, &error),
                }
            }
        }
        Ok(())
    }

    /// A key could not be read: without the right, leave its holds to the watchdog, else try again
    /// later, perhaps on another node.
    fn unreadable(&mut self, key: &str, error: &RedisError) {
        let holds = self.holds.remove(key).unwrap_or_default();
        if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) {
            self.shared.connection.refusals.tracking(&error.to_string());
        } else {
            self.shared.connection.redis().recheck();
            self.misplaced.extend(holds);
        }
    }

    /// Leave new holds to the watchdog for some time.
    async fn discard_new(&mut self, time: Duration) {
        let discard = async { while self.new.recv().await.is_some() {} };
        tokio::select! {
            () = discard => {}
            () = sleep(time) => {}
        }
    }
}

/// Report a loss if the server confirms it on the connection over which the lock was acquired: a
/// tracked node may be a replica by now and lag behind. A lock that is being released is not live.
/// While there is no answer it asks again, until the watchdog ends the hold at its deadline.
async fn confirm_loss(shared: Arc<Shared>, hold: Arc<Hold>) {
    let (connection, request) = (&shared.connection, &hold.request);
    while hold.is_live() && !shared.stop.is_cancelled() {
        match connection.fields(&request.name).await {
            Ok(fields) if fields.is_empty() => {
                return end_lost_hold(&shared, &hold, LostReason::Expired);
            }
            Ok(fields) if !fields.contains(&request.field()) => {
                return end_lost_hold(&shared, &hold, LostReason::Taken);
            }
            Ok(_) | Err(Failure::Rejected(_)) => return,
            Err(_) => sleep(PAUSES.1).await,
        }
    }
}
