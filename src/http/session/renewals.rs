//! Looking sessions up and renewing them, many in one round trip: in a rush every buyer's first request
//! asks for a session.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;
use redis::aio::ConnectionManager;

use super::{CurrentUser, SESSION_TTL, Token};
use crate::conn::shared_trip::SharedTrip;
use crate::error::Error;

static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/session_renew.lua")));

/// Sessions that one script renews at most, so that it never keeps Redis from others for long.
const TOGETHER: usize = 128;

/// How much of its time to live passes before a session's starts anew. A write at every request would cost
/// more than the look, for a minute in 25 days.
const RENEWED_EVERY: Duration = Duration::from_secs(60);

pub(super) type Renewed = Result<Option<CurrentUser>, Error>;

/// Renewals on this Redis.
pub(super) fn start(redis: ConnectionManager) -> SharedTrip<Token, Renewed> {
    SharedTrip::start(TOGETHER, move |tokens| renew(redis.clone(), tokens))
}

async fn renew(mut redis: ConnectionManager, tokens: Vec<Token>) -> Vec<Renewed> {
    let mut script = RENEW.prepare_invoke();
    script.arg(SESSION_TTL.as_secs()).arg(RENEWED_EVERY.as_secs());
    for token in &tokens {
        script.key(token.key());
    }
    let found: redis::RedisResult<Vec<String>> = script.invoke_async(&mut redis).await;
    match found {
        Ok(fields) => {
            let mut fields = fields.into_iter();
            tokens.iter().map(|_| Ok(user(&mut fields))).collect()
        }
        Err(fault) => {
            let fault = Error::from(fault);
            tokens.iter().map(|_| Err(fault.clone())).collect()
        }
    }
}

/// The user of the next session in the script's answer; none where its id is no number.
fn user(fields: &mut impl Iterator<Item = String>) -> Option<CurrentUser> {
    let (id, nick_name, icon) = (fields.next()?, fields.next()?, fields.next()?);
    Some(CurrentUser { id: id.parse().ok()?, nick_name, icon })
}
