//! Taking a lock of the family and waiting for it. Knows that a claim can be tried and that its
//! channel tells when to try again, not what is written where.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::claim::Claim;
use super::commands::Taken;
use super::conn::{Connection, Failure};
use super::guard::Grip;
use super::hold::Hold;
use super::kind::Kind;
use super::limit::by;
use super::locks::Locks;
use super::name::LockName;
use super::place::Place;
use super::settle::settle;
use super::wake::Wake;
use super::{Error, LostReason, Owner};

const OPERATION: &str = "acquire";

/// What a lock has to know to be taken.
#[derive(Clone)]
pub(super) struct Taker {
    pub(super) locks: Locks,
    pub(super) name: LockName,
    pub(super) kind: Kind,
    /// A fixed lease, or `None` for the watchdog.
    pub(super) lease: Option<Duration>,
}

/// How one try ended.
enum Attempt {
    Won(Grip),
    /// Somebody else has it for so many milliseconds; below zero: without expiry.
    Held(i64),
}

impl Taker {
    pub(super) fn connection(&self) -> &Connection {
        &self.locks.shared().connection
    }

    pub(super) fn claim(&self, owner: &Owner) -> Claim {
        Claim { name: self.name.clone(), kind: self.kind, owner: *owner }
    }

    /// One try, without waiting or queueing.
    pub(super) async fn take_at_once(&self, owner: &Owner) -> Result<Option<Grip>, Error> {
        let began = Instant::now();
        let end = self.attempt(&self.claim(owner), None).await.map(|attempt| match attempt {
            Attempt::Won(grip) => Some(grip),
            Attempt::Held(_) => None,
        });
        let counters = self.locks.shared().counters.of(self.kind);
        counters.acquired(&end, began.elapsed(), false);
        end
    }

    /// Takes the lock, waiting for it until the limit.
    pub(super) async fn wait(
        &self,
        owner: &Owner,
        until: Option<Instant>,
    ) -> Result<Option<Grip>, Error> {
        let began = Instant::now();
        let end = self.wait_until(owner, until).await;
        let counters = self.locks.shared().counters.of(self.kind);
        counters.acquired(&end, began.elapsed(), true);
        end
    }

    /// Acquire, subscribe, acquire again, sleep until a message or the holder's lease ends, repeat.
    /// The second acquire closes the gap before the subscription; from then on each try is made
    /// with the next message already awaited, so that none falls between a try and the sleep.
    async fn wait_until(
        &self,
        owner: &Owner,
        until: Option<Instant>,
    ) -> Result<Option<Grip>, Error> {
        let shared = self.locks.shared();
        let claim = self.claim(owner);
        // Only a fair lock keeps a queue, and with it the duty to show oneself.
        let (place, longest_nap) = match self.kind {
            Kind::Fair => (Some(Place::new(shared, &claim)), shared.config.lease / 3),
            _ => (None, shared.config.lease),
        };
        let patience = place.is_some().then_some(shared.config.lease);
        if let Attempt::Won(grip) = by(until, OPERATION, self.attempt(&claim, patience)).await? {
            return Ok(Some(grip));
        }
        let subscription = shared.topics.join(&claim.channel());
        let hearing = shared.config.connect_timeout + shared.config.command_timeout;
        let hear_by = until.into_iter().fold(Instant::now() + hearing, Instant::min);
        let heard = async {
            subscription.heard().await;
            Ok(())
        };
        by(Some(hear_by), "subscribe", heard).await?;

        let mut wake = Wake::none();
        loop {
            let mut message = pin!(subscription.message());
            message.as_mut().enable();
            let held = by(until, OPERATION, self.attempt(&claim, patience)).await?;
            wake.spend();
            let left = match held {
                Attempt::Won(grip) => return Ok(Some(grip)),
                Attempt::Held(left) => left,
            };
            // A key without expiry is looked at once per lease: its holder may not be a lock.
            let nap = u64::try_from(left).map_or(longest_nap, Duration::from_millis);
            let nap = nap.clamp(Duration::from_millis(1), longest_nap);
            let nap_until = until.into_iter().fold(Instant::now() + nap, Instant::min);
            tokio::select! {
                () = &mut message => wake = subscription.wake(),
                () = tokio::time::sleep_until(nap_until) => {}
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
        }
    }

    /// One try, finished by the janitor if the caller goes away.
    async fn attempt(&self, claim: &Claim, patience: Option<Duration>) -> Result<Attempt, Error> {
        let janitor = &self.locks.shared().janitor;
        let work = attempt(self.locks.clone(), claim.clone(), self.lease, patience);
        janitor.finish(work).await
    }
}

/// Send one acquire command and draw the consequences of its reply. With `patience` a place in the
/// queue is taken where there is one.
async fn attempt(
    locks: Locks,
    claim: Claim,
    fixed: Option<Duration>,
    patience: Option<Duration>,
) -> Result<Attempt, Error> {
    let shared = locks.shared().clone();
    shared.open()?;
    let entry = shared.registry.enter(&claim);
    let limit = shared.connection.timeout();
    let Ok(turn) = tokio::time::timeout(limit, entry.turn.lock()).await else {
        let cause = "another operation of this owner is still under way".to_owned();
        return Err(Error::Unavailable { operation: OPERATION, cause });
    };
    let wanted = fixed.unwrap_or(shared.config.lease);
    loop {
        let sent = Instant::now();
        let current = entry.live();
        if let Some(held) = clash(&locks, &claim, current.as_deref()) {
            return Err(Error::OtherKind { held, wanted: claim.kind });
        }
        let (depth, lease) = current.as_ref().map_or((1, wanted), |hold| hold.next(wanted, sent));
        let reply = shared.connection.take(&claim, lease, depth, patience).await;
        let failure = match (reply, current) {
            (Ok(Taken::No(left)), None) => return Ok(Attempt::Held(left)),
            (Ok(Taken::No(left)), Some(hold)) => {
                // What we thought to re-enter is gone: say so, and see whether the lock is free.
                let gone = left == -2;
                shared.lose(&hold, if gone { LostReason::Expired } else { LostReason::Taken });
                continue;
            }
            // Nobody polled us for so long that the lease is over before it began.
            (Ok(Taken::Yes { .. }), _) if Instant::now() >= sent + lease => {
                Failure::Unknown("the answer was read after the lease had ended".to_owned())
            }
            (Ok(Taken::Yes { fence }), current) => {
                let renew = fixed.is_none();
                let entered = match current {
                    Some(hold) => hold.entered(sent, lease, renew).map(|at| (at, hold)),
                    None => {
                        let id = shared.id();
                        let hold = Hold::new(id, claim.clone(), fence, lease, renew);
                        let hold = Arc::new(hold);
                        entry.begin(hold.clone());
                        shared.counters.of(hold.claim.kind).begun();
                        hold.entered(sent, lease, renew).map(|at| (at, hold))
                    }
                };
                // The hold ended while its re-entry was under way: begin anew, as a first acquire.
                let Some((look_at, hold)) = entered else { continue };
                shared.timetable.file(&hold, look_at);
                drop(turn);
                return Ok(Attempt::Won(Grip::new(locks, entry, hold)));
            }
            (Err(failure), _) => failure,
        };
        if matches!(failure, Failure::Unknown(_)) {
            let until = Instant::now() + lease;
            shared.janitor.run(settle(shared.clone(), claim, until));
        }
        return Err(failure.unavailable(OPERATION));
    }
}

/// How the owner already holds this lock, if that rules out taking it as claimed.
fn clash(locks: &Locks, claim: &Claim, current: Option<&Hold>) -> Option<Kind> {
    if let Some(hold) = current {
        return Some(hold.claim.kind).filter(|held| *held != claim.kind);
    }
    let other = locks.shared().registry.other_side(claim)?.claim.kind;
    // Who writes may read as well, and keep reading when the writing is over. Not the reverse.
    (!(claim.kind == Kind::Read && other == Kind::Write)).then_some(other)
}
