//! Every way a request can fail, and the only place where a failure becomes a reply.
//!
//! Which error belongs where:
//! - **Business refusals** (sold out, not begun, …) are HTTP 200 with `success:false`: that is what
//!   existing clients read. Each means: this request made no order.
//! - **Transport faults** use real statuses with the same envelope.
//! - [`Error::Unavailable`] is *definite*: nothing was done. [`Error::OutcomeUnknown`] is the one
//!   failure after which an order may exist; it says so and names the id to look up.
//! - [`Error::Conflict`] and [`Error::DuplicateId`] are for [`crate::order::purchase`], which retries
//!   them; what survives the retries is answered as unavailable.
//!
//! `errorMsg` is for people and may change; `code` is for programs and may not.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::http::reply::Envelope;

/// Shorthand for results whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Seconds a client is told to wait before it tries again after a 503.
const RETRY_AFTER_SECONDS: u64 = 1;

/// A failed request. See the module's prose for which variant belongs where.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)] // each variant's text and code say it, and docs/ARCHITECTURE.md lists them
pub enum Error {
    // Business refusals: HTTP 200.
    #[error("库存不足！")]
    SoldOut,
    /// Compare-and-set only: the stock moved between read and write; there may be some left.
    #[error("库存不足！")]
    StockChanged,
    #[error("不能重复下单！")]
    AlreadyOrdered(Option<i64>),
    #[error("不允许重复下单")]
    LockBusy,
    #[error("秒杀尚未开始！")]
    SaleNotBegun,
    #[error("秒杀已经结束！")]
    SaleEnded,
    #[error("优惠券不存在！")]
    VoucherNotFound,
    #[error("店铺不存在")]
    ShopNotFound,
    #[error("店铺id不能为空")]
    ShopIdMissing,
    #[error("订单不存在！")]
    OrderNotFound,
    /// A pending order could not be made, by no fault of the buyer's.
    #[error("下单失败，请重试！")]
    OrderFailed,
    #[error("订单已取消！")]
    OrderCancelled,
    #[error("订单已支付！")]
    AlreadyPaid,
    #[error("订单已退款！")]
    OrderRefunded,
    #[error("手机号格式错误！")]
    PhoneInvalid,
    #[error("验证码错误!")]
    CodeInvalid,
    #[error("a run is under way; wait for its end, or stop it")]
    RunUnderWay,
    #[error("no such run; only the last ones are kept, as long as the instance lives")]
    RunNotFound,
    #[error("no run is selling; start one, then press the button")]
    NoRun,
    /// What the lab was to do to the servers could not be done.
    #[error("{0}")]
    LabFault(String),

    // Transport faults.
    #[error("malformed JSON: {0}")]
    MalformedJson(String),
    #[error("invalid parameter: {0}")]
    InvalidParameter(String),
    #[error("未登录")]
    Unauthorized,
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("strategy `{0}` is unsafe on purpose: it needs a server started with --lab")]
    LabOnly(&'static str),
    #[error("no such route")]
    NotFound,
    #[error("this route does not take that method")]
    MethodNotAllowed,
    #[error("the request body is larger than {0} bytes")]
    PayloadTooLarge(usize),
    #[error("the body must be sent as application/json")]
    UnsupportedMediaType,
    #[error("too many requests; try again in {retry_after_seconds} s")]
    TooManyRequests { retry_after_seconds: u64 },
    #[error("{0} is not available; nothing was done, try again")]
    Unavailable(&'static str),
    #[error("too many purchases in flight; nothing was done, try again")]
    Overloaded,
    #[error("the outcome is not known yet: look the order up before you try again")]
    OutcomeUnknown(Option<i64>),
    #[error("internal error")]
    Internal(String),

    // Retried inside a purchase.
    #[error("the transaction lost a deadlock or waited too long; nothing was done, try again")]
    Conflict,
    #[error("the order id was already taken; nothing was done, try again")]
    DuplicateId,
}

impl Error {
    /// The status and the stable code of this failure.
    pub fn status_and_code(&self) -> (StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Error::SoldOut => (S::OK, "SOLD_OUT"),
            Error::StockChanged => (S::OK, "STOCK_CHANGED"),
            Error::AlreadyOrdered(_) => (S::OK, "ALREADY_ORDERED"),
            Error::LockBusy => (S::OK, "LOCK_BUSY"),
            Error::SaleNotBegun => (S::OK, "SALE_NOT_BEGUN"),
            Error::SaleEnded => (S::OK, "SALE_ENDED"),
            Error::VoucherNotFound => (S::OK, "VOUCHER_NOT_FOUND"),
            Error::ShopNotFound => (S::OK, "SHOP_NOT_FOUND"),
            Error::ShopIdMissing => (S::OK, "SHOP_ID_MISSING"),
            Error::OrderNotFound => (S::OK, "ORDER_NOT_FOUND"),
            Error::OrderFailed => (S::OK, "ORDER_FAILED"),
            Error::OrderCancelled => (S::OK, "ORDER_CANCELLED"),
            Error::AlreadyPaid => (S::OK, "ALREADY_PAID"),
            Error::OrderRefunded => (S::OK, "ORDER_REFUNDED"),
            Error::PhoneInvalid => (S::OK, "PHONE_INVALID"),
            Error::CodeInvalid => (S::OK, "CODE_INVALID"),
            Error::RunUnderWay => (S::OK, "RUN_UNDER_WAY"),
            Error::RunNotFound => (S::OK, "RUN_NOT_FOUND"),
            Error::NoRun => (S::OK, "NO_RUN"),
            Error::LabFault(_) => (S::OK, "LAB_FAULT"),
            Error::MalformedJson(_) => (S::BAD_REQUEST, "MALFORMED_JSON"),
            Error::InvalidParameter(_) => (S::BAD_REQUEST, "INVALID_PARAMETER"),
            Error::Unauthorized => (S::UNAUTHORIZED, "UNAUTHORIZED"),
            Error::Forbidden(_) => (S::FORBIDDEN, "FORBIDDEN"),
            Error::LabOnly(_) => (S::FORBIDDEN, "LAB_ONLY"),
            Error::NotFound => (S::NOT_FOUND, "NOT_FOUND"),
            Error::MethodNotAllowed => (S::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            Error::PayloadTooLarge(_) => (S::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"),
            Error::UnsupportedMediaType => (S::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE"),
            Error::TooManyRequests { .. } => (S::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS"),
            Error::Unavailable(_) | Error::Conflict | Error::DuplicateId => {
                (S::SERVICE_UNAVAILABLE, "UNAVAILABLE")
            }
            Error::Overloaded => (S::SERVICE_UNAVAILABLE, "OVERLOADED"),
            Error::OutcomeUnknown(_) => (S::SERVICE_UNAVAILABLE, "OUTCOME_UNKNOWN"),
            Error::Internal(_) => (S::INTERNAL_SERVER_ERROR, "INTERNAL"),
        }
    }

    /// One of each kind, with values as they are: for the API's document.
    pub fn each() -> Vec<Error> {
        use Error as E;
        vec![
            E::SoldOut,
            E::StockChanged,
            E::AlreadyOrdered(None),
            E::LockBusy,
            E::SaleNotBegun,
            E::SaleEnded,
            E::VoucherNotFound,
            E::ShopNotFound,
            E::ShopIdMissing,
            E::OrderNotFound,
            E::OrderFailed,
            E::OrderCancelled,
            E::AlreadyPaid,
            E::OrderRefunded,
            E::PhoneInvalid,
            E::CodeInvalid,
            E::RunUnderWay,
            E::RunNotFound,
            E::NoRun,
            E::LabFault("there is only one instance, and it conducts".to_owned()),
            E::MalformedJson("expected `,` or `}` at line 1 column 20".to_owned()),
            E::InvalidParameter("payValue must be 0 to 10^9 cents".to_owned()),
            E::Unauthorized,
            E::Forbidden("x-admin-token is missing or wrong"),
            E::LabOnly("naive"),
            E::NotFound,
            E::MethodNotAllowed,
            E::PayloadTooLarge(65_536),
            E::UnsupportedMediaType,
            E::TooManyRequests { retry_after_seconds: 1 },
            E::Unavailable("the database"),
            E::Overloaded,
            E::OutcomeUnknown(None),
            E::Internal(String::new()),
        ]
    }

    /// The order this failure speaks of, where one is known.
    fn order_id(&self) -> Option<i64> {
        match self {
            Error::AlreadyOrdered(id) | Error::OutcomeUnknown(id) => *id,
            _ => None,
        }
    }

    /// Seconds after which trying again makes sense, for 429 and 503.
    fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Error::TooManyRequests { retry_after_seconds } => Some(*retry_after_seconds),
            _ => (self.status_and_code().0 == StatusCode::SERVICE_UNAVAILABLE)
                .then_some(RETRY_AFTER_SECONDS),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        if let Error::Internal(detail) = &self {
            tracing::error!(%detail, "internal error");
        }
        let (status, code) = self.status_and_code();
        let envelope = Envelope::failure(code, self.to_string()).with_order_id(self.order_id());
        let mut response = (status, axum::Json(envelope)).into_response();
        if let Some(seconds) = self.retry_after_seconds() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The database failed before anything was committed, or on a read: nothing was done.
impl From<sqlx::Error> for Error {
    fn from(fault: sqlx::Error) -> Self {
        match crate::conn::mysql::classify(&fault) {
            crate::conn::mysql::Fault::Conflict => Error::Conflict,
            crate::conn::mysql::Fault::Unavailable => {
                tracing::warn!(%fault, "database unavailable");
                Error::Unavailable("the database")
            }
            crate::conn::mysql::Fault::Other => Error::Internal(format!("database: {fault}")),
        }
    }
}

/// Redis did not answer, or refused: whatever was asked of it is treated as not done.
impl From<redis::RedisError> for Error {
    fn from(fault: redis::RedisError) -> Self {
        tracing::warn!(%fault, "redis unavailable");
        Error::Unavailable("Redis")
    }
}

impl From<lock::Error> for Error {
    fn from(fault: lock::Error) -> Self {
        tracing::warn!(%fault, "lock unavailable");
        Error::Unavailable("the lock server")
    }
}

impl From<crate::id::Error> for Error {
    fn from(fault: crate::id::Error) -> Self {
        tracing::warn!(%fault, "no order id");
        Error::Unavailable("the id counter")
    }
}
