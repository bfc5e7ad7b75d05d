//! The service's error type: every way in which a request can fail, with a stable code for programs.
//! [`http::reply`](crate::http::reply) turns it into a reply.
//!
//! Which error belongs where:
//! - **Business refusals** (sold out, not begun, …) are HTTP 200 with `success:false`: that is what existing clients
//!   read. Each means: this request made no order.
//! - **Transport errors** use real statuses with the same envelope.
//! - [`Error::Unavailable`] is *definite*: nothing was done. [`Error::OutcomeUnknown`] is the only error after which an
//!   order may exist; it names the id to look up, if the id was known when it failed.
//! - [`Error::Conflict`] and [`Error::DuplicateId`] are retried within a purchase (see `order/purchase.rs`); after the
//!   last attempt the reply says unavailable.
//!
//! The text is for people and may change; the code is for programs and may not.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::connection::server_error::{Meaning, meaning_of};

/// Why a request cannot be served now, though it may be in a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each cause's text says it
pub enum Cause {
    #[error("the database is not available")]
    Database,
    #[error("Redis is not available")]
    Redis,
    #[error("the lock server is not available")]
    LockServer,
    #[error("the id counter is not available")]
    IdCounter,
    #[error("the sender of sign-in codes is not available")]
    CodeSender,
    #[error("the request took longer than its time limit")]
    TimeLimit,
    #[error("the purchase took longer than its time limit")]
    PurchaseDeadline,
    #[error("the sale is being counted")]
    SaleBeingCounted,
    #[error("this version of the service does not know the sale's strategy")]
    StrategyUnknown,
    #[error("the sale's row cannot be read")]
    SaleUnreadable,
    #[error("the order is not decided yet")]
    OrderUndecided,
    #[error("the order's status changed meanwhile")]
    OrderStatusChanged,
}

/// Defines [`Error`], and its codes, statuses and samples: a row has the variant with a sample value, its text (or
/// the function that writes it), its HTTP status and its code.
macro_rules! codes {
    ($(
        $(#[$note:meta])*
        $variant:ident $(($kind:ty = $sample:expr))? $({ $field:ident: $field_kind:ty = $value:expr })?:
        $($text:literal)? $(by $write:ident)? => $status:literal $code:literal,
    )+) => {
        /// Why a request failed. The module's documentation says which variant belongs where.
        #[derive(Clone, Debug, thiserror::Error)]
        #[allow(missing_docs)] // each variant's text and code say it
        pub enum Error {
            $(
                $(#[$note])*
                #[error($($text)? $(fmt = $write)?)]
                $variant $(($kind))? $({ $field: $field_kind })?,
            )+
        }

        impl Error {
            /// The stable code.
            pub fn code(&self) -> &'static str {
                match self {
                    $(Error::$variant { .. } => $code,)+
                }
            }

            /// The HTTP status.
            pub fn status(&self) -> u16 {
                match self {
                    $(Error::$variant { .. } => $status,)+
                }
            }

            /// One of each variant, with sample values, for the API's document. Where variants share a code, the document
            /// shows the last of them.
            pub fn each() -> Vec<Error> {
                vec![$(Error::$variant $(($sample))? $({ $field: $value })?),+]
            }
        }
    };
}

codes! {
    // Business refusals.
    SoldOut: "库存不足！" => 200 "SOLD_OUT",
    /// Compare-and-set only: the stock moved between read and write; there may be some left.
    StockChanged: "库存不足！" => 200 "STOCK_CHANGED",
    AlreadyOrdered(Option<i64> = None): "不能重复下单！" => 200 "ALREADY_ORDERED",
    LockBusy: "不允许重复下单" => 200 "LOCK_BUSY",
    SaleNotBegun: "秒杀尚未开始！" => 200 "SALE_NOT_BEGUN",
    SaleEnded: "秒杀已经结束！" => 200 "SALE_ENDED",
    VoucherNotFound: "优惠券不存在！" => 200 "VOUCHER_NOT_FOUND",
    ShopNotFound: "店铺不存在" => 200 "SHOP_NOT_FOUND",
    ShopIdMissing: "店铺id不能为空" => 200 "SHOP_ID_MISSING",
    OrderNotFound: "订单不存在！" => 200 "ORDER_NOT_FOUND",
    /// A pending order could not be committed; the buyer may try again.
    OrderFailed: "下单失败，请重试！" => 200 "ORDER_FAILED",
    OrderCancelled: "订单已取消！" => 200 "ORDER_CANCELLED",
    AlreadyPaid: "订单已支付！" => 200 "ALREADY_PAID",
    OrderRefunded: "订单已退款！" => 200 "ORDER_REFUNDED",
    PhoneInvalid: "手机号格式错误！" => 200 "PHONE_INVALID",
    CodeInvalid: "验证码错误!" => 200 "CODE_INVALID",

    // Transport errors.
    MalformedJson(String = "expected `,` or `}` at line 1 column 20".to_owned()):
        "malformed JSON: {0}" => 400 "MALFORMED_JSON",
    InvalidParameter(String = "payValue must be 0 to 10^9 cents".to_owned()):
        "invalid parameter: {0}" => 400 "INVALID_PARAMETER",
    Unauthorized: "未登录" => 401 "UNAUTHORIZED",
    Forbidden(&'static str = "x-admin-token is missing or wrong"): "{0}" => 403 "FORBIDDEN",
    LabOnly(&'static str = "naive"):
        "strategy `{0}` is unsafe on purpose: it needs a server started with --lab" => 403 "LAB_ONLY",
    NotFound: "no such route" => 404 "NOT_FOUND",
    MethodNotAllowed: "this route does not take that method" => 405 "METHOD_NOT_ALLOWED",
    /// The body was not sent to its end in time.
    RequestTimeout: "the request body did not arrive in time" => 408 "REQUEST_TIMEOUT",
    PayloadTooLarge(usize = 2048): "the request body is larger than {0} bytes" => 413 "PAYLOAD_TOO_LARGE",
    UnsupportedMediaType: "the body must be sent as application/json" => 415 "UNSUPPORTED_MEDIA_TYPE",
    TooManyRequests { retry_after_seconds: u64 = 1 }:
        "too many requests; try again in {retry_after_seconds} s" => 429 "TOO_MANY_REQUESTS",

    // Retried inside a purchase.
    Conflict:
        "the transaction lost a deadlock or waited too long; nothing was done, try again" => 503 "UNAVAILABLE",
    DuplicateId: "the order id was already taken; nothing was done, try again" => 503 "UNAVAILABLE",

    Unavailable(Cause = Cause::Database):
        "{0}; nothing was done, try again" => 503 "UNAVAILABLE",
    Overloaded: "too many requests in flight; nothing was done, try again" => 503 "OVERLOADED",
    /// With the id of the order, where it is known.
    OutcomeUnknown(Option<i64> = None): by write_outcome_unknown => 503 "OUTCOME_UNKNOWN",
    /// The database refuses the row because of the row's values: trying again is useless.
    RowRefused(String = String::new()): "internal error" => 500 "INTERNAL",
    Internal(String = String::new()): "internal error" => 500 "INTERNAL",
}

/// Writes the error with advice on what to do. Only admin writes take an Idempotency-Key.
fn write_outcome_unknown(
    order_id: &Option<i64>,
    text: &mut std::fmt::Formatter<'_>,
) -> std::fmt::Result {
    let advice = match order_id {
        Some(_) => "look the order up by its id before you try again",
        None => {
            "look whether it was done before you try again; repeat an admin write with its Idempotency-Key"
        }
    };
    write!(text, "the outcome is not known yet: {advice}")
}

impl Error {
    /// [`Error::InvalidParameter`] with this text unless the condition holds.
    pub fn require(condition: bool, otherwise: &str) -> Result<(), Error> {
        if condition {
            Ok(())
        } else {
            Err(Error::InvalidParameter(otherwise.to_owned()))
        }
    }

    /// [`Error::InvalidParameter`] where the text is longer than `most` characters.
    pub fn require_length(name: &str, text: Option<&str>, most: usize) -> Result<(), Error> {
        let fits = text.is_none_or(|text| text.chars().count() <= most);
        Self::require(fits, &format!("{name} is longer than {most} characters"))
    }

    /// Whether the row alone is at fault, so that a healthy server would refuse it again. Only such an error may end an
    /// order that was promised.
    pub fn is_about_the_row(&self) -> bool {
        matches!(self, Error::RowRefused(_))
    }

    /// What the log shows in place of the text for clients.
    pub fn detail(&self) -> String {
        match self {
            Error::Internal(detail) | Error::RowRefused(detail) => detail.clone(),
            error => error.to_string(),
        }
    }

    /// The id of the order that the error is about, where it is known.
    pub fn order_id(&self) -> Option<i64> {
        match self {
            Error::AlreadyOrdered(id) | Error::OutcomeUnknown(id) => *id,
            _ => None,
        }
    }
}

/// A log line that every request would repeat while a server is away. It is written when its reason changes, once a second
/// at most, and otherwise every ten seconds at most, with the number of lines that were left out.
struct RepeatedLine {
    last: Mutex<Option<(Instant, String)>>,
    left_out: AtomicU64,
}

impl RepeatedLine {
    /// Shortest time between two lines with different reasons.
    const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

    /// Shortest time between two lines with the same reason.
    const PAUSE: Duration = Duration::from_secs(10);

    const fn new() -> Self {
        RepeatedLine {
            last: Mutex::new(None),
            left_out: AtomicU64::new(0),
        }
    }

    /// Says whether to write the line now: `Some` with the number of lines left out since the last one, or `None` where this
    /// one is left out, too.
    fn take_turn(&self, reason: &str) -> Option<u64> {
        let mut last = self.last.lock();
        let is_too_early = last.as_ref().is_some_and(|(at, last_reason)| {
            let pause = if last_reason == reason {
                Self::PAUSE
            } else {
                Self::SHORTEST_PAUSE
            };
            at.elapsed() < pause
        });
        if is_too_early {
            self.left_out.fetch_add(1, Relaxed);
            return None;
        }
        *last = Some((Instant::now(), reason.to_owned()));
        Some(self.left_out.swap(0, Relaxed))
    }

    /// Writes that a server is not available; at level debug where the line is left out.
    fn warn(&self, error: &str, message: &'static str) {
        match self.take_turn(error) {
            Some(left_out) => tracing::warn!(error, left_out, "{message}"),
            None => tracing::debug!(error, "{message}"),
        }
    }
}

/// The database failed before anything was committed, or on a read: nothing was done.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        static UNAVAILABLE: RepeatedLine = RepeatedLine::new();
        static REFUSED: RepeatedLine = RepeatedLine::new();
        match meaning_of(&error) {
            Meaning::Conflict => Error::Conflict,
            Meaning::Row => Error::RowRefused(format!("database: {error}")),
            Meaning::Characters => Error::InvalidParameter(
                "a text has characters that the database's tables cannot hold".to_owned(),
            ),
            Meaning::Bug => Error::Internal(format!("database: {error}")),
            Meaning::Schema | Meaning::Unknown => {
                if let Some(left_out) = REFUSED.take_turn(&error.to_string()) {
                    tracing::error!(%error, left_out, "the database refuses a statement: is a migration under way?");
                }
                Error::Unavailable(Cause::Database)
            }
            Meaning::NoAnswer | Meaning::ReadOnly | Meaning::Elsewhere | Meaning::Exhausted => {
                UNAVAILABLE.warn(&error.to_string(), "database unavailable");
                Error::Unavailable(Cause::Database)
            }
        }
    }
}

/// An error of one of these types means that a server is not available, and that its command counts as not done.
macro_rules! unavailable {
    ($($error:ty => $cause:ident, $message:literal;)+) => { $(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                static UNAVAILABLE: RepeatedLine = RepeatedLine::new();
                // With its sources.
                UNAVAILABLE.warn(&format!("{:#}", anyhow::Error::from(error)), $message);
                Error::Unavailable(Cause::$cause)
            }
        }
    )+ };
}

unavailable! {
    redis::RedisError => Redis, "redis unavailable";
    lock::Error => LockServer, "lock unavailable";
    crate::id::Error => IdCounter, "no order id available";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_server_that_is_away() {
        let no_id = Error::from(crate::id::Error::Exhausted);
        assert!(matches!(no_id, Error::Unavailable(Cause::IdCounter)));
        let no_lock = Error::from(lock::Error::ForeignOwner);
        assert!(matches!(no_lock, Error::Unavailable(Cause::LockServer)));
    }

    #[test]
    fn a_reason_is_written_when_it_is_new_and_else_now_and_then() {
        let line = RepeatedLine::new();
        let later = |seconds| {
            let mut last = line.last.lock();
            let (at, _) = last.as_mut().expect("a line");
            *at -= Duration::from_secs(seconds);
        };
        assert_eq!(line.take_turn("refused"), Some(0));
        assert_eq!(line.take_turn("refused"), None);
        assert_eq!(line.take_turn("reset"), None, "reasons may alternate");
        later(2);
        assert_eq!(line.take_turn("refused"), None);
        assert_eq!(line.take_turn("reset"), Some(3));
        later(11);
        assert_eq!(line.take_turn("reset"), Some(0));
    }
}
