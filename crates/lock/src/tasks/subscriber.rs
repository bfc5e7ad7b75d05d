//! The subscriber task: keeps each node's subscriptions equal to those channels of the wake-up registry
//! that the node serves, and reconnects.
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

/// The first pause between attempts to connect; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause between attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a subscription that the server refused is tried again: rights may be granted.
const TRY_REFUSED_AGAIN: Duration = Duration::from_secs(10);

/// Up to this many channels, the channels are assigned again at each change. With more, the changes of a
/// short pause are taken together: every assignment looks at all channels, so one for each change would
/// cost the square of their number.
const FEW_CHANNELS: usize = 256;

/// The length of that pause for each channel.
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
    tokio::select! {
        () = assign(&shared), if shared.config.pubsub => {}
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
        let channel_count = channels.len();
        // Finding the nodes may take long; those that are known are served meanwhile.
        let mut assigning = pin!(redis.assign_channels(channels));
        let result = loop {
            tokio::select! {
                result = &mut assigning => break result,
                Some(()) = nodes.next() => {}
            }
        };
        // Channels that no node serves now are tried again soon.
        let is_complete = match result {
            Ok(assignment) => {
                let assigned_count: usize = assignment.values().map(Channels::len).sum();
                mark_moved(wakeups, &assigned, &assignment);
                for (address, receiver) in send_to_nodes(assignment, &mut assigned) {
                    let node = Node {
                        shared: shared.clone(),
                        address,
                        disconnected: disconnected.clone(),
                    };
                    nodes.push(node.run(receiver));
                }
                assigned_count == channel_count
            }
            Err(error) => {
                tracing::warn!(%error, "no node to subscribe on; lock waiters poll");
                false
            }
        };
        tokio::select! {
            () = channels_changed(wakeups, channel_count) => {}
            () = nodes_changed => {}
            () = disconnected.notified() => {}
            // A node that is no longer assigned any channels has ended.
            Some(()) = nodes.next() => {}
            () = tokio::time::sleep(LONGEST_PAUSE), if !is_complete => {}
        }
    }
}

/// Send each node the channels that it has now. Returns the nodes that had none before, each with the receiver
/// of its channels; those that have none any more end.
fn send_to_nodes(
    assignment: HashMap<Address, Channels>,
    assigned: &mut HashMap<Address, watch::Sender<Channels>>,
) -> Vec<(Address, watch::Receiver<Channels>)> {
    assigned.retain(|address, _| assignment.contains_key(address));
    let mut new_nodes = Vec::new();
    for (address, channels) in assignment {
        // Sent even if the channels are the same: waiters may have left one and joined it again, see `session`.
        if let Some(sender) = assigned.get(&address) {
            sender.send_replace(channels);
            continue;
        }
        if channels.is_empty() {
            continue;
        }
        let (sender, receiver) = watch::channel(channels);
        new_nodes.push((address.clone(), receiver));
        assigned.insert(address, sender);
    }
    new_nodes
}

/// Wait until the channels change. If there are many, pause as well, so that the changes in the pause
/// are taken together.
async fn channels_changed(wakeups: &Wakeups, channel_count: usize) {
    wakeups.changed().await;
    if channel_count > FEW_CHANNELS {
        let pause =
            PAUSE_PER_CHANNEL.saturating_mul(u32::try_from(channel_count).unwrap_or(u32::MAX));
        tokio::time::sleep(pause).await;
    }
}

/// Mark the channels that leave their node as not subscribed.
fn mark_moved(
    wakeups: &Wakeups,
    assigned: &HashMap<Address, watch::Sender<Channels>>,
    assignment: &HashMap<Address, Channels>,
) {
    for (address, sender) in assigned {
        let old_channels = sender.borrow();
        let moved_channels = old_channels.iter().filter(|channel| {
            assignment
                .get(address)
                .is_none_or(|new_channels| !new_channels.contains(*channel))
        });
        wakeups.mark(moved_channels, Subscribed::Pending);
    }
}

impl Node {
    /// Stay subscribed until the node is no longer assigned any channels.
    async fn run(self, mut assigned: watch::Receiver<Channels>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut subscribed = Channels::new();
            let unassigned = wait_until_unassigned(assigned.clone());
            let end = tokio::select! {
                end = self.session(&mut assigned, &mut subscribed, &mut pause) => end,
                // A session ends by itself then, unless it hangs while it connects or waits for a reply.
                () = unassigned => None,
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
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Let waiters poll until a refused connection is tried again; `None` when the node is no longer
    /// assigned any channels.
    async fn poll_for_a_while(&self, assigned: &mut watch::Receiver<Channels>) -> Option<()> {
        let retry_at = Instant::now() + TRY_REFUSED_AGAIN;
        loop {
            self.shared
                .wakeups
                .mark(assigned.borrow_and_update().iter(), Subscribed::Absent);
            tokio::select! {
                changed = assigned.changed() => changed.ok()?,
                () = sleep_until(retry_at) => return Some(()),
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
        let mut retry_refused = tokio::time::interval(TRY_REFUSED_AGAIN);
        loop {
            let wanted = assigned.borrow_and_update().clone();
            let new_channels: Vec<_> = wanted.difference(subscribed).cloned().collect();
            let unwanted_channels: Vec<_> = subscribed.difference(&wanted).cloned().collect();
            // A channel that was left and joined again has a new topic, which does not know yet that its
            // channel is subscribed to.
            let wakeups = &self.shared.wakeups;
            let kept_channels = subscribed
                .intersection(&wanted)
                .filter(|channel| !refused.contains(*channel));
            wakeups.mark(kept_channels, Subscribed::Confirmed);
            wakeups.mark(refused.intersection(&wanted), Subscribed::Absent);
            if !new_channels.is_empty() {
                let refused_channels = match self.subscribe(&mut connection, &new_channels).await {
                    Ok(refused_channels) => refused_channels,
                    Err(error) => return Some(error),
                };
                // The refused ones, too: the server may have refused only one of the two kinds of messages, so
                // that there is a subscription to end later.
                subscribed.extend(new_channels);
                refused.extend(refused_channels);
                *pause = FIRST_PAUSE;
            }
            if !unwanted_channels.is_empty() {
                if let Err(error) = connection.unsubscribe(&unwanted_channels).await {
                    return Some(error);
                }
                subscribed.retain(|channel| wanted.contains(channel));
                refused.retain(|channel| wanted.contains(channel));
            }
            // Messages are delivered here until the channels change: a message is about one channel, and the
            // steps above look at all of them.
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
                    _ = retry_refused.tick(), if !refused.is_empty() => {
                        subscribed.retain(|channel| !refused.contains(channel));
                        refused.clear();
                        break;
                    }
                }
            }
        }
    }

    /// Subscribe, and mark what the server has answered about each channel. Returns those that it refused.
    async fn subscribe(
        &self,
        connection: &mut PubSubConnection,
        channels: &[Arc<str>],
    ) -> Result<Vec<Arc<str>>, Unusable> {
        let refusal_reasons = connection.subscribe(channels).await?;
        let mut refused_channels = Vec::new();
        let mut confirmed_channels = Vec::new();
        for channel in channels {
            match refusal_reasons.get(channel) {
                Some(reason) => {
                    let refusals = &self.shared.connection.refusals;
                    refusals.subscription(channel, reason);
                    refused_channels.push(channel.clone());
                }
                None => confirmed_channels.push(channel.clone()),
            }
        }
        self.shared.wakeups.subscribed(&confirmed_channels);
        self.shared
            .wakeups
            .mark(&refused_channels, Subscribed::Absent);
        Ok(refused_channels)
    }
}

/// Ends when the node is no longer assigned any channels.
async fn wait_until_unassigned(mut assigned: watch::Receiver<Channels>) {
    while assigned.changed().await.is_ok() {}
}
