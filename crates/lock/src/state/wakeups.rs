//! The wake-up registry: which waiters of this process are woken by which channel.
//!
//! All waiters of a channel share one subscription, which begins with the first of them and ends with
//! the last. One message wakes one waiter, because one release lets one owner in; a woken waiter
//! that is dropped passes the wake-up on (both are what [`Notify::notify_one`] promises).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
#[cfg(not(test))]
use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::commands::lock::UNLOCK_ALL_MESSAGE;
use crate::config::LockConfig;

/// Topics by channel, each with the number of its waiters.
type ByChannel = HashMap<Arc<str>, (Arc<Topic>, usize)>;

#[derive(Default)]
pub(crate) struct Wakeups {
    topics: Mutex<ByChannel>,
    /// Notifies the subscriber that `topics` changed.
    changed: Notify,
    /// Whether there are no subscriptions at all.
    polling: bool,
}

struct Topic {
    channel: Arc<str>,
    message: Notify,
    /// What the server says about the subscription on the current connection.
    subscribed: watch::Sender<Subscribed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subscribed {
    /// Not made yet, or its connection was lost.
    Pending,
    Confirmed,
    /// There is none: the server refuses it, or Pub/Sub is switched off.
    Absent,
}

/// One waiter's share in a subscription.
pub(crate) struct Subscription {
    wakeups: Arc<Wakeups>,
    topic: Arc<Topic>,
}

/// A wake-up that was received: passed on when dropped unless it is [used](Wakeup::mark_used).
pub(crate) struct Wakeup<'a>(Option<&'a Notify>);

/// Subscribe to `channel` and wait until the server has confirmed or refused it: at most a connect
/// timeout plus a command timeout, and not past the deadline. If it is not confirmed by then, it is
/// tried again in the background, and waiters have to poll until it is.
pub(crate) async fn subscribe(
    wakeups: &Arc<Wakeups>,
    channel: &Arc<str>,
    config: &LockConfig,
    deadline: Instant,
) -> Subscription {
    let subscription = wakeups.join(channel);
    let latest = Instant::now() + config.connect_timeout + config.command_timeout;
    if timeout_at(latest.min(deadline), subscription.confirmed())
        .await
        .is_err()
    {
        tracing::debug!(channel = &**channel, "no answer to a subscription; polling");
    }
    subscription
}

impl Wakeups {
    /// With `polling` nothing is subscribed to: every waiter has to poll.
    pub(crate) fn new(polling: bool) -> Self {
        Self {
            polling,
            ..Self::default()
        }
    }

    /// Share in the subscription of `channel`, which the subscriber makes if there is none.
    pub(crate) fn join(self: &Arc<Self>, channel: &Arc<str>) -> Subscription {
        let mut topics = self.topics();
        let (topic, count) = topics.entry(channel.clone()).or_insert_with(|| {
            let topic = Topic {
                channel: channel.clone(),
                message: Notify::new(),
                subscribed: watch::Sender::new(if self.polling {
                    Subscribed::Absent
                } else {
                    Subscribed::Pending
                }),
            };
            (Arc::new(topic), 0)
        });
        *count += 1;
        let topic = topic.clone();
        let first = *count == 1;
        drop(topics);
        if first {
            self.changed.notify_one();
        }
        Subscription {
            wakeups: self.clone(),
            topic,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.topics().len()
    }

    /// Wait until the set of channels may have changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn channels(&self) -> HashSet<Arc<str>> {
        self.topics().keys().cloned().collect()
    }

    /// Note the state of the subscriptions to these channels, also for waiters that have joined since.
    pub(crate) fn mark<'a>(
        &self,
        channels: impl IntoIterator<Item = &'a Arc<str>>,
        state: Subscribed,
    ) {
        let topics = self.topics();
        for (topic, _) in channels
            .into_iter()
            .filter_map(|channel| topics.get(channel))
        {
            topic
                .subscribed
                .send_if_modified(|now| std::mem::replace(now, state) != state);
        }
    }

    /// The server has confirmed these subscriptions. Messages before that were missed, so every
    /// waiter has to try again.
    pub(crate) fn subscribed(&self, channels: &[Arc<str>]) {
        self.mark(channels, Subscribed::Confirmed);
        let topics = self.topics();
        for (topic, _) in channels.iter().filter_map(|channel| topics.get(channel)) {
            topic.message.notify_waiters();
        }
    }

    /// A message came. Most wake one waiter; that of a writer's release wakes all, since many readers
    /// may get in.
    pub(crate) fn deliver(&self, channel: &str, message: &[u8]) {
        if let Some((topic, _)) = self.topics().get(channel) {
            if message == UNLOCK_ALL_MESSAGE.as_bytes() {
                topic.message.notify_waiters();
            } else {
                topic.message.notify_one();
            }
        }
    }

    fn topics(&self) -> MutexGuard<'_, ByChannel> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// Wait until the server has confirmed the subscription or refused it, however long that takes.
    pub(crate) async fn confirmed(&self) {
        let mut state = self.topic.subscribed.subscribe();
        // The sender lives as long as `self.topic`, so there is no error.
        if state
            .wait_for(|state| *state != Subscribed::Pending)
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Whether messages arrive now, as far as is known; otherwise the waiter has to poll.
    pub(crate) fn is_confirmed(&self) -> bool {
        *self.topic.subscribed.borrow() == Subscribed::Confirmed
    }

    /// The next message. Once enabled, the future misses none; if it is dropped without being awaited, it
    /// passes the message on.
    pub(crate) fn message(&self) -> Notified<'_> {
        self.topic.message.notified()
    }

    /// The wake-up that [`message`](Self::message) has just delivered.
    pub(crate) fn wakeup(&self) -> Wakeup<'_> {
        Wakeup(Some(&self.topic.message))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut topics = self.wakeups.topics();
        let Some((_, count)) = topics.get_mut(&self.topic.channel) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            topics.remove(&self.topic.channel);
            drop(topics);
            self.wakeups.changed.notify_one();
        }
    }
}

impl Wakeup<'_> {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// The waiter has tried after receiving it: it is not passed on.
    pub(crate) fn mark_used(&mut self) {
        self.0 = None;
    }
}

impl Drop for Wakeup<'_> {
    fn drop(&mut self) {
        if let Some(message) = self.0 {
            message.notify_one();
        }
    }
}
