//! The names of a purchase's steps, and what each of them tells: what a traced request's header says (see
//! [`crate::request::trace`]) and the lab's timeline shows. Names only; nothing is decided here.

use super::store::{Ledger, Placed, Standing};
use crate::error::Error;
use crate::request::trace::{Step, mark};

/// Stock and the buyer's order were read.
pub fn looked(standing: &Result<Option<Standing>, Error>) -> Step {
    Step("looked", standing.as_ref().ok().and_then(Option::as_ref).map_or(String::new(), seen))
}

/// The sale's row was locked, then both were read.
pub fn row_locked(standing: &Result<Option<Standing>, Error>) -> Step {
    Step("row-locked", looked(standing).1)
}

/// The stock alone was read.
pub fn read_stock<E>(stock: &Result<Option<i64>, E>) -> Step {
    let seen = stock.as_ref().ok().copied().flatten();
    Step("looked", seen.map_or(String::new(), |stock| format!("stock={stock}")))
}

fn seen(Standing { stock, order_id }: &Standing) -> String {
    format!("stock={stock},order={}", if order_id.is_some() { "yes" } else { "no" })
}

/// The one text that checks the buyer, inserts and decrements.
pub fn placed(outcome: &Result<(Ledger, Placed), Error>) -> Step {
    let outcome = match outcome {
        Ok((_, Placed::Taken)) => "taken",
        Ok((_, Placed::OrderedBefore)) => "ordered-before",
        Ok((_, Placed::NothingLeft)) => "nothing-left",
        Err(_) => "failed",
    };
    Step("placed", format!("outcome={outcome}"))
}

/// The order was inserted.
pub fn inserted<E>(rows: &Result<u64, E>) -> Step {
    ended("inserted", rows)
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

/// The transaction was committed.
pub fn committed<E>(outcome: &Result<(), E>) -> Step {
    ended("committed", outcome)
}

/// A commit that was shared with others.
pub fn batch_committed(outcome: &Result<i64, Error>) -> Step {
    ended("batch-committed", outcome)
}

/// The gate of the stream was asked.
pub fn admitted(outcome: &Result<i64, Error>) -> Step {
    ended("admitted", outcome)
}

fn ended<T, E>(name: &'static str, outcome: &Result<T, E>) -> Step {
    Step(name, if outcome.is_ok() { String::new() } else { "outcome=failed".to_owned() })
}

/// The buyer's lock in this process was taken.
pub fn locked_in_memory<G>(_: &G) -> Step {
    Step("locked", "place=memory".to_owned())
}

/// That lock was given back.
pub fn unlocked_in_memory() {
    mark("unlocked", "place=memory");
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

/// That lock was given back.
pub fn unlocked_in_redis() {
    mark("unlocked", "place=redis");
}
