//! Waiting for permits: subscribed with the others, and in line with those of this process. Knows
//! nothing of what is waited for.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::Error;
use super::limit::by;
use super::locks::Shared;

/// How one try ended.
pub(super) enum Try<T> {
    Got(T),
    /// There is none; the next may come free without a message after so long.
    None(Option<Duration>),
}

/// Try, subscribe, line up; then, as the first in line, try and sleep until a message. The next in
/// line tries in any case, so that one message about several permits serves several. `None` when
/// there was nothing to be had until `until`.
pub(super) async fn wait<T, F>(
    shared: &Shared,
    channel: &Arc<str>,
    until: Option<Instant>,
    mut attempt: impl FnMut() -> F,
) -> Result<Option<T>, Error>
where
    F: Future<Output = Result<Try<T>, Error>>,
{
    if let Try::Got(taken) = by(until, "acquire", attempt()).await? {
        return Ok(Some(taken));
    }
    let subscription = shared.topics.join(channel);
    let patience = shared.config.connect_timeout + shared.config.command_timeout;
    let hear_by = until.into_iter().fold(Instant::now() + patience, Instant::min);
    let heard = async {
        subscription.heard().await;
        Ok(())
    };
    by(Some(hear_by), "subscribe", heard).await?;

    let _first_in_line = match until {
        None => subscription.turn().await,
        Some(until) => match timeout_at(until, subscription.turn()).await {
            Ok(turn) => turn,
            Err(_) => return Ok(None),
        },
    };
    // The turn may have come with the limit.
    while until.is_none_or(|until| Instant::now() < until) {
        let mut message = pin!(subscription.message());
        message.as_mut().enable();
        let free_in = match by(until, "acquire", attempt()).await? {
            Try::Got(taken) => return Ok(Some(taken)),
            Try::None(free_in) => free_in,
        };
        // Messages can be lost (a denied channel, a client that gives and dies), so look now and
        // then, whatever is known.
        let nap = shared.config.lease / 3;
        let nap = free_in.map_or(nap, |free_in| free_in.min(nap));
        tokio::select! {
            () = &mut message => {}
            () = sleep_until(until.into_iter().fold(Instant::now() + nap, Instant::min)) => {}
        }
    }
    Ok(None)
}
