//! The checker: compares every reply with every row.
//!
//! Pure judgement: no I/O, no clock, no knowledge of how the sale was run. The rules:
//!
//! - a reply that says *ordered* or *pending* must have its row ([`Verdict::lost`]). A pending order may also be refused
//!   later, if its user has another order, or if nothing was left; in the latter case, "no such order" is not accepted as
//!   the refusal;
//! - a row must have a reply that owns it, or one whose outcome is unknown ([`Verdict::phantom`]);
//! - no more rows than were put on sale ([`Verdict::oversold`]), one per user
//!   ([`Verdict::duplicates`]), and stock must account for the rest ([`Verdict::drift`]);
//! - a refusal must have been true ([`Verdict::false_sold_out`], [`Verdict::false_duplicate`]).
//!
//! Cancelled orders (status 4) have given their stock back: they are no active rows, but they do
//! exist, so they still answer for a reply.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, NaiveDateTime};
use serde::Serialize;

use crate::reply::{ORDER_NOT_FOUND, Reply, SOLD_OUT};

#[cfg(test)]
mod tests;

/// `tb_voucher_order.status` of a cancelled order.
pub const CANCELLED: u8 = 4;
/// At most this many findings are spelled out.
const EXAMPLES: usize = 10;

/// The sale as the tables have it at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sale {
    /// How many were put on sale.
    pub issued: i64,
    /// `tb_seckill_voucher.stock` at the end, with the rows of `tb_stock_unit`.
    pub stock_left: i64,
    /// How many of those issued were added while buyers were asking: "sold out" may have been true before.
    pub added: i64,
}

/// One row of `tb_voucher_order` for the sale's voucher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderRow {
    /// The order's id.
    pub id: i64,
    /// Who bought.
    pub user_id: u64,
    /// 1 unpaid … 4 cancelled … 6 refunded.
    pub status: u8,
}

/// Seconds from 1970 to 2022, from which the seconds in an id count.
const EPOCH_SECONDS: i64 = 1_640_995_200;

impl OrderRow {
    /// The local time in its id.
    pub fn local_time(&self) -> NaiveDateTime {
        let seconds = (self.id >> 32) + EPOCH_SECONDS;
        DateTime::from_timestamp(seconds, 0)
            .unwrap_or_default()
            .naive_utc()
    }

    /// Whether its stock was given back.
    pub fn is_cancelled(&self) -> bool {
        self.status == CANCELLED
    }
}

/// One attempt to buy, and its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedReply {
    /// The buyer.
    pub user_id: u64,
    /// Which of this user's attempts, from 0.
    pub attempt: u32,
    /// The reply.
    pub reply: Reply,
}

/// The judgement. [`Verdict::invariants`] lists the counts that must be 0; the others describe the sale.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Active rows.
    pub orders: i64,
    /// How many were put on sale.
    pub issued: i64,
    /// Stock at the end.
    pub stock_left: i64,
    /// Active rows that no reply acknowledged: their replies were lost, or they are phantom.
    pub unacknowledged: i64,
    /// Active rows beyond what was issued, or stock below zero, whichever is worse.
    pub oversold: i64,
    /// Orders beyond the first of each user, counted by rows or by successes told.
    pub duplicates: i64,
    /// Successes told for which there is no row of that id and user, and pending orders that were refused without cause.
    pub lost: i64,
    /// Active rows that no reply owns: their user was refused, or never asked.
    pub phantom: i64,
    /// `issued − stock_left − orders`: positive is stranded stock, negative invented stock.
    pub drift: i64,
    /// "Sold out" said though stock remained at the end.
    pub false_sold_out: i64,
    /// "You have ordered already" said to a user without that order.
    pub false_duplicate: i64,
    /// Successes without a usable order id.
    pub malformed: i64,
    /// Some of the violations in words, for the reader of a report.
    pub examples: Vec<String>,
    /// The first buyer in whom an invariant was seen violated, by its name.
    #[serde(skip)]
    pub witnesses: BTreeMap<&'static str, u64>,
}

impl Verdict {
    /// Name and count of everything that must be 0, in the order of a report.
    pub fn invariants(&self) -> [(&'static str, i64); 8] {
        [
            ("oversold", self.oversold),
            ("duplicates", self.duplicates),
            ("lost", self.lost),
            ("phantom", self.phantom),
            ("drift", self.drift),
            ("false sold-out", self.false_sold_out),
            ("false duplicate", self.false_duplicate),
            ("malformed", self.malformed),
        ]
    }

    /// The invariants that were violated, with their counts.
    pub fn violations(&self) -> Vec<(&'static str, i64)> {
        self.invariants()
            .into_iter()
            .filter(|(_, count)| *count != 0)
            .collect()
    }

    /// Whether every invariant holds.
    pub fn is_clean(&self) -> bool {
        self.violations().is_empty()
    }

    /// Spells out what was found about a user, and remembers who is the first one of this invariant.
    fn found(&mut self, invariant: &'static str, user: u64, text: impl FnOnce() -> String) {
        self.witnesses.entry(invariant).or_insert(user);
        self.example(|| format!("user {user}: {}", text()));
    }

    /// Spells a finding out, unless there are enough.
    pub fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(text());
        }
    }
}

/// The replies to one user, over all attempts.
#[derive(Default)]
struct UserReplies<'a> {
    /// Ids of successes, of pending ones too.
    ordered: BTreeSet<i64>,
    /// Ids of pending ones that were refused later, with the code of the refusal.
    withdrawn: BTreeMap<i64, &'a str>,
    /// Ids named by "already ordered".
    named: BTreeSet<i64>,
    /// How often "already ordered" came without an id.
    already_unnamed: i64,
    /// How many attempts may have made an order without saying so.
    unknown: usize,
    /// Whether there was a success without an id.
    has_malformed: bool,
}

/// Judges a sale: its end state, every attempt of every user, and every row of its voucher.
pub fn judge<'a>(
    sale: Sale,
    attempts: impl IntoIterator<Item = &'a ObservedReply>,
    rows: &[OrderRow],
) -> Verdict {
    let mut users: BTreeMap<u64, (UserReplies<'_>, Vec<OrderRow>)> = BTreeMap::new();
    let mut sold_out = 0;
    let mut verdict = Verdict {
        issued: sale.issued,
        stock_left: sale.stock_left,
        ..Verdict::default()
    };
    for attempt in attempts {
        let (replies, _) = users.entry(attempt.user_id).or_default();
        match &attempt.reply {
            Reply::Ordered(id) | Reply::Pending(id) => drop(replies.ordered.insert(*id)),
            Reply::Withdrawn { id, code } => drop(replies.withdrawn.insert(*id, code)),
            Reply::AlreadyOrdered(Some(id)) => drop(replies.named.insert(*id)),
            Reply::AlreadyOrdered(None) => replies.already_unnamed += 1,
            Reply::Refused(code) => sold_out += i64::from(code == SOLD_OUT),
            Reply::Unknown { .. } => replies.unknown += 1,
            Reply::Malformed => {
                // The order may well exist; only its id was not told.
                replies.unknown += 1;
                replies.has_malformed = true;
                verdict.malformed += 1;
                let text = || "success without an id".to_owned();
                verdict.found("malformed", attempt.user_id, text);
            }
        }
    }
    let mut cancelled = 0;
    for row in rows {
        users.entry(row.user_id).or_default().1.push(*row);
        cancelled += i64::from(row.is_cancelled());
    }
    verdict.orders = rows.len() as i64 - cancelled;
    verdict.oversold = (verdict.orders - sale.issued).max(-sale.stock_left).max(0);
    let mut active = rows.iter().filter(|row| !row.is_cancelled());
    if let Some(surplus) = active.nth(sale.issued.max(0) as usize) {
        verdict.witnesses.insert("oversold", surplus.user_id);
    }
    verdict.drift = sale.issued - sale.stock_left - verdict.orders;
    // Stock that came from a cancellation or an addition may not have been there when "sold out" was said.
    let some_left = sale.stock_left > cancelled + sale.added;
    if some_left {
        verdict.false_sold_out = sold_out;
    }
    for (user, (replies, rows)) in users {
        judge_user(&mut verdict, user, &replies, &rows, some_left);
    }
    verdict
}

fn judge_user(
    verdict: &mut Verdict,
    user: u64,
    replies: &UserReplies<'_>,
    rows: &[OrderRow],
    some_left: bool,
) {
    let has_row = |id: &i64| rows.iter().any(|row| row.id == *id);
    let active = || rows.iter().filter(|row| !row.is_cancelled());

    for id in replies.ordered.iter().filter(|id| !has_row(id)) {
        verdict.lost += 1;
        verdict.found("lost", user, || {
            format!("told order {id}, which does not exist")
        });
    }

    if replies.has_malformed && rows.is_empty() {
        verdict.lost += 1;
        verdict.found("lost", user, || {
            "told of an order without its id, and has none".to_owned()
        });
    }

    for (id, code) in &replies.withdrawn {
        let is_unfounded = rows.is_empty() && (some_left || *code == ORDER_NOT_FOUND);
        if is_unfounded {
            verdict.lost += 1;
            verdict.found("lost", user, || {
                format!("order {id} was pending, then refused: {code}")
            });
        }
    }

    let cancelled_ids: BTreeSet<i64> = rows
        .iter()
        .filter(|row| row.is_cancelled())
        .map(|row| row.id)
        .collect();
    let successes = replies.ordered.difference(&cancelled_ids).count();
    let extra = active().count().max(successes).saturating_sub(1);
    if extra > 0 {
        verdict.duplicates += extra as i64;
        let ids: Vec<i64> = active().map(|row| row.id).collect();
        verdict.found("duplicates", user, || {
            format!("orders {ids:?}, one was allowed")
        });
    }

    // Each attempt of unknown outcome can have made one of the rows that no reply acknowledged.
    let unacknowledged: Vec<i64> = active()
        .map(|row| row.id)
        .filter(|id| !replies.ordered.contains(id) && !replies.named.contains(id))
        .collect();
    verdict.unacknowledged += unacknowledged.len() as i64;
    if unacknowledged.len() > replies.unknown {
        verdict.phantom += (unacknowledged.len() - replies.unknown) as i64;
        verdict.found("phantom", user, || {
            format!("order {unacknowledged:?} exists, but no reply owns it")
        });
    }

    let absent = replies
        .named
        .iter()
        .filter(|id| !has_row(id) && !replies.withdrawn.contains_key(id))
        .count() as i64;
    let unnamed = if rows.is_empty() {
        replies.already_unnamed
    } else {
        0
    };
    if absent + unnamed > 0 {
        verdict.false_duplicate += absent + unnamed;
        verdict.found("false duplicate", user, || {
            "told of an earlier order that does not exist".to_owned()
        });
    }
}
