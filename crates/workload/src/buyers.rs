//! A signed-in buyer, and the requests that prepare a sale.

use std::{fmt, time::Duration};

use hyper::header::HeaderValue;
use serde::Deserialize;

use crate::{
    Error, Target,
    http::{Call, Connection, Response},
};

pub use crate::reply::Envelope;

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
