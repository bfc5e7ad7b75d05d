//! The ways to read, each a few lines over the same parts. Which problem each one answers and what
//! it costs is told by its method.

use std::sync::Arc;
use std::time::Duration;

use super::error::Error;
use super::flight::{Boarding, Flights, Outcome};
use super::local::Stamp;
use super::rebuild::{Loaded, Purpose};
use super::value::{Cached, Format, Found, decode};
use super::{Cache, Inner, Kind, Load, Policy, Value};

/// A value of Redis, or none because Redis cannot be asked.
type Looked<T> = Option<Found<Arc<Cached<T>>>>;

impl Cache {
    /// Read `key` the way `kind` says. Every way answers `None` only for what does not exist.
    ///
    /// # Errors
    /// When the value has to be loaded and cannot be; a Redis that fails is no error.
    pub async fn read<T: Value, E: Send + Sync + 'static>(
        &self,
        kind: Kind,
        key: &str,
        policy: &Policy,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        match kind {
            Kind::CacheAside => self.read_aside(key, policy, load).await,
            Kind::NullCaching => self.read_through(key, policy, load).await,
            Kind::Mutex => self.read_with_mutex(key, policy, load).await,
            Kind::LogicalExpiry => self.read_with_logical_expiry(key, policy, load).await,
            Kind::Layered => self.read_layered(key, policy, load).await,
        }
    }

    /// Look, load, store: plain cache-aside, here to be compared with. An absent id reaches the
    /// source every time, and when a hot key expires, so does every reader.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_aside<T: Value, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &Policy,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        self.aside(key, policy, false, load).await
    }

    /// Cache-aside that remembers what does not exist, as `""` for a short time.
    /// Problem: *penetration* by repeated absent ids. Cost: a key in Redis for each of them; where
    /// there is no end of absent ids, set [`Policy::filter`].
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_through<T: Value, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &Policy,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        self.aside(key, policy, true, load).await
    }

    /// Of all that miss, one loads: in this process the others wait for its outcome, in other
    /// processes they look every few milliseconds. Problem: *breakdown*, a hot key that expires.
    /// Cost: readers wait for the load, at most [`Policy::wait_limit`] for one of another node.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_with_mutex<T: Value, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &Policy,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        let stamp = self.inner.local.stamp(key);
        match self.inner.look(key, policy, None).await {
            Some(Found::Fresh(value) | Found::Stale(value)) => Ok(Some(value)),
            Some(Found::Absent) => Ok(None),
            Some(Found::Missing | Found::Unreadable) => {
                self.load_shared(key, policy, stamp, Format::Plain, load).await
            }
            None => self.bypass(key, policy, stamp, load).await,
        }
    }

    /// Values carry the time until which they are fresh, and never leave Redis. Past it they are
    /// served on, while one task in the cluster loads anew in the background. A key that was never
    /// stored, or was invalidated, is loaded as with the mutex: missing does not mean absent.
    /// Problem: *breakdown*, with no reader waiting. Cost: old answers for one load after expiry,
    /// and keys that stay in Redis until somebody deletes them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_with_logical_expiry<T: Value, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &Policy,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        let stamp = self.inner.local.stamp(key);
        match self.inner.look(key, policy, None).await {
            Some(Found::Fresh(value)) => Ok(Some(value)),
            Some(Found::Stale(value)) => {
                policy.counters.0.stale_served.up();
                self.inner.replace(key, policy, stamp, Format::Logical, load);
                Ok(Some(value))
            }
            Some(Found::Absent) => Ok(None),
            Some(Found::Missing | Found::Unreadable) => {
                self.load_shared(key, policy, stamp, Format::Logical, load).await
            }
            None => self.bypass(key, policy, stamp, load).await,
        }
    }

    /// The one to use: memory → Redis, asked once per process → one load per process → one per
    /// cluster. A value about to expire is served while it is rebuilt.
    /// Problem: all of them. Cost: memory, and answers that are old by the time a message takes
    /// after an invalidation, by [`Policy::local_ttl`] at most.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_layered<T: Value, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &Policy,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        if let Some(value) = self.peek(key, policy) {
            // A task that reads from memory without end must let the others run.
            tokio::task::coop::consume_budget().await;
            return Ok(value);
        }
        let stamp = self.inner.local.stamp(key);
        let work = || {
            let (inner, key, policy) = self.owned(key, policy);
            async move { inner.layered(&key, &policy, stamp, load).await }
        };
        self.inner.fly(&self.inner.flights, key, policy, stamp, work).await
    }

    /// The value of `key` in this process's memory, without waiting for anything: what
    /// [`read_layered`](Self::read_layered) looks for first. `Some(None)`: it does not exist.
    pub fn peek<T: Value>(&self, key: &str, policy: &Policy) -> Option<Option<Arc<Cached<T>>>> {
        let value = self.inner.local.get(key)?;
        policy.counters.0.local_hits.up();
        Some(value)
    }

    async fn aside<T: Value, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &Policy,
        remember_nulls: bool,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        let stamp = self.inner.local.stamp(key);
        let replace = match self.inner.look(key, policy, None).await {
            Some(Found::Fresh(value) | Found::Stale(value)) => return Ok(Some(value)),
            Some(Found::Absent) => return Ok(None),
            Some(found) => matches!(found, Found::Unreadable),
            None => return self.bypass(key, policy, stamp, load).await,
        };
        if self.inner.filtered(key, policy).await {
            return Ok(None);
        }
        let claim = self.inner.conn.claim(key, &super::conn::token(), None, replace).await;
        let Ok(claim) = claim else { return self.bypass(key, policy, stamp, load).await };
        let value = self.inner.loader.run(policy, &load).await?;
        if let Some(lease) = claim.lease
            && (value.is_some() || remember_nulls)
        {
            let inner = &self.inner;
            // Not stored means: another reader was first, or the key was invalidated.
            inner.store(key, &lease, policy, Format::Plain, value.as_ref(), None).await;
        }
        Ok(value.map(|value| Arc::new(Cached::new(value))))
    }

    /// One load per process and cluster.
    async fn load_shared<T: Value, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &Policy,
        stamp: Stamp,
        format: Format,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        let work = || {
            let (inner, key, policy) = self.owned(key, policy);
            async move { Ok(inner.rebuild(&key, &policy, format, Purpose::Miss, &load).await?.value) }
        };
        self.inner.fly(&self.inner.flights, key, policy, stamp, work).await
    }

    /// Redis cannot be asked: one load per process, of which nothing is kept.
    async fn bypass<T: Value, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &Policy,
        stamp: Stamp,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        let work = || {
            let (inner, _, policy) = self.owned(key, policy);
            async move { Ok(inner.load_only(&policy, &load).await?.value) }
        };
        self.inner.fly(&self.inner.flights, key, policy, stamp, work).await
    }

    /// What a task needs that outlives its caller.
    fn owned(&self, key: &str, policy: &Policy) -> (Arc<Inner>, String, Policy) {
        (self.inner.clone(), key.to_owned(), policy.clone())
    }
}

impl Inner {
    /// Look into Redis, and count what was found. With `rebuild_ahead`, a value that has less than
    /// that left to live is stale.
    async fn look<T: Value>(
        &self,
        key: &str,
        policy: &Policy,
        rebuild_ahead: Option<Duration>,
    ) -> Looked<T> {
        if self.outbox.contains(key) {
            return None;
        }
        let answer = match rebuild_ahead {
            None => self.conn.get(key).await.map(|text| (text, None)),
            Some(_) => self.conn.get_with_ttl(key).await.map(|(text, pttl)| (text, Some(pttl))),
        };
        let (text, pttl) = match answer {
            Ok(answer) => answer,
            // The server answered: what it holds is of another kind.
            Err(Error::Rejected(cause)) => {
                tracing::warn!(key, fault = cause, "Redis cannot read this key as a cached value");
                policy.counters.0.unreadable.up();
                return None;
            }
            Err(_) => return None,
        };
        let counters = &policy.counters.0;
        Some(match decode(text.as_deref(), pttl, rebuild_ahead.unwrap_or_default()) {
            Found::Missing => Found::Missing,
            Found::Absent => {
                counters.null_hits.up();
                Found::Absent
            }
            Found::Fresh(value) => {
                counters.redis_hits.up();
                Found::Fresh(Arc::new(Cached::new(value)))
            }
            Found::Stale(value) => {
                counters.redis_hits.up();
                Found::Stale(Arc::new(Cached::new(value)))
            }
            Found::Unreadable => {
                tracing::warn!(key, "what Redis holds cannot be read; it is loaded anew");
                counters.unreadable.up();
                Found::Unreadable
            }
        })
    }

    async fn layered<T: Value, E: Send + Sync + 'static>(
        self: &Arc<Self>,
        key: &str,
        policy: &Policy,
        stamp: Stamp,
        load: impl Load<T, E>,
    ) -> Outcome<T, E> {
        let there = |value| Loaded { value, keep: true };
        let loaded = match self.look(key, policy, Some(policy.ahead())).await {
            Some(Found::Fresh(value)) => there(Some(value)),
            Some(Found::Stale(value)) => {
                policy.counters.0.stale_served.up();
                self.replace(key, policy, stamp, Format::Plain, load);
                there(Some(value))
            }
            Some(Found::Absent) => there(None),
            Some(Found::Missing | Found::Unreadable) => {
                self.rebuild(key, policy, Format::Plain, Purpose::Miss, &load).await?
            }
            None => self.load_only(policy, &load).await?,
        };
        if loaded.keep {
            self.local.put(key, stamp, loaded.value.as_ref(), policy.local_ttl);
        }
        Ok(loaded.value)
    }

    /// Replace a value that is served meanwhile, in the background, unless that is being done.
    fn replace<T: Value, E: Send + Sync + 'static>(
        self: &Arc<Self>,
        key: &str,
        policy: &Policy,
        stamp: Stamp,
        format: Format,
        load: impl Load<T, E>,
    ) {
        let Boarding::Lead(ticket, _) = self.rebuilds.board::<T, E>(key, stamp) else { return };
        let (inner, key, policy) = (self.clone(), key.to_owned(), policy.clone());
        self.tasks.spawn(async move {
            let done = inner.rebuild(&key, &policy, format, Purpose::Replace, &load).await;
            let outcome = done.map(|loaded| {
                // Logical expiry keeps nothing in memory: its entries would never be asked for.
                if loaded.keep && format == Format::Plain {
                    inner.local.put(&key, stamp, loaded.value.as_ref(), policy.local_ttl);
                }
                loaded.value
            });
            ticket.land(outcome);
        });
    }

    /// Have `work` done once for all who ask at the same time. It goes on when they go away.
    async fn fly<T: Value, E: Send + Sync + 'static, F>(
        &self,
        flights: &Arc<Flights>,
        key: &str,
        policy: &Policy,
        stamp: Stamp,
        work: impl FnOnce() -> F,
    ) -> Outcome<T, E>
    where
        F: Future<Output = Outcome<T, E>> + Send + 'static,
    {
        let seat = match flights.board(key, stamp) {
            Boarding::Join(seat) => {
                policy.counters.0.shared.up();
                seat
            }
            Boarding::Lead(ticket, seat) => {
                let work = work();
                self.tasks.spawn(async move { ticket.land(work.await) });
                seat
            }
        };
        seat.arrive().await
    }
}
