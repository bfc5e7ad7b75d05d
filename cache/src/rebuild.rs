//! One load per cluster: claim the mutex, look again, load, store under the lease. All loads that
//! are stored go through here, except those of the naive ways to read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::conn::{Mutex, token};
use super::error::ReadError;
use super::handle::Inner;
use super::value::{Cached, Encoded, Format, Found, decode};
use super::{Load, Policy, Value};

/// Pauses, in milliseconds, between two looks at whether another node has finished its load. At
/// random, so that nodes do not look in step.
const LOOK_EVERY: std::ops::RangeInclusive<u64> = 3..=12;

/// How often a load is repeated because what it loaded was invalidated meanwhile.
const LOADS: u32 = 3;

/// Pause between attempts to give a mutex back.
const RELEASE_EVERY: Duration = Duration::from_millis(200);

/// What a load is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// There is no value: somebody waits for it.
    Miss,
    /// There is one, and it is served meanwhile: if somebody else replaces it, all is well.
    Replace,
}

/// A value, and whether it may be kept in memory.
pub(super) struct Loaded<T> {
    pub(super) value: Option<Arc<Cached<T>>>,
    /// It is what Redis holds, unless it was invalidated after the caller's stamp.
    pub(super) keep: bool,
}

impl<T> Loaded<T> {
    fn new(value: Option<T>, keep: bool) -> Self {
        Self { value: value.map(|value| Arc::new(Cached::new(value))), keep }
    }
}

impl Inner {
    /// Load `key` once in the whole cluster, or take what somebody else has loaded.
    pub(super) async fn rebuild<T: Value, E>(
        self: &Arc<Self>,
        key: &str,
        policy: &Policy,
        format: Format,
        purpose: Purpose,
        load: &impl Load<T, E>,
    ) -> Result<Loaded<T>, ReadError<E>> {
        if purpose == Purpose::Miss && self.filtered(key, policy).await {
            return Ok(Loaded::new(None, false));
        }
        let give_up = Instant::now() + policy.wait_limit.min(Duration::from_secs(3600));
        let ahead = if format == Format::Plain { policy.ahead() } else { Duration::ZERO };
        let mut replace = purpose == Purpose::Replace;
        let mut loads = 0;
        loop {
            let owner = token();
            // Whoever has waited long enough loads without the mutex: its holder may be dead.
            let waited = purpose == Purpose::Miss && Instant::now() >= give_up;
            let mutex = (!waited).then(|| mutex(key, owner.clone(), policy));
            let mutex = mutex.as_ref();
            let was_open = self.conn.breaker().is_open();
            let claim = match self.conn.claim(key, &owner, mutex, replace).await {
                Ok(claim) => claim,
                Err(error) => {
                    tracing::debug!(key, fault = %error, "loading without Redis");
                    if !was_open && let Some(mutex) = mutex {
                        self.release_later(mutex);
                    }
                    return self.load_only(policy, load).await;
                }
            };
            let found = decode(claim.text.as_deref(), Some(claim.pttl), ahead);
            let there = match found {
                Found::Absent => Some(None),
                Found::Fresh(value) => Some(Some(value)),
                Found::Stale(value) if !replace => Some(Some(value)),
                Found::Missing | Found::Stale(_) | Found::Unreadable => None,
            };
            if let Some(value) = there {
                if claim.lease.is_some()
                    && let Some(mutex) = mutex
                {
                    self.release(mutex).await;
                }
                return Ok(Loaded::new(value, true));
            }
            let Some(lease) = claim.lease else {
                if purpose == Purpose::Replace {
                    return Ok(Loaded::new(None, false));
                }
                // A text that cannot be read keeps nobody from loading.
                if claim.text.is_some() && !replace {
                    replace = true;
                    continue;
                }
                policy.counters.0.waits.up();
                let pause = Duration::from_millis(rand::random_range(LOOK_EVERY));
                tokio::time::sleep(pause).await;
                continue;
            };
            loads += 1;
            let value = match self.loader.run(policy, load).await {
                Ok(value) => value,
                Err(error) => {
                    if let Some(mutex) = mutex {
                        self.release(mutex).await;
                    }
                    return Err(error);
                }
            };
            match self.store(key, &lease, policy, format, value.as_ref(), mutex).await {
                Some(true) => return Ok(Loaded::new(value, true)),
                // Invalidated since the load began: what was loaded may be old.
                Some(false) if loads < LOADS => policy.counters.0.refused.up(),
                _ => return Ok(Loaded::new(value, false)),
            }
        }
    }

    /// Load without Redis, and keep nothing.
    pub(super) async fn load_only<T, E>(
        &self,
        policy: &Policy,
        load: &impl Load<T, E>,
    ) -> Result<Loaded<T>, ReadError<E>> {
        policy.counters.0.bypassed.up();
        Ok(Loaded::new(self.loader.run(policy, load).await?, false))
    }

    /// Whether the policy's filter is sure that `key` does not exist.
    pub(super) async fn filtered(&self, key: &str, policy: &Policy) -> bool {
        let Some(filter) = &policy.filter else { return false };
        let absent = !filter.may_contain(key).await;
        if absent {
            policy.counters.0.filtered.up();
        }
        absent
    }

    /// Store what was loaded, and give the mutex back. `None`: that could not be confirmed.
    pub(super) async fn store<T: Value>(
        self: &Arc<Self>,
        key: &str,
        lease: &str,
        policy: &Policy,
        format: Format,
        value: Option<&T>,
        mutex: Option<&Mutex>,
    ) -> Option<bool> {
        let encoded = match (value, format) {
            (None, _) => Ok(Encoded::null(policy.null_ttl)),
            (Some(value), Format::Plain) => Encoded::plain(value, policy.ttl),
            (Some(value), Format::Logical) => Encoded::logical(value, policy.fresh_for),
        };
        let stored = match encoded {
            Ok(encoded) => self.conn.store(key, lease, &encoded, mutex).await,
            Err(error) => Err(error.into()),
        };
        match stored {
            Ok(stored) => Some(stored),
            Err(error) => {
                tracing::warn!(key, fault = %error, "a loaded value was not stored");
                if let Some(mutex) = mutex {
                    self.release_later(mutex);
                }
                None
            }
        }
    }

    async fn release(self: &Arc<Self>, mutex: &Mutex) {
        if let Err(error) = self.conn.release(mutex).await {
            tracing::debug!(key = mutex.key, fault = %error, "mutex not given back yet");
            self.release_later(mutex);
        }
    }

    /// Give a mutex back that may be ours, before its time to live does.
    fn release_later(self: &Arc<Self>, mutex: &Mutex) {
        let (inner, mutex) = (self.clone(), mutex.clone());
        self.tasks.spawn(async move {
            let until = Instant::now() + mutex.ttl.min(Duration::from_secs(60));
            while Instant::now() < until {
                tokio::time::sleep(RELEASE_EVERY).await;
                if inner.conn.release(&mutex).await.is_ok() {
                    return;
                }
            }
        });
    }
}

/// The mutex of `key`: `lock:shop:7` for `cache:shop:7`. It is a string; names of other locks, such
/// as `lock:order:…`, must not be those of cached keys.
fn mutex(key: &str, owner: String, policy: &Policy) -> Mutex {
    let name = key.strip_prefix("cache:").unwrap_or(key);
    Mutex { key: format!("lock:{name}"), owner, ttl: policy.mutex_ttl }
}
