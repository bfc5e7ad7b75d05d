//! What a process hears: keeps its subscriptions equal to what [`super::wake`] wants, on every node
//! that has to be listened to, and reconnects. Knows nothing of locks.
//!
//! A single server and a master kept by Sentinel are one place to listen to. On a cluster each
//! channel is listened to at the node that serves its slot, for both kinds of messages: PUBLISH,
//! which all nodes pass on, and SPUBLISH (Redis 7), which stays with the slot. Places are
//! independent: one that hangs delays no other.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::LockConfig;
use super::conn::{Address, Backend, Channels};
use super::ear::Ear;
use super::wake::Topics;

/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What one place needs to do its work.
struct Place {
    name: Address,
    topics: Arc<Topics>,
    backend: Backend,
    config: LockConfig,
    /// Told when the place can no longer be listened to.
    trouble: Arc<Notify>,
}

/// Listen until `stop`.
pub(super) async fn run(
    topics: Arc<Topics>,
    backend: Backend,
    config: LockConfig,
    stop: CancellationToken,
) {
    tokio::select! {
        () = listen(topics, backend.clone(), config) => {}
        () = backend.patrol() => {}
        () = stop.cancelled() => {}
    }
}

/// Share the wanted channels out among the places, again and again.
async fn listen(topics: Arc<Topics>, backend: Backend, config: LockConfig) {
    let trouble: Arc<Notify> = Arc::default();
    let mut shares: HashMap<Address, watch::Sender<Channels>> = HashMap::new();
    let mut places = FuturesUnordered::new();
    loop {
        // A process in which nobody waits needs no connection.
        if places.is_empty() && topics.len() == 0 {
            topics.changed().await;
            continue;
        }
        let changes = backend.changes();
        let wanted = topics.channels();
        let number = wanted.len();
        // Whoever is asked for the shares may hang; the places go on listening meanwhile.
        let mut sharing = pin!(backend.share_out(wanted));
        let shared = loop {
            tokio::select! {
                shared = &mut sharing => break shared,
                Some(()) = places.next() => {}
            }
        };
        // Channels that nobody can be asked for now are tried again soon.
        let complete = match shared {
            Ok(new) => {
                let complete = new.values().map(Channels::len).sum::<usize>() == number;
                hand_over(&topics, &shares, &new);
                shares.retain(|name, _| new.contains_key(name));
                for (name, share) in new {
                    // Sent even if it is the same: a channel may have been left and joined again.
                    if let Some(sender) = shares.get(&name) {
                        sender.send_replace(share);
                        continue;
                    }
                    if share.is_empty() {
                        continue;
                    }
                    let (sender, receiver) = watch::channel(share);
                    let place = Place {
                        name: name.clone(),
                        topics: topics.clone(),
                        backend: backend.clone(),
                        config: config.clone(),
                        trouble: trouble.clone(),
                    };
                    places.push(place.keep(receiver));
                    shares.insert(name, sender);
                }
                complete
            }
            Err(cause) => {
                tracing::warn!(fault = %cause, "nobody to listen to; lock waiters poll");
                false
            }
        };
        tokio::select! {
            () = topics.changed() => {}
            () = changes => {}
            () = trouble.notified() => {}
            // A place that is no place any more has come to its end.
            Some(()) = places.next() => {}
            () = tokio::time::sleep(PAUSES.1), if !complete => {}
        }
    }
}

/// Tell everyone which channels are not heard at their old place any more.
fn hand_over(
    topics: &Topics,
    old: &HashMap<Address, watch::Sender<Channels>>,
    new: &HashMap<Address, Channels>,
) {
    for (name, sender) in old {
        let share = sender.borrow();
        let stays = |channel: &Arc<str>| new.get(name).is_some_and(|new| new.contains(channel));
        topics.silenced(share.iter().filter(|channel| !stays(channel)));
    }
}

impl Place {
    /// Listen at one place until it has no share any more.
    async fn keep(self, mut share: watch::Receiver<Channels>) {
        let mut pause = PAUSES.0;
        loop {
            let mut heard = Channels::new();
            let gone = gone(share.clone());
            let end = tokio::select! {
                end = self.session(&mut share, &mut heard, &mut pause) => end,
                // The session sees this by itself, but may hang before it does.
                () = gone => None,
            };
            self.topics.silenced(heard.iter());
            let Some(cause) = end else { return };
            tracing::warn!(
                fault = cause,
                place = &*self.name,
                "lock wake-up connection lost; waiters poll until it is back"
            );
            self.backend.doubt();
            self.trouble.notify_one();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// One connection, from connecting to its end; returns the cause, or `None` when there is
    /// nothing to listen for any more. `heard` is what was subscribed to at the end; `pause` is
    /// reset once it works.
    async fn session(
        &self,
        share: &mut watch::Receiver<Channels>,
        heard: &mut Channels,
        pause: &mut Duration,
    ) -> Option<String> {
        let opened = Ear::open(&self.backend, &self.name, &self.config).await;
        let mut ear = match opened {
            Ok(ear) => ear,
            Err(cause) => return Some(cause),
        };
        loop {
            let wanted = share.borrow_and_update().clone();
            let more: Vec<_> = wanted.difference(heard).cloned().collect();
            let less: Vec<_> = heard.difference(&wanted).cloned().collect();
            // A channel left and joined again in one moment is a new topic on an old subscription.
            self.topics.still_heard(heard.intersection(&wanted));
            if !more.is_empty() {
                if let Err(cause) = ear.subscribe(&more).await {
                    return Some(cause);
                }
                self.topics.confirmed(&more);
                heard.extend(more);
                *pause = PAUSES.0;
            }
            if !less.is_empty() {
                if let Err(cause) = ear.unsubscribe(&less).await {
                    return Some(cause);
                }
                heard.retain(|channel| wanted.contains(channel));
            }
            tokio::select! {
                message = ear.next() => match message {
                    Ok((channel, message)) => self.topics.deliver(&channel, &message),
                    Err(cause) => return Some(cause),
                },
                changed = share.changed() => if changed.is_err() { return None },
            }
        }
    }
}

/// Ends when nobody sends shares any more.
async fn gone(mut share: watch::Receiver<Channels>) {
    while share.changed().await.is_ok() {}
}
