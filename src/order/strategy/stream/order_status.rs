//! The status of an admitted order, as text in Redis. A user's statuses are a hash by order id: `r <voucher> <code> [<order
//! the user has>]` once it is refused. Nothing is written while it is pending, for its entry is in the stream, and nothing once
//! it is committed, for then the database has it; but where an entry has come in place of another, `p <voucher> <entry>`
//! names it. No I/O may come in here.

use crate::error::Error;

/// The status of an order that is not in the database.
#[derive(Debug, PartialEq)]
pub(super) enum AdmittedStatus<'a> {
    Pending,
    Refused { code: &'a str },
}

/// Reads a status; `None` where the text is not one.
pub(super) fn parse(text: &str) -> Option<AdmittedStatus<'_>> {
    let (kind, rest) = text.split_once(' ')?;
    let (_voucher, rest) = rest.split_once(' ')?;
    match kind {
        "p" => Some(AdmittedStatus::Pending),
        "r" => Some(AdmittedStatus::Refused { code: rest }),
        _ => None,
    }
}

/// The code of a refusal, with the order that the user has.
pub(super) fn code(refusal: &Error) -> String {
    refusal.order_id().map_or(refusal.code().to_owned(), |id| format!("{} {id}", refusal.code()))
}

/// The refusal that a code stands for.
pub(super) fn refusal(code: &str) -> Error {
    let (code, order) = code.split_once(' ').unwrap_or((code, ""));
    match code {
        "SOLD_OUT" => Error::SoldOut,
        "ALREADY_ORDERED" => Error::AlreadyOrdered(order.parse().ok()),
        "VOUCHER_NOT_FOUND" => Error::VoucherNotFound,
        _ => Error::OrderFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_back() {
        assert_eq!(parse("p 7 1-0"), Some(AdmittedStatus::Pending));
        assert_eq!(parse("r 7 SOLD_OUT"), Some(AdmittedStatus::Refused { code: "SOLD_OUT" }));
        assert_eq!(parse(""), None);
        assert!(matches!(refusal("ALREADY_ORDERED 5"), Error::AlreadyOrdered(Some(5))));
        assert!(matches!(refusal("ALREADY_ORDERED"), Error::AlreadyOrdered(None)));
        assert!(matches!(refusal("SOLD_OUT"), Error::SoldOut));
        assert_eq!(code(&Error::AlreadyOrdered(Some(5))), "ALREADY_ORDERED 5");
        assert!(matches!(refusal("else"), Error::OrderFailed));
    }
}
