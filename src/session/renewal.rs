//! Looks sessions up and renews them, many in one round trip: at the start of a sale every buyer's first request needs
//! its session.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;
use redis::aio::ConnectionManager;

use super::token::{SESSION_TTL, Token};
use super::user::CurrentUser;
use crate::connection::coalescer::Coalescer;
use crate::error::Error;

static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/session_renew.lua")));

/// Sessions that one script call renews at most, so that it never blocks Redis for long.
const MAX_BATCH: usize = 128;

/// A session's time to live is renewed at most this often. A write at every request would cost more than the lookup,
/// for a minute in 25 days.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(60);

pub(super) type Renewed = Result<Option<CurrentUser>, Error>;

/// Starts the coalesced renewals on this Redis.
pub(super) fn start(redis: ConnectionManager) -> Coalescer<Token, Renewed> {
    Coalescer::start(MAX_BATCH, move |tokens| renew(redis.clone(), tokens))
}

async fn renew(mut redis: ConnectionManager, tokens: Vec<Token>) -> Vec<Renewed> {
    let mut script = RENEW.prepare_invoke();
    script.arg(SESSION_TTL.as_secs()).arg(RENEWAL_INTERVAL.as_secs());
    for token in &tokens {
        script.key(token.key());
    }
    let found: redis::RedisResult<Vec<String>> = script.invoke_async(&mut redis).await;
    match found {
        Ok(fields) => {
            let mut fields = fields.into_iter();
            tokens.iter().map(|_| Ok(user(&mut fields))).collect()
        }
        Err(error) => {
            let error = Error::from(error);
            tokens.iter().map(|_| Err(error.clone())).collect()
        }
    }
}

/// The user of the next session in the script's reply; `None` where its id is no number.
fn user(fields: &mut impl Iterator<Item = String>) -> Option<CurrentUser> {
    let (id, nick_name, icon) = (fields.next()?, fields.next()?, fields.next()?);
    Some(CurrentUser { id: id.parse().ok()?, nick_name, icon })
}
