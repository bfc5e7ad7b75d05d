//! The extractor of the client's address.

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::error::Error;
use crate::request::client_address::ClientAddress;

/// The header in which a proxy names its client.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The other end of the connection, put into each request by the listener.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

impl<S: Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let peer = parts.extensions.get::<Peer>().copied();
        let Peer(peer) = peer.ok_or_else(|| Error::Internal("a request without a peer".into()))?;
        let forwarded_for = parts.headers.get(FORWARDED_FOR).and_then(|value| value.to_str().ok());
        Ok(ClientAddress::new(peer, forwarded_for))
    }
}
