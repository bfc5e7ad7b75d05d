//! The status of an admitted order, as text in Redis. A user's statuses are a hash by order id:
//! `p <voucher> <entry>` while the order is pending, `r <voucher> <code> [<order the user has>]` once it is refused,
//! and nothing once it is committed, for then the database has it. No I/O may come in here.

use crate::error::Error;

/// Codes of refusals that are kept.
pub(super) mod code {
    pub const SOLD_OUT: &str = "SOLD_OUT";
    pub const ALREADY_ORDERED: &str = "ALREADY_ORDERED";
    pub const VOUCHER_NOT_FOUND: &str = "VOUCHER_NOT_FOUND";
    pub const ORDER_FAILED: &str = "ORDER_FAILED";
}

/// The status of an order that is not in the database.
#[derive(Debug, PartialEq)]
pub(super) enum AdmittedStatus<'a> {
    Pending { voucher: &'a str },
    Refused { code: &'a str },
}

/// Reads a status; `None` where the text is not one.
pub(super) fn parse(text: &str) -> Option<AdmittedStatus<'_>> {
    let (kind, rest) = text.split_once(' ')?;
    let (voucher, rest) = rest.split_once(' ')?;
    match kind {
        "p" => Some(AdmittedStatus::Pending { voucher }),
        "r" => Some(AdmittedStatus::Refused { code: rest }),
        _ => None,
    }
}

/// The refusal that a code stands for.
pub(super) fn refusal(code: &str) -> Error {
    let (code, order) = code.split_once(' ').unwrap_or((code, ""));
    match code {
        code::SOLD_OUT => Error::SoldOut,
        code::ALREADY_ORDERED => Error::AlreadyOrdered(order.parse().ok()),
        code::VOUCHER_NOT_FOUND => Error::VoucherNotFound,
        _ => Error::OrderFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_back() {
        assert_eq!(parse("p 7 1-0"), Some(AdmittedStatus::Pending { voucher: "7" }));
        assert_eq!(parse("r 7 SOLD_OUT"), Some(AdmittedStatus::Refused { code: "SOLD_OUT" }));
        assert_eq!(parse(""), None);
        assert!(matches!(refusal("ALREADY_ORDERED 5"), Error::AlreadyOrdered(Some(5))));
        assert!(matches!(refusal("ALREADY_ORDERED"), Error::AlreadyOrdered(None)));
        assert!(matches!(refusal("SOLD_OUT"), Error::SoldOut));
        assert!(matches!(refusal("else"), Error::OrderFailed));
    }
}
