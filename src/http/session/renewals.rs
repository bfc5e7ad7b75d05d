//! Looking sessions up and renewing them, together: requests that arrive while a round trip runs share the
//! next one. In a rush every buyer's first request asks for a session, and a script for each would
//! cost Redis and this process more than the rest of the request. Nothing waits for a timer: who comes alone
//! travels alone.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Script;
use redis::aio::ConnectionManager;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{CurrentUser, SESSION_TTL, Token};
use crate::error::Error;

static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/session_renew.lua")));

/// Sessions that one script renews at most: it keeps Redis busy for about 2 µs each.
const TOGETHER: usize = 128;

/// How much of its time to live passes before a session's starts anew. A write at every request would cost
/// more than the look, for a minute in 25 days.
const RENEWED_EVERY: Duration = Duration::from_secs(60);

/// Round trips at once: while one travels, Redis works on the other.
const ROUND_TRIPS: usize = 2;

type Renewed = Result<Option<CurrentUser>, Error>;

/// A request that waits.
struct Asked {
    token: Token,
    answer: oneshot::Sender<Renewed>,
}

/// The queue and its round trips. Cheap to clone.
#[derive(Clone)]
pub(super) struct Renewals {
    /// Without a bound of its own: each place in it is a request that is in flight.
    queue: mpsc::UnboundedSender<Asked>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Renewals {
    /// Renewals on this Redis, until [`Renewals::shutdown`].
    pub fn start(redis: ConnectionManager) -> Self {
        let (queue, asked) = mpsc::unbounded_channel();
        let asked = Arc::new(Mutex::new(asked));
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        for _ in 0..ROUND_TRIPS {
            let travelling = travel(redis.clone(), asked.clone());
            tasks.spawn(stop.clone().run_until_cancelled_owned(travelling));
        }
        tasks.close();
        Renewals { queue, tasks, stop }
    }

    /// Looks a session up and starts its time to live anew.
    pub async fn renew(&self, token: Token) -> Renewed {
        let (answer, answered) = oneshot::channel();
        let gone = || Error::Unavailable("Redis");
        self.queue.send(Asked { token, answer }).map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Ends the round trips.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

/// The user of the next session in the script's answer; none where its id is no number.
fn user(fields: &mut impl Iterator<Item = String>) -> Option<CurrentUser> {
    let (id, nick_name, icon) = (fields.next()?, fields.next()?, fields.next()?);
    Some(CurrentUser { id: id.parse().ok()?, nick_name, icon })
}

/// One round trip after another.
async fn travel(mut redis: ConnectionManager, queue: Arc<Mutex<mpsc::UnboundedReceiver<Asked>>>) {
    let mut asked = Vec::with_capacity(TOGETHER);
    // The lock is held while the queue is empty: the other task then has nothing to take either.
    while queue.lock().await.recv_many(&mut asked, TOGETHER).await > 0 {
        let mut script = RENEW.prepare_invoke();
        script.arg(SESSION_TTL.as_secs()).arg(RENEWED_EVERY.as_secs());
        for Asked { token, .. } in &asked {
            script.key(token.key());
        }
        let found: redis::RedisResult<Vec<String>> = script.invoke_async(&mut redis).await;
        // Whoever hung up is not told, which is why a failed send is no failure.
        match found {
            Ok(found) => {
                let mut fields = found.into_iter();
                for Asked { answer, .. } in asked.drain(..) {
                    answer.send(Ok(user(&mut fields))).ok();
                }
            }
            Err(fault) => {
                let fault = Error::from(fault);
                for Asked { answer, .. } in asked.drain(..) {
                    answer.send(Err(fault.clone())).ok();
                }
            }
        }
    }
}
