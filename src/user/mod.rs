//! Users: sign-in by phone and code, sign-out, and profiles. An unknown phone is registered
//! at its first sign-in.

use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::error::Error;
use crate::http::docs::{Done, Found, Success};
use crate::http::extract::{Json, Params, Path};
use crate::http::reply::{self, Reply};
use crate::request::client_address::ClientAddress;
use crate::session::{CurrentUser, ProcessSessions, SharedSessions, Token};

pub mod code;
pub mod phone;
pub mod store;

use code::Codes;
use phone::Phone;
use store::UserStore;

/// State of the user routes.
#[derive(Clone)]
#[allow(missing_docs)] // the parts under their names
pub struct Users {
    pub store: UserStore,
    /// On the connections of reads.
    pub reads: UserStore,
    pub codes: Codes,
    pub sessions: SharedSessions,
    /// Sessions in this process's memory, beside the others: with `--lab` only.
    pub in_memory: Option<ProcessSessions>,
}

/// A phone that wants to sign in.
#[derive(Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
pub struct CodeRequest {
    /// A mainland mobile number of 11 digits. Needed, here or in the form.
    #[param(example = "13800138000", required = false)]
    #[schema(example = "13800138000")]
    phone: String,
}

/// A phone and the code it was sent. A missing field is an empty one, refused by its own text.
#[derive(Deserialize, ToSchema)]
pub struct LoginRequest {
    /// A mainland mobile number of 11 digits.
    #[serde(default)]
    #[schema(example = "13800138000")]
    phone: String,
    /// The six digits of the code: valid for two minutes, once.
    #[serde(default)]
    #[schema(example = "123456")]
    code: String,
}

/// Sends a sign-in code.
///
/// The phone comes as a query parameter or in a form. A code is valid for two minutes and for one sign-in;
/// an earlier one is invalid. The codes per phone in two minutes and per address in ten are limited. 503 means that the code is
/// not known to be sent: ask for another. On a server that sends no messages the code is in its log
/// (`RUST_LOG=info,seckill::user::code=debug`) and in Redis under `login:code:{phone}`.
#[utoipa::path(
    post, path = "/user/code", tag = "user", params(CodeRequest),
    request_body(
        content = CodeRequest, content_type = "application/x-www-form-urlencoded",
        description = "The phone as a form; read where the address has no query."
    ),
    responses((status = 200, body = Done, description = "The code is on its way.")),
    extensions(("x-codes" = json!(["PHONE_INVALID", "TOO_MANY_REQUESTS"]))),
)]
pub async fn send_code(
    State(users): State<Users>,
    from: ClientAddress,
    Params(request): Params<CodeRequest>,
) -> Reply<()> {
    let phone = Phone::parse(&request.phone).ok_or(Error::PhoneInvalid)?;
    users.codes.send(&phone, from).await?;
    Ok(reply::done())
}

/// The sign-in code that was last sent to a phone (lab only).
///
/// For trying the service without a phone; only on a server that is started with `--lab`.
#[utoipa::path(
    get, path = "/lab/code/{phone}", tag = "lab",
    params(("phone" = String, Path, description = "Eleven digits.", example = "13800138000")),
    responses((status = 200, description = "Six digits.", body = Success<String>, example = json!({"success": true, "data": "123456"}))),
    extensions(("x-codes" = json!(["PHONE_INVALID", "CODE_INVALID"]))),
)]
pub async fn sent_code(State(users): State<Users>, Path(phone): Path<String>) -> Reply<String> {
    let phone = Phone::parse(&phone).ok_or(Error::PhoneInvalid)?;
    Ok(reply::data(
        users.codes.sent(&phone).await?.ok_or(Error::CodeInvalid)?,
    ))
}

/// Spends the code, registers the phone if it is new, and opens a session.
///
/// The token goes into the header `authorization` of later requests. A session ends 36 000 minutes after its
/// last request.
#[utoipa::path(
    post, path = "/user/login", tag = "user", request_body = LoginRequest,
    responses((
        status = 200, description = "The session's token, 32 hexadecimal characters.", body = Success<String>,
        example = json!({"success": true, "data": "0123456789abcdef0123456789abcdef"})
    )),
    extensions(("x-codes" = json!(["PHONE_INVALID", "CODE_INVALID", "TOO_MANY_REQUESTS"]))),
)]
pub async fn login(
    State(users): State<Users>,
    from: ClientAddress,
    Json(request): Json<LoginRequest>,
) -> Reply<String> {
    let token = users
        .sessions
        .create(&users.verified(from, request).await?)
        .await?;
    Ok(reply::data(token.as_str().to_owned()))
}

/// Signs in as `POST /user/login` does, and keeps the session in this instance's memory (lab only).
///
/// The token goes into the cookie `SESSION`, as in a servlet container. Other instances do not know it, nor do purchases.
/// For seeing that; only on a server that is started with `--lab`.
#[utoipa::path(
    post, path = "/lab/login", tag = "lab", request_body = LoginRequest,
    responses((
        status = 200, description = "The token, which the cookie has, too.", body = Success<String>,
        example = json!({"success": true, "data": "0123456789abcdef0123456789abcdef"})
    )),
    extensions(("x-codes" = json!(["PHONE_INVALID", "CODE_INVALID", "TOO_MANY_REQUESTS"]))),
)]
pub async fn login_in_memory(
    State(users): State<Users>,
    from: ClientAddress,
    Json(request): Json<LoginRequest>,
) -> Result<Response, Error> {
    let sessions = users.in_memory.as_ref().ok_or(Error::NotFound)?;
    let token = sessions.create(users.verified(from, request).await?);
    Ok((
        [(SET_COOKIE, token.cookie())],
        reply::data(token.as_str().to_owned()),
    )
        .into_response())
}

impl Users {
    /// Spends the code; returns the user of the phone.
    async fn verified(
        &self,
        from: ClientAddress,
        request: LoginRequest,
    ) -> Result<CurrentUser, Error> {
        let phone = Phone::parse(&request.phone).ok_or(Error::PhoneInvalid)?;
        if !self.codes.spend(&phone, &request.code, from).await? {
            return Err(Error::CodeInvalid);
        }
        self.store.find_or_register(&phone).await
    }
}

/// Ends the session, on every node.
#[utoipa::path(
    post, path = "/user/logout", tag = "user", security(("authorization" = [])),
    responses((status = 200, body = Done, description = "The token is worth nothing any more.")),
)]
pub async fn logout(State(users): State<Users>, token: Token) -> Reply<()> {
    users.sessions.end(token).await?;
    if let Some(in_memory) = &users.in_memory {
        in_memory.end(token);
    }
    Ok(reply::done())
}

/// The signed-in user.
#[utoipa::path(
    get, path = "/user/me", tag = "user", security(("authorization" = [])),
    responses((status = 200, body = Success<CurrentUser>, description = "The caller.")),
)]
pub async fn me(user: CurrentUser) -> Reply<CurrentUser> {
    Ok(reply::data(user))
}

/// Another user; an unknown one is a success without data.
#[utoipa::path(
    get, path = "/user/{id}", tag = "user", security(("authorization" = [])),
    params(("id" = i64, Path, description = "The user's id.", example = 1)),
    responses((status = 200, body = Found<CurrentUser>, description = "The user, where there is one.")),
)]
pub async fn get(State(users): State<Users>, Path(id): Path<i64>) -> Reply<CurrentUser> {
    Ok(reply::maybe(users.reads.find(id).await?))
}
