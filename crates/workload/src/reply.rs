//! One HTTP answer to a purchase, read as a claim about an order.
//!
//! Only the outside contract is known here: status, envelope, `code`. A node that writes no `code`
//! (the Java original) is understood by its `errorMsg`. Whatever is not certainly a refusal is
//! [`Reply::Unknown`], because a wrongly assumed refusal would invent a phantom order.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use crate::http::{Failure, Response};

/// The reply to one attempt to buy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Success, with the order's id.
    Ordered(i64),
    /// Admitted: the order will be committed or refused under this id.
    Pending(i64),
    /// It was [`Reply::Pending`], and refused later, for the reason `code`.
    Withdrawn {
        /// The id in the reply.
        id: i64,
        /// What its look-up said.
        code: Cow<'static, str>,
    },
    /// "This user has ordered already", with that order's id where the service knew it.
    AlreadyOrdered(Option<i64>),
    /// A definite refusal, by its code: no order came of this attempt.
    Refused(Cow<'static, str>),
    /// The outcome is unknown: an order may exist.
    Unknown {
        /// `TIME_OUT`, `CONNECTION_LOST`, `OUTCOME_UNKNOWN`, `HTTP_502`, …
        why: Cow<'static, str>,
        /// The id to look up, where the service gave one.
        id: Option<i64>,
    },
    /// Success without a usable order id, or with two that disagree. Always an error of the service.
    Malformed,
}

/// Refused because nothing is left.
pub const SOLD_OUT: &str = "SOLD_OUT";
/// The look-up of an order says that there is none.
pub const ORDER_NOT_FOUND: &str = "ORDER_NOT_FOUND";
/// The request was never sent: no connection could be made.
pub const NOT_SENT: &str = "NOT_SENT";
/// No complete answer within the time limit.
pub const TIME_OUT: &str = "TIME_OUT";
/// The connection broke after the request was sent.
pub const CONNECTION_LOST: &str = "CONNECTION_LOST";

/// The texts of nodes that send no `code`, without the mark at their end.
const TEXTS: [(&str, &str); 7] = [
    ("库存不足", SOLD_OUT),
    ("不能重复下单", "ALREADY_ORDERED"),
    ("用户已经购买过一次", "ALREADY_ORDERED"),
    ("不允许重复下单", "LOCK_BUSY"),
    ("秒杀尚未开始", "SALE_NOT_BEGUN"),
    ("秒杀已经结束", "SALE_ENDED"),
    ("优惠券不存在", "VOUCHER_NOT_FOUND"),
];
/// What a node of the course answers when it failed: it may have been before the commit or after.
const FAILED: &str = "服务器异常";

/// What every reply of the service is wrapped in.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<T> {
    /// Whether it was done.
    pub success: bool,
    /// Why not, for people.
    pub error_msg: Option<String>,
    /// Why not, for programs.
    pub code: Option<String>,
    /// What was asked for.
    pub data: Option<T>,
    /// The id of an order, as text: JavaScript's numbers end at 2^53.
    pub order_id: Option<String>,
}

impl Envelope<Value> {
    /// The order id; `Ok(None)` if there is none, `Err` if it cannot be read, or its two forms differ.
    fn id(&self) -> Result<Option<i64>, ()> {
        let number = self
            .data
            .as_ref()
            .map(|value| match value {
                // JavaScript's numbers end at 2^53, so some nodes send text.
                Value::String(text) => text.parse().map_err(drop),
                _ => value.as_i64().ok_or(()),
            })
            .transpose()?;
        let text = self
            .order_id
            .as_ref()
            .map(|text| text.parse::<i64>().map_err(drop))
            .transpose()?;
        match (number, text) {
            (Some(a), Some(b)) if a != b => Err(()),
            (number, text) => Ok(number.or(text)),
        }
    }

    fn code(&self) -> Option<&str> {
        self.code.as_deref().or_else(|| {
            let message = self
                .error_msg
                .as_deref()?
                .trim_end_matches(['！', '!', '。']);
            TEXTS
                .iter()
                .find(|(text, _)| *text == message)
                .map(|(_, code)| *code)
        })
    }
}

impl Reply {
    /// Reads what became of a request to buy.
    pub fn from_answer(answer: &Result<Response, Failure>) -> Self {
        match answer {
            Ok(answer) => Self::read(answer.status, &answer.body),
            Err(Failure::NotSent(_)) => Self::Refused(NOT_SENT.into()),
            Err(Failure::Lost(_)) => Self::lost(CONNECTION_LOST),
            Err(Failure::TimedOut) => Self::lost(TIME_OUT),
        }
    }

    /// Reads an answer: HTTP status and body.
    pub fn read(status: u16, body: &[u8]) -> Self {
        // Without an envelope there is no code either.
        let envelope = serde_json::from_slice::<Envelope<Value>>(body).unwrap_or_default();
        if envelope.success {
            return match envelope.id() {
                Ok(Some(id)) if status == 202 => Self::Pending(id),
                Ok(Some(id)) if (200..300).contains(&status) => Self::Ordered(id),
                _ => Self::Malformed,
            };
        }
        let id = envelope.id().unwrap_or(None);
        match envelope.code() {
            Some("ALREADY_ORDERED") => Self::AlreadyOrdered(id),
            // Only these server errors promise that no order was made.
            Some(code @ ("UNAVAILABLE" | "OVERLOADED")) => Self::Refused(code.to_owned().into()),
            Some(code) if status >= 500 || matches!(code, "OUTCOME_UNKNOWN" | "INTERNAL") => {
                Self::Unknown {
                    why: code.to_owned().into(),
                    id,
                }
            }
            Some(code) => Self::Refused(code.to_owned().into()),
            None => {
                let http = format!("HTTP_{status}").into();
                if let (200, Some(message)) = (status, envelope.error_msg) {
                    return if message == FAILED {
                        Self::lost(FAILED)
                    } else {
                        Self::Refused(message.into())
                    };
                }
                match status {
                    400..=407 | 409..=498 => Self::Refused(http),
                    _ => Self::Unknown { why: http, id },
                }
            }
        }
    }

    /// Reads what the look-up of the order `id` says became of it: ordered, withdrawn, or else still pending.
    pub fn from_look_up(id: i64, answer: &Response) -> Self {
        match Self::read(answer.status, &answer.body) {
            _ if answer.status != 200 => Self::Pending(id),
            // A look-up answers with the order itself, which is malformed as the reply to a purchase.
            Self::Ordered(_) | Self::Malformed => Self::Ordered(id),
            Self::Refused(code) => Self::Withdrawn { id, code },
            Self::AlreadyOrdered(_) => Self::Withdrawn {
                id,
                code: "ALREADY_ORDERED".into(),
            },
            _ => Self::Pending(id),
        }
    }

    /// An attempt whose answer was lost for the reason `why`.
    pub fn lost(why: &'static str) -> Self {
        Self::Unknown {
            why: Cow::Borrowed(why),
            id: None,
        }
    }

    /// Whether it was a success, committed or pending.
    pub fn is_success(&self) -> bool {
        matches!(
            self,
            Self::Ordered(_) | Self::Pending(_) | Self::Withdrawn { .. }
        )
    }

    /// The id of a success, committed or pending.
    pub fn success_id(&self) -> Option<i64> {
        match self {
            Self::Ordered(id) | Self::Pending(id) | Self::Withdrawn { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Whether the service, or the way to it, was in trouble, as opposed to the sale taking its course.
    pub fn is_trouble(&self) -> bool {
        match self {
            Self::Refused(code) => matches!(&**code, "UNAVAILABLE" | "OVERLOADED" | NOT_SENT),
            _ => matches!(self, Self::Unknown { .. } | Self::Malformed),
        }
    }

    /// Whether the purchase may have begun, so that an order may still come of it, even if the reply is a refusal.
    pub fn may_have_begun(&self) -> bool {
        match self {
            Self::Refused(code) => code == "UNAVAILABLE",
            _ => self.is_trouble(),
        }
    }

    /// The name under which this reply is counted.
    pub fn label(&self) -> &str {
        match self {
            Self::Ordered(_) => "ORDERED",
            Self::Pending(_) => "PENDING",
            Self::Withdrawn { .. } => "WITHDRAWN",
            Self::AlreadyOrdered(_) => "ALREADY_ORDERED",
            Self::Refused(code) => code,
            Self::Unknown { why, .. } => why,
            Self::Malformed => "MALFORMED_SUCCESS",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_answer_is_read() {
        let refused = |code: &'static str| Reply::Refused(code.into());
        let unknown = |why: &'static str, id| Reply::Unknown {
            why: why.into(),
            id,
        };
        let id = 662_109_876_543_210_001_i64;
        let success = format!(r#"{{"success":true,"data":{id},"orderId":"{id}"}}"#);
        let already =
            format!(r#"{{"success":false,"code":"ALREADY_ORDERED","data":{id},"orderId":"{id}"}}"#);
        let in_doubt = format!(r#"{{"success":false,"code":"OUTCOME_UNKNOWN","orderId":"{id}"}}"#);
        for (status, body, expected) in [
            (200, success.as_str(), Reply::Ordered(id)),
            (202, success.as_str(), Reply::Pending(id)),
            (200, r#"{"success":true,"data":7}"#, Reply::Ordered(7)),
            (200, r#"{"success":true}"#, Reply::Malformed),
            (
                200,
                r#"{"success":true,"data":7,"orderId":"8"}"#,
                Reply::Malformed,
            ),
            (200, r#"{"success":true,"data":"7"}"#, Reply::Ordered(7)),
            (200, r#"{"success":true,"data":"x"}"#, Reply::Malformed),
            (500, r#"{"success":true,"data":7}"#, Reply::Malformed),
            (200, already.as_str(), Reply::AlreadyOrdered(Some(id))),
            (
                200,
                r#"{"success":false,"code":"ALREADY_ORDERED"}"#,
                Reply::AlreadyOrdered(None),
            ),
            (
                200,
                r#"{"success":false,"code":"SOLD_OUT"}"#,
                refused(SOLD_OUT),
            ),
            (
                503,
                r#"{"success":false,"code":"UNAVAILABLE"}"#,
                refused("UNAVAILABLE"),
            ),
            (
                503,
                r#"{"success":false,"code":"OVERLOADED"}"#,
                refused("OVERLOADED"),
            ),
            (503, in_doubt.as_str(), unknown("OUTCOME_UNKNOWN", Some(id))),
            (
                500,
                r#"{"success":false,"code":"INTERNAL"}"#,
                unknown("INTERNAL", None),
            ),
            (
                503,
                r#"{"success":false,"code":"NEW"}"#,
                unknown("NEW", None),
            ),
            (
                401,
                r#"{"success":false,"code":"UNAUTHORIZED"}"#,
                refused("UNAUTHORIZED"),
            ),
            (401, "", refused("HTTP_401")),
            (408, "", unknown("HTTP_408", None)),
            (502, "<html>", unknown("HTTP_502", None)),
            (200, "<html>", unknown("HTTP_200", None)),
            // A node without codes.
            (
                200,
                r#"{"success":false,"errorMsg":"库存不足！"}"#,
                refused(SOLD_OUT),
            ),
            (
                200,
                r#"{"success":false,"errorMsg":"不能重复下单！"}"#,
                Reply::AlreadyOrdered(None),
            ),
            (
                200,
                r#"{"success":false,"errorMsg":"不允许重复下单"}"#,
                refused("LOCK_BUSY"),
            ),
            (
                200,
                r#"{"success":false,"errorMsg":"库存不足!"}"#,
                refused(SOLD_OUT),
            ),
            (
                200,
                r#"{"success":false,"errorMsg":"来晚了"}"#,
                refused("来晚了"),
            ),
            (
                200,
                r#"{"success":false,"errorMsg":"服务器异常"}"#,
                unknown("服务器异常", None),
            ),
        ] {
            assert_eq!(
                Reply::read(status, body.as_bytes()),
                expected,
                "{status} {body}"
            );
        }
    }
}
