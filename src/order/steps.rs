//! The names of a purchase's steps in a traced request's header ([`crate::request::trace`]) and in the lab's timeline,
//! and the detail that each of them shows. Nothing is decided here. The names are part of the header's format.

use super::model::BuyerStatus;
use crate::error::Error;
use crate::request::trace::Step;

/// Stock and the buyer's order were read.
pub fn status_read(status: &Result<Option<BuyerStatus>, Error>) -> Step {
    let status = status.as_ref().ok().and_then(Option::as_ref);
    Step("looked", status.map_or(String::new(), detail))
}

/// The sale's row was locked, then stock and the buyer's order were read.
pub fn row_locked(status: &Result<BuyerStatus, Error>) -> Step {
    Step("row-locked", status.as_ref().map_or(String::new(), detail))
}

/// The stock alone was read.
pub fn read_stock<E>(stock: &Result<Option<i64>, E>) -> Step {
    let stock = stock.as_ref().ok().copied().flatten();
    Step(
        "looked",
        stock.map_or(String::new(), |stock| format!("stock={stock}")),
    )
}

fn detail(BuyerStatus { stock, order_id }: &BuyerStatus) -> String {
    format!(
        "stock={stock},order={}",
        if order_id.is_some() { "yes" } else { "no" }
    )
}

/// The buyer was checked and the order inserted, in a transaction that is open.
pub fn inserted_if_first(inserted: &Result<u64, Error>) -> Step {
    placed(match inserted {
        Ok(0) => "ordered-before",
        Ok(_) => "taken",
        // Another request of this buyer inserted an order meanwhile: no lock kept the two requests apart.
        Err(Error::AlreadyOrdered(_)) => "index-refused",
        Err(_) => "failed",
    })
}

/// The order was inserted, or was not.
pub fn placed(outcome: &str) -> Step {
    Step("placed", format!("outcome={outcome}"))
}

/// The transaction was committed, or was not.
pub fn committed(is_committed: bool) -> Step {
    let outcome = if is_committed { "" } else { "outcome=failed" };
    Step("committed", outcome.to_owned())
}

/// The stock was lowered by one, if the condition held.
pub fn decremented<E>(rows: &Result<u64, E>) -> Step {
    let outcome = match rows {
        Ok(0) => "moved",
        Ok(_) => "done",
        Err(_) => "failed",
    };
    Step("decremented", format!("outcome={outcome}"))
}

/// One commit was shared by this many orders.
pub fn batch_committed(outcome: &Result<i64, Error>, orders: usize) -> Step {
    let outcome = if outcome.is_ok() {
        ""
    } else {
        "outcome=failed,"
    };
    Step("batch-committed", format!("{outcome}orders={orders}"))
}

/// Something that succeeds or fails: `inserted`, `committed`, `admitted` to the stream.
pub fn ended<T, E>(name: &'static str) -> impl FnOnce(&Result<T, E>) -> Step {
    move |outcome| {
        let detail = if outcome.is_ok() {
            ""
        } else {
            "outcome=failed"
        };
        Step(name, detail.to_owned())
    }
}

/// The buyer's lock in this process was acquired.
pub fn locked_in_memory<G>(_: &G) -> Step {
    Step("locked", "place=memory".to_owned())
}

/// The buyer's lock in Redis was tried.
pub fn tried_in_redis<G, E>(outcome: &Result<Option<G>, E>) -> Step {
    let name = match outcome {
        Ok(Some(_)) => "locked",
        Ok(None) => "lock-busy",
        Err(_) => "lock-failed",
    };
    Step(name, "place=redis".to_owned())
}

/// The lock in Redis was deleted by its former `owner`, whoever held it by then.
pub fn deleted<E>(owner: i64) -> impl FnOnce(&Result<Option<i64>, E>) -> Step {
    move |holder| {
        let outcome = match holder {
            Ok(Some(holder)) if *holder == owner => String::new(),
            Ok(Some(holder)) => format!(",outcome=foreign,owner={holder}"),
            Ok(None) => ",outcome=lost".to_owned(),
            Err(_) => ",outcome=failed".to_owned(),
        };
        Step("unlocked", format!("place=redis{outcome}"))
    }
}
