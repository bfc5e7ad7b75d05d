//! Signed-in buyers, the requests that prepare a sale, and the buyers of a file of tokens.

use std::{
    collections::HashSet,
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::header::HeaderValue;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::{
    Error, Target,
    http::{Call, Connection, Response},
    live::{Live, Progress},
};

pub use crate::reply::Envelope;

/// Tokens that are asked about at once.
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
    let tokens: Result<Vec<_>, _> = tokens.map(HeaderValue::from_str).collect();
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
    let (tokens, live) = (Arc::new(Mutex::new(tokens.into_iter())), Arc::new(Live::default()));
    let mut workers = JoinSet::new();
    for target in targets.iter().cycle().take(PARALLEL) {
        let (target, tokens, live) = (target.clone(), tokens.clone(), live.clone());
        workers.spawn(async move {
            let mut connection = Connection::new(target.clone(), LIMIT);
            let mut buyers = Vec::new();
            let next = || tokens.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(token) = next() {
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
        Ok::<_, Error>(buyers)
    };
    let buyers = progress.watch("reading sessions", count as u64, &live, gather).await?;
    let users: HashSet<u64> = buyers.iter().map(|buyer| buyer.user_id).collect();
    if users.len() < buyers.len() {
        return Err(Error::Usage(format!(
            "{} has several tokens of one user: give one token per user",
            file.display()
        )));
    }
    Ok(buyers)
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
