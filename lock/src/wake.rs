//! Who in this process waits for which lock, and who is woken by a message. Memory only; the
//! connection that hears the messages is in [`super::listener`].
//!
//! All waiters of a lock share one subscription, counted: it comes with the first and goes with
//! the last. One message wakes one waiter, because one release lets one owner in; a woken waiter
//! that goes away hands the wake on (both are what [`Notify::notify_one`] promises).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
#[cfg(not(test))]
use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};

use super::commands::UNLOCK_ALL_MESSAGE;

/// Topics by channel, each with the number of its waiters.
type Wanted = HashMap<Arc<str>, (Arc<Topic>, usize)>;

/// Every channel that somebody waits on.
#[derive(Default)]
pub(super) struct Topics {
    wanted: Mutex<Wanted>,
    /// Tells the listener that `wanted` changed.
    changed: Notify,
}

/// One channel.
struct Topic {
    channel: Arc<str>,
    message: Notify,
    /// Whether the server has confirmed the subscription on the present connection.
    heard: watch::Sender<bool>,
    /// For those who wait in order; see [`Subscription::turn`].
    line: tokio::sync::Mutex<()>,
}

/// One waiter's share in a subscription.
pub(super) struct Subscription {
    topics: Arc<Topics>,
    topic: Arc<Topic>,
}

/// A wake that was received and not yet used: passed on unless it is [spent](Wake::spend).
pub(super) struct Wake<'a>(Option<&'a Notify>);

impl Topics {
    /// Share in the subscription of `channel`, made if need be.
    pub(super) fn join(self: &Arc<Self>, channel: &Arc<str>) -> Subscription {
        let mut wanted = self.wanted();
        let (topic, count) = wanted.entry(channel.clone()).or_insert_with(|| {
            let topic = Topic {
                channel: channel.clone(),
                message: Notify::new(),
                heard: watch::Sender::new(false),
                line: tokio::sync::Mutex::default(),
            };
            (Arc::new(topic), 0)
        });
        *count += 1;
        let (topic, first) = (topic.clone(), *count == 1);
        drop(wanted);
        if first {
            self.changed.notify_one();
        }
        Subscription { topics: self.clone(), topic }
    }

    /// Number of channels waited on.
    pub(super) fn len(&self) -> usize {
        self.wanted().len()
    }

    /// Wait until the wanted channels may have changed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Every channel that somebody waits on.
    pub(super) fn channels(&self) -> HashSet<Arc<str>> {
        self.wanted().keys().cloned().collect()
    }

    /// The server has been listening for these all the time, also for those who came since.
    pub(super) fn still_heard<'a>(&self, channels: impl Iterator<Item = &'a Arc<str>>) {
        let wanted = self.wanted();
        for (topic, _) in channels.filter_map(|channel| wanted.get(channel)) {
            topic.confirm();
        }
    }

    /// The server listens for these from now on. Whatever was said before was missed, so everyone
    /// who waits has to look for himself.
    pub(super) fn confirmed(&self, channels: &[Arc<str>]) {
        let wanted = self.wanted();
        for (topic, _) in channels.iter().filter_map(|channel| wanted.get(channel)) {
            topic.confirm();
            topic.message.notify_waiters();
        }
    }

    /// Nobody listens for these now.
    pub(super) fn silenced<'a>(&self, channels: impl Iterator<Item = &'a Arc<str>>) {
        let wanted = self.wanted();
        for (topic, _) in channels.filter_map(|channel| wanted.get(channel)) {
            topic.heard.send_replace(false);
        }
    }

    /// A message came. Most announce that one waiter may get in; that of a writer who leaves lets
    /// everybody look, since many readers may.
    pub(super) fn deliver(&self, channel: &str, message: &[u8]) {
        if let Some((topic, _)) = self.wanted().get(channel) {
            if message == UNLOCK_ALL_MESSAGE.as_bytes() {
                topic.message.notify_waiters();
            } else {
                topic.message.notify_one();
            }
        }
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Topic {
    fn confirm(&self) {
        self.heard.send_if_modified(|heard| !std::mem::replace(heard, true));
    }
}

impl Subscription {
    /// Wait until the server listens for this channel. Unbounded: the caller sets the limit.
    pub(super) async fn heard(&self) {
        // The sender lives as long as `self.topic`, so this ends only by hearing.
        if self.topic.heard.subscribe().wait_for(|heard| *heard).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Wait to be the first in line, after those of this process who asked before. For channels
    /// whose messages may concern several waiters: the first one hears them, and the next looks
    /// for himself when his turn comes.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.topic.line.lock().await
    }

    /// The next message. Once enabled it misses none, and dropped unused it passes it on.
    pub(super) fn message(&self) -> Notified<'_> {
        self.topic.message.notified()
    }

    /// Hold the wake that [`message`](Self::message) has just delivered.
    pub(super) fn wake(&self) -> Wake<'_> {
        Wake(Some(&self.topic.message))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut wanted = self.topics.wanted();
        let Some((_, count)) = wanted.get_mut(&self.topic.channel) else { return };
        *count -= 1;
        if *count == 0 {
            wanted.remove(&self.topic.channel);
            drop(wanted);
            self.topics.changed.notify_one();
        }
    }
}

impl Wake<'_> {
    /// No wake yet.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// It has done its work: its owner looked at the lock after receiving it.
    pub(super) fn spend(&mut self) {
        self.0 = None;
    }
}

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        if let Some(message) = self.0 {
            message.notify_one();
        }
    }
}

#[cfg(test)]
mod explored;
