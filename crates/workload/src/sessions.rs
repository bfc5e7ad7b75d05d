//! Buyers with sessions, written straight into Redis: a load is not about signing in, and sessions must be there again
//! right after Redis has forgotten them.

use std::time::Duration;

use hyper::header::HeaderValue;
use rand::Rng;

use crate::{Access, Error, buyers::Buyer, redis_connection};

/// Sessions written at a time.
const AT_A_TIME: usize = 1_000;
/// How long a session lasts, in seconds: as after a sign-in, so that the service does not renew it at once.
const TTL: u32 = 36_000 * 60;

/// The first of the ids of [`signed_in`] buyers: above all others, and exact in JavaScript.
const FIRST: std::ops::Range<u64> = 10_000_000_000..1_000_000_000_000;

/// `count` new buyers with random ids, and sessions.
pub async fn signed_in(access: &Access, count: usize) -> Result<Vec<Buyer>, Error> {
    let buyers = buyers(rand::rng().random_range(FIRST), count);
    open(access, &buyers).await?;
    Ok(buyers)
}

/// `count` buyers with ids from `first` on. They have no sessions yet.
pub fn buyers(first: u64, count: usize) -> Vec<Buyer> {
    let buyer = |user_id| {
        let token = format!("{:032x}", rand::random::<u128>());
        let mut token = HeaderValue::try_from(token).expect("hexadecimal digits");
        token.set_sensitive(true);
        Buyer { user_id, token }
    };
    (first..).take(count).map(buyer).collect()
}

/// Opens the sessions of `buyers`, those in front first.
pub async fn open(access: &Access, buyers: &[Buyer]) -> Result<(), Error> {
    for_each_session(access, buyers, |pipe, key, buyer| {
        let name = format!("user_{}", buyer.user_id);
        pipe.cmd("HSET")
            .arg(&key)
            .arg("id")
            .arg(buyer.user_id)
            .arg("nickName")
            .arg(name);
        pipe.arg("icon").arg("").ignore();
        pipe.cmd("EXPIRE").arg(&key).arg(TTL).ignore();
    })
    .await
}

/// Ends their sessions.
pub async fn end(access: &Access, buyers: &[Buyer]) -> Result<(), Error> {
    for_each_session(access, buyers, |pipe, key, _| {
        pipe.cmd("UNLINK").arg(&key).ignore();
    })
    .await
}

/// How many times commands are sent: a master that has just been replaced may break the connection, or the one that is
/// being made. Each of these commands may run twice.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(500);

/// Sends the commands that `add_commands` adds for each buyer and the key of its session.
async fn for_each_session(
    access: &Access,
    buyers: &[Buyer],
    add_commands: impl Fn(&mut redis::Pipeline, String, &Buyer),
) -> Result<(), Error> {
    let mut redis = redis_connection::open(&access.redis_url)?.commands();
    for buyers in buyers.chunks(AT_A_TIME) {
        let mut pipe = redis::pipe();
        for buyer in buyers {
            let key = format!("login:token:{}", buyer.token.to_str().unwrap_or_default());
            add_commands(&mut pipe, key, buyer);
        }
        let mut attempt = 1;
        while let Err(error) = pipe.query_async::<()>(&mut redis).await {
            if attempt == ATTEMPTS {
                return Err(Error::Redis {
                    what: "while writing sessions",
                    source: error,
                });
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}
