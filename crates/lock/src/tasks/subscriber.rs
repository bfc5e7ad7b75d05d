//! The subscriber task: keeps the subscriptions on the server equal to the channels of the wake-up
//! registry, on every node that has some of them, and reconnects.
//!
//! With a single server or Sentinel there is one node. On a cluster each channel is subscribed to on
//! the node that serves its slot, for both kinds of messages: PUBLISH, which reaches all nodes, and
//! SPUBLISH (Redis 7), which stays with the slot. Nodes are independent: one that hangs delays no
//! other.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis_link::{Address, Channels, Unusable};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::state::shared::Shared;
use crate::state::wakeups::{Subscribed, Wakeups};
use crate::tasks::pubsub::PubSubConnection;

/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often a subscription that the server refused is tried again: rights may be granted.
const TRY_REFUSED_AGAIN: Duration = Duration::from_secs(10);

/// How many channels are assigned anew at once when one of them comes or goes. Of more, those that come or go
/// within a pause are taken together: each time all are looked at, which would cost the square of their
/// number.
const FEW_CHANNELS: usize = 256;

/// The pause, for each channel.
const PAUSE_PER_CHANNEL: Duration = Duration::from_micros(4);

/// The subscriptions on one node.
struct Node {
    shared: Arc<Shared>,
    address: Address,
    /// Notified when the connection breaks.
    disconnected: Arc<Notify>,
}

/// Subscribe until the tasks have to end.
pub(crate) async fn run(shared: Arc<Shared>) {
    let subscriptions = async {
        if shared.config.pubsub {
            assign(&shared).await;
        } else {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = subscriptions => {}
        () = shared.connection.redis().monitor() => {}
        () = shared.stop.cancelled() => {}
    }
}

/// Assign the channels to the nodes, again whenever channels or nodes change.
async fn assign(shared: &Arc<Shared>) {
    let wakeups = &shared.wakeups;
    let redis = shared.connection.redis();
    let disconnected: Arc<Notify> = Arc::default();
    let mut assigned: HashMap<Address, watch::Sender<Channels>> = HashMap::new();
    let mut nodes = FuturesUnordered::new();
    loop {
        // A process without waiters needs no connection.
        if nodes.is_empty() && wakeups.len() == 0 {
            wakeups.changed().await;
            continue;
        }
        let nodes_changed = redis.changed();
        let channels = wakeups.channels();
        let number = channels.len();
        // Finding the nodes may take long; those that are known are served meanwhile.
        let mut assigning = pin!(redis.assign_channels(channels));
        let result = loop {
            tokio::select! {
                result = &mut assigning => break result,
                Some(()) = nodes.next() => {}
            }
        };
        // Channels that no node serves now are tried again soon.
        let complete = match result {
            Ok(new) => {
                let complete = new.values().map(Channels::len).sum::<usize>() == number;
                mark_moved(wakeups, &assigned, &new);
                assigned.retain(|address, _| new.contains_key(address));
                for (address, channels) in new {
                    // Sent even if it is the same: a channel may have been left and joined again.
                    if let Some(sender) = assigned.get(&address) {
                        sender.send_replace(channels);
                        continue;
                    }
                    if channels.is_empty() {
                        continue;
                    }
                    let (sender, receiver) = watch::channel(channels);
                    let shared = shared.clone();
                    let disconnected = disconnected.clone();
                    let node = Node {
                        shared,
                        address: address.clone(),
                        disconnected,
                    };
                    nodes.push(node.run(receiver));
                    assigned.insert(address, sender);
                }
                complete
            }
            Err(error) => {
                tracing::warn!(%error, "no node to subscribe on; lock waiters poll");
                false
            }
        };
        let channels_changed = async {
            wakeups.changed().await;
            if number > FEW_CHANNELS {
                let pause =
                    PAUSE_PER_CHANNEL.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
                tokio::time::sleep(pause).await;
            }
        };
        tokio::select! {
            () = channels_changed => {}
            () = nodes_changed => {}
            () = disconnected.notified() => {}
            // A node that is no longer assigned any channels has ended.
            Some(()) = nodes.next() => {}
            () = tokio::time::sleep(PAUSES.1), if !complete => {}
        }
    }
}

/// Mark the channels that leave their node as not subscribed.
fn mark_moved(
    wakeups: &Wakeups,
    old: &HashMap<Address, watch::Sender<Channels>>,
    new: &HashMap<Address, Channels>,
) {
    for (address, sender) in old {
        let channels = sender.borrow();
        let stays = |channel: &Arc<str>| new.get(address).is_some_and(|new| new.contains(channel));
        wakeups.mark(
            channels.iter().filter(|channel| !stays(channel)),
            Subscribed::Pending,
        );
    }
}

impl Node {
    /// Stay subscribed until the node is no longer assigned any channels.
    async fn run(self, mut assigned: watch::Receiver<Channels>) {
        let mut pause = PAUSES.0;
        loop {
            let mut subscribed = Channels::new();
            let closed = closed(assigned.clone());
            let end = tokio::select! {
                end = self.session(&mut assigned, &mut subscribed, &mut pause) => end,
                // The session sees this by itself, but may hang before it does.
                () = closed => None,
            };
            self.shared.wakeups.mark(&subscribed, Subscribed::Pending);
            let error = match end {
                None => return,
                Some(Unusable::Refused(error)) => {
                    self.shared.connection.refusals.pubsub(&error);
                    if self.poll_for_a_while(&mut assigned).await.is_none() {
                        return;
                    }
                    continue;
                }
                Some(Unusable::Broken(error)) => error,
            };
            tracing::warn!(
                error,
                node = &*self.address,
                "lock Pub/Sub connection lost; waiters poll until it is back"
            );
            self.shared.connection.redis().recheck();
            self.disconnected.notify_one();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Let waiters poll until a refused connection is tried again; `None` when the node is no longer
    /// assigned any channels.
    async fn poll_for_a_while(&self, assigned: &mut watch::Receiver<Channels>) -> Option<()> {
        let again = Instant::now() + TRY_REFUSED_AGAIN;
        loop {
            self.shared
                .wakeups
                .mark(assigned.borrow_and_update().iter(), Subscribed::Absent);
            tokio::select! {
                changed = assigned.changed() => changed.ok()?,
                () = sleep_until(again) => return Some(()),
            }
        }
    }

    /// One connection, from connecting to its end. Returns what ended it, or `None` when
    /// the node is no longer assigned any channels. `subscribed` is what was subscribed to at the
    /// end; `pause` is reset once the connection works.
    async fn session(
        &self,
        assigned: &mut watch::Receiver<Channels>,
        subscribed: &mut Channels,
        pause: &mut Duration,
    ) -> Option<Unusable> {
        let redis = self.shared.connection.redis();
        let mut connection = match PubSubConnection::open(redis, &self.address).await {
            Ok(connection) => connection,
            Err(error) => return Some(error),
        };
        let mut refused = Channels::new();
        let mut again = tokio::time::interval(TRY_REFUSED_AGAIN);
        loop {
            let wanted = assigned.borrow_and_update().clone();
            let more: Vec<_> = wanted.difference(subscribed).cloned().collect();
            let less: Vec<_> = subscribed.difference(&wanted).cloned().collect();
            // A channel left and joined again in one moment is a new topic on an old subscription.
            let wakeups = &self.shared.wakeups;
            let still = subscribed
                .intersection(&wanted)
                .filter(|channel| !refused.contains(*channel));
            wakeups.mark(still, Subscribed::Confirmed);
            wakeups.mark(refused.intersection(&wanted), Subscribed::Absent);
            if !more.is_empty() {
                let denied = match connection.subscribe(&more).await {
                    Ok(denied) => denied,
                    Err(error) => return Some(error),
                };
                let (denied, confirmed): (Vec<_>, Vec<_>) =
                    more.into_iter()
                        .partition(|channel| match denied.get(channel) {
                            Some(error) => {
                                self.shared.connection.refusals.subscription(channel, error);
                                true
                            }
                            None => false,
                        });
                wakeups.subscribed(&confirmed);
                wakeups.mark(&denied, Subscribed::Absent);
                // The other kind of message may be allowed: these are unsubscribed from as well.
                subscribed.extend(confirmed.into_iter().chain(denied.iter().cloned()));
                refused.extend(denied);
                *pause = PAUSES.0;
            }
            if !less.is_empty() {
                if let Err(error) = connection.unsubscribe(&less).await {
                    return Some(error);
                }
                subscribed.retain(|channel| wanted.contains(channel));
                refused.retain(|channel| wanted.contains(channel));
            }
            // Until the channels change: what is above looks at all of them, and a message is about one.
            loop {
                tokio::select! {
                    message = connection.next() => match message {
                        Ok((channel, message)) => wakeups.deliver(&channel, &message),
                        Err(error) => return Some(error),
                    },
                    changed = assigned.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return None,
                    },
                    _ = again.tick(), if !refused.is_empty() => {
                        subscribed.retain(|channel| !refused.contains(channel));
                        refused.clear();
                        break;
                    }
                }
            }
        }
    }
}

/// Ends when the node is no longer assigned any channels.
async fn closed(mut assigned: watch::Receiver<Channels>) {
    while assigned.changed().await.is_ok() {}
}
