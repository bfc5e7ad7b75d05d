//! The names of a purchase's steps in a traced request's header ([`crate::request::trace`]) and in the lab's timeline,
//! and the detail that each of them shows. Nothing is decided here. The names are part of the header's format.

use super::model::{BuyerStatus, Placement};
use crate::error::Error;
use crate::request::trace::Step;

/// Stock and the buyer's order were read.
pub fn status_read(status: &Result<Option<BuyerStatus>, Error>) -> Step {
    Step(
        "looked",
        status
            .as_ref()
            .ok()
            .and_then(Option::as_ref)
            .map_or(String::new(), detail),
    )
}

/// The sale's row was locked, then both were read.
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

/// One text checked the buyer and inserted.
pub fn placed(outcome: &Result<Placement, Error>) -> Step {
    let outcome = match outcome {
        Ok(Placement::Placed) => "taken",
        Ok(Placement::AlreadyOrdered) => "ordered-before",
        Ok(Placement::SoldOut) => "nothing-left",
        // Another request of this buyer inserted one meanwhile, so no lock kept the two apart.
        Err(Error::AlreadyOrdered(_)) => "index-refused",
        Err(_) => "failed",
    };
    Step("placed", format!("outcome={outcome}"))
}

/// One text inserted and claimed a unit: there the index is what checks the buyer.
pub fn claimed(outcome: &Result<Placement, Error>) -> Step {
    match outcome {
        Err(Error::AlreadyOrdered(_)) => placed(&Ok(Placement::AlreadyOrdered)),
        outcome => placed(outcome),
    }
}

/// One text decremented and committed (`Some(true)`), or found that too little is left (`Some(false)`).
pub fn taken(committed: Option<bool>) -> Step {
    match committed {
        Some(true) => Step("committed", String::new()),
        Some(false) => Step("placed", "outcome=nothing-left".to_owned()),
        None => Step("committed", "outcome=failed".to_owned()),
    }
}

/// One was taken from the stock, if the condition held.
pub fn decremented<E>(rows: &Result<u64, E>) -> Step {
    let outcome = match rows {
        Ok(0) => "moved",
        Ok(_) => "done",
        Err(_) => "failed",
    };
    Step("decremented", format!("outcome={outcome}"))
}

/// A commit that was shared by so many orders.
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
        Step(
            name,
            if outcome.is_ok() {
                String::new()
            } else {
                "outcome=failed".to_owned()
            },
        )
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
