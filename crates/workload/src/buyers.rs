//! Signed-in buyers: through the real API, or from a file of tokens.
//!
//! Signing in needs the code that was "sent" to the phone. The tool belongs to the operator, so it
//! reads the code from Redis (`login:code:{phone}`) instead of a telephone.

use std::{
    collections::HashSet,
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::header::HeaderValue;
use redis::AsyncCommands;
use redis_link::RoutedConnection;
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    Access, Error, Target,
    http::{Call, Connection, Response},
    live::{Live, Progress},
    phones, redis_connection,
};

pub use crate::reply::Envelope;

/// Sign-ins under way at once.
const PARALLEL: usize = 32;
/// Time limit of one preparatory request.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A user with a session.
#[derive(Clone)]
pub struct Buyer {
    /// The user's id.
    pub user_id: u64,
    /// The session token, ready to be sent.
    pub token: HeaderValue,
}

impl fmt::Debug for Buyer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buyer").field("user_id", &self.user_id).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Me {
    id: u64,
}

/// Sends one preparatory request and insists on success.
pub async fn insist<T: for<'de> Deserialize<'de>>(
    connection: &mut Connection,
    target: &Target,
    call: &Call,
    what: &'static str,
    way_out: &'static str,
) -> Result<Option<T>, Error> {
    let Response { status, body, .. } = connection.send(call).await.map_err(|failure| {
        Error::Unreachable { url: target.to_string(), what, reason: failure.to_string() }
    })?;
    let envelope: Option<Envelope<T>> = serde_json::from_slice(&body).ok();
    match envelope {
        Some(Envelope { success: true, data, .. }) => Ok(data),
        Some(Envelope { code, error_msg, .. }) => Err(Error::Refused {
            what,
            status,
            code: code.unwrap_or_else(|| "no code".to_owned()),
            message: error_msg.unwrap_or_default(),
            way_out,
        }),
        None => Err(Error::Unreachable {
            url: target.to_string(),
            what,
            reason: format!("HTTP {status} without the reply envelope"),
        }),
    }
}

/// What a buyer is made of.
enum Origin {
    /// Signs in with this number; the code is in that Redis.
    Phone(String, RoutedConnection),
    /// Has signed in.
    Token(HeaderValue),
}

/// Registers and signs in `count` new users with random phones, spread over `targets`.
///
/// # Errors
/// Any refusal or outage ends it: with half of the buyers, the test would be another one.
pub async fn sign_in(
    access: &Access,
    targets: &[Target],
    count: usize,
    progress: Progress,
) -> Result<Vec<Buyer>, Error> {
    if access.redis_url.is_empty() {
        return Err(Error::Usage(
            "signing in needs the service's Redis, where the codes are: set REDIS_URL to the \
             service's own (`eval \"$(./dev env)\"`), give --redis-url, or use --tokens-file"
                .to_owned(),
        ));
    }
    let redis = redis_connection::connect(&access.redis_url).await?;
    let phones = phones::distinct(count, &mut rand::rng()).into_iter();
    let origins = phones.map(|phone| Origin::Phone(phone, redis.clone())).collect();
    buyers(targets, origins, "signing in buyers", progress).await
}

/// Reads the first `count` tokens of a file (one per line) and asks the service whose they are.
///
/// # Errors
/// An unreadable file, too few lines, expired tokens, or two tokens of one user: the checker must
/// be able to tell buyers apart.
pub async fn from_file(
    targets: &[Target],
    file: &Path,
    count: usize,
    progress: Progress,
) -> Result<Vec<Buyer>, Error> {
    let text = tokio::fs::read_to_string(file).await.map_err(Error::file(file))?;
    let tokens = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(count);
    let tokens: Result<Vec<_>, _> =
        tokens.map(|token| HeaderValue::from_str(token).map(Origin::Token)).collect();
    let tokens =
        tokens.map_err(|_| Error::Usage(format!("{} is not a file of tokens", file.display())))?;
    if tokens.len() < count {
        return Err(Error::Usage(format!(
            "{} holds {} tokens, and --buyers asks for {count}: `seckill seed --tokens {count} \
             --tokens-file {}` writes enough",
            file.display(),
            tokens.len(),
            file.display()
        )));
    }
    let buyers = buyers(targets, tokens, "reading sessions", progress).await?;
    let users: HashSet<u64> = buyers.iter().map(|buyer| buyer.user_id).collect();
    if users.len() < buyers.len() {
        return Err(Error::Usage(format!(
            "{} has several tokens of one user: give one token per user",
            file.display()
        )));
    }
    Ok(buyers)
}

/// The buyers of these origins, asked for over [`PARALLEL`] connections to the targets in turn.
async fn buyers(
    targets: &[Target],
    origins: Vec<Origin>,
    what: &str,
    progress: Progress,
) -> Result<Vec<Buyer>, Error> {
    if targets.is_empty() {
        return Err(Error::Usage("at least one target is needed".to_owned()));
    }
    let count = origins.len();
    let (origins, live) = (Arc::new(Mutex::new(origins.into_iter())), Arc::new(Live::default()));
    let mut workers = JoinSet::new();
    for target in targets.iter().cycle().take(PARALLEL) {
        let (target, origins, live) = (target.clone(), origins.clone(), live.clone());
        workers.spawn(async move {
            let mut connection = Connection::new(target.clone(), LIMIT);
            let mut buyers = Vec::new();
            let next = || origins.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(origin) = next() {
                let token = match origin {
                    Origin::Token(token) => token,
                    Origin::Phone(phone, redis) => {
                        sign_in_one(&mut connection, &target, redis, &phone).await?
                    }
                };
                buyers.push(who_is(&mut connection, &target, token).await?);
                live.count(false);
            }
            Ok::<_, Error>(buyers)
        });
    }
    let gather = async {
        let mut buyers = Vec::with_capacity(count);
        while let Some(joined) = workers.join_next().await {
            buyers.extend(joined??);
        }
        Ok(buyers)
    };
    progress.watch(what, count as u64, &live, gather).await
}

/// The token of a new session.
async fn sign_in_one(
    connection: &mut Connection,
    target: &Target,
    mut redis: RoutedConnection,
    phone: &str,
) -> Result<HeaderValue, Error> {
    let call = Call::post(format!("/user/code?phone={phone}"));
    insist::<()>(connection, target, &call, "a sign-in code", "Is the service healthy?").await?;
    let key = format!("login:code:{phone}");
    let code: Option<String> = redis
        .get(&key)
        .await
        .map_err(|source| Error::Redis { what: "while reading a sign-in code", source })?;
    let code = code.ok_or_else(|| {
        Error::Usage(format!(
            "the service sent a code, but {key} is not in Redis: REDIS_URL names another server \
             or database than the service uses (`./dev env` prints the right one)"
        ))
    })?;
    let call = Call::post("/user/login").json(&json!({"phone": phone, "code": code}));
    let way_out = "Does another service share this Redis?";
    let token: Option<String> = insist(connection, target, &call, "the sign-in", way_out).await?;
    HeaderValue::from_str(&token.unwrap_or_default())
        .map_err(|_| Error::Usage("the service gave an unusable session token".to_owned()))
}

async fn who_is(
    connection: &mut Connection,
    target: &Target,
    token: HeaderValue,
) -> Result<Buyer, Error> {
    let call = Call::get("/user/me").token(&token);
    let way_out = "The token has expired: sign in again, or `seckill seed` a new token file.";
    match insist::<Me>(connection, target, &call, "the user of a token", way_out).await? {
        Some(me) => Ok(Buyer { user_id: me.id, token }),
        None => Err(Error::Usage("GET /user/me names no user".to_owned())),
    }
}
