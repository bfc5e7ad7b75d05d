//! Users: signing in by phone and code, signing out, and who one is. An unknown phone is registered
//! at its first sign-in.

use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::error::Error;
use crate::http::address::ClientAddress;
use crate::http::extract::{Json, Params, Path};
use crate::http::reply::{self, Reply};
use crate::http::session::{CurrentUser, Sessions, Token};

pub mod code;
pub mod phone;
pub mod store;

use code::Codes;
use phone::Phone;
use store::UserStore;

/// The users, as the routes see them.
#[derive(Clone)]
pub struct Users {
    /// The SQL.
    pub store: UserStore,
    /// Sign-in codes.
    pub codes: Codes,
    /// Sessions, shared with the first sign-in layer.
    pub sessions: Sessions,
}

/// Parameters of `POST /user/code`.
#[derive(Deserialize)]
pub struct CodeRequest {
    phone: String,
}

/// Body of `POST /user/login`. A missing field is an empty one, refused by its own text.
#[derive(Deserialize)]
pub struct LoginRequest {
    #[serde(default)]
    phone: String,
    #[serde(default)]
    code: String,
}

/// `POST /user/code`: sends a sign-in code.
pub async fn send_code(
    State(users): State<Users>,
    from: ClientAddress,
    Params(request): Params<CodeRequest>,
) -> Reply<()> {
    let phone = Phone::parse(&request.phone).ok_or(Error::PhoneInvalid)?;
    users.codes.send(&phone, from).await?;
    Ok(reply::done())
}

/// `GET /lab/code/{phone}` (lab only): the code that was last sent to a phone, for those who have no phone.
pub async fn sent_code(State(users): State<Users>, Path(phone): Path<String>) -> Reply<String> {
    let phone = Phone::parse(&phone).ok_or(Error::PhoneInvalid)?;
    Ok(reply::data(users.codes.sent(&phone).await?.ok_or(Error::CodeInvalid)?))
}

/// `POST /user/login`: spends the code, registers the phone if it is new, and opens a session.
pub async fn login(
    State(users): State<Users>,
    from: ClientAddress,
    Json(request): Json<LoginRequest>,
) -> Result<Response, Error> {
    let phone = Phone::parse(&request.phone).ok_or(Error::PhoneInvalid)?;
    if !users.codes.spend(&phone, &request.code, from).await? {
        return Err(Error::CodeInvalid);
    }
    let user = users.store.find_or_register(&phone).await?;
    let token = users.sessions.create(&user).await?;
    let reply = reply::data(token.as_str().to_owned());
    Ok(if users.sessions.uses_cookie() {
        ([(SET_COOKIE, token.cookie())], reply).into_response()
    } else {
        reply.into_response()
    })
}

/// `POST /user/logout`: ends the session on every node.
pub async fn logout(State(users): State<Users>, token: Token) -> Reply<()> {
    users.sessions.end(token).await?;
    Ok(reply::done())
}

/// `GET /user/me`: who is signed in.
pub async fn me(user: CurrentUser) -> Reply<CurrentUser> {
    Ok(reply::data(user))
}

/// `GET /user/{id}`: another user; an unknown one is a success without data.
pub async fn get(State(users): State<Users>, Path(id): Path<i64>) -> Reply<CurrentUser> {
    Ok(reply::maybe(users.store.find(id).await?))
}
