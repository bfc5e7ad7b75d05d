//! The call of the admission script (`lua/stream_admit.lua`), for all purchases that arrive while the call before it is
//! in flight. Sent again under the same order id after a lost reply, it counts once. What it leaves to the consumer is sent to it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder};
use parking_lot::Mutex;

use super::deliveries::{Deliveries, Delivery};
use super::entry::Entry;
use super::entry_id::EntryId;
use super::names::GROUP;
use super::order_status::refusal;
use super::stats::StreamStats;
use super::unconfirmed::UnconfirmedOrders;
use crate::connection::coalescer::Coalescer;
use crate::connection::redis::{RoutedConnection, was_not_run};
use crate::error::Error;
use crate::keys::ShardKeys;
use crate::order::model::NewOrder;
use crate::scripts;

/// When replies are lost, the script is sent three times in all.
const RETRIES: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_millis(50)).with_max_times(2);

/// Buyers that one call admits at most, so that it never keeps Redis from others for long.
const BATCH: usize = 64;

/// An order, and the epoch in which its id was leased.
type Request = (NewOrder, Arc<str>);
type Answer = Result<Admission, Error>;

/// Batches the requests; see [`batcher`].
pub(super) type AdmissionBatcher = Coalescer<Request, Answer>;

/// What the script decided.
pub(super) enum Admission {
    /// By this entry.
    Admitted(EntryId),
    Refused(Error),
    /// Redis lost its data, or was started anew, since the order's id was leased.
    OtherEpoch,
    /// The sale has no stock counter that is exact.
    NoCounter,
    /// The user has a claim already.
    Claimed,
    /// Nothing is left; so many entries wait.
    SoldOut {
        waiting: u64,
    },
    /// Too many entries wait.
    Full,
}

/// What the calls of the script have in common.
#[derive(Clone)]
pub(super) struct AdmissionScript {
    pub redis: RoutedConnection,
    pub keys: Arc<ShardKeys>,
    /// How many entries may wait.
    pub backlog: usize,
    /// This process's consumer, and the way to it.
    pub consumer: Arc<str>,
    pub deliveries: Arc<Deliveries>,
    /// Where a copy of what is admitted is kept.
    pub unconfirmed: Arc<UnconfirmedOrders>,
    pub stats: Arc<StreamStats>,
    /// The last entry that a call has added: those of a call whose reply was lost come after it.
    pub last_entry: Arc<Mutex<EntryId>>,
}

impl AdmissionScript {
    /// Starts the batcher.
    pub fn batcher(self) -> AdmissionBatcher {
        Coalescer::start(BATCH, move |requests| self.clone().admit(requests))
    }

    async fn admit(mut self, requests: Vec<Request>) -> Vec<Answer> {
        let Some((_, epoch)) = requests.last() else { return Vec::new() };
        // Nearly always the epoch of all: a node knows one at a time.
        let of_epoch = (0..requests.len()).filter(|at| requests[*at].1 == *epoch);
        let mut sent: Vec<(usize, NewOrder)> = of_epoch.map(|at| (at, requests[at].0)).collect();
        // Sale by sale, each in the order of arrival.
        sent.sort_by_key(|(_, order)| order.buyer.voucher_id);
        let (places, orders): (Vec<usize>, Vec<NewOrder>) = sent.into_iter().unzip();
        let answer = |(order, of): &Request| match of == epoch {
            true => Err(Error::OutcomeUnknown(Some(order.id))),
            false => Ok(Admission::OtherEpoch),
        };
        let mut answers: Vec<Answer> = requests.iter().map(answer).collect();
        for (place, answer) in places.into_iter().zip(self.call(&orders, epoch).await) {
            answers[place] = answer;
        }
        answers
    }

    /// Runs the script for these orders, given sale by sale, whose ids were leased in this epoch. An answer for each.
    async fn call(&mut self, orders: &[NewOrder], epoch: &str) -> Vec<Answer> {
        let (mut pauses, mut in_doubt) = (RETRIES.build(), false);
        loop {
            // After a lost reply nobody knows what was delivered: the consumer reads what is pending under its name.
            let taken_in = self.deliveries.taken_in().filter(|_| !in_doubt);
            let consumer = if taken_in.is_some() { &*self.consumer } else { "" };
            let after = if in_doubt { self.last_entry.lock().to_string() } else { String::new() };
            let mut script = scripts::STREAM_ADMIT.key(&self.keys.stream);
            script.key(&self.keys.epoch).key(&self.keys.exact_counters).key(&self.keys.held);
            script.arg(self.backlog).arg(after).arg(epoch).arg(GROUP).arg(consumer);
            for of_sale in
                orders.chunk_by(|one, next| one.buyer.voucher_id == next.buyer.voucher_id)
            {
                script.arg(of_sale[0].buyer.voucher_id).arg(of_sale.len());
                for order in of_sale {
                    script.arg(order.buyer.user_id);
                }
                for order in of_sale {
                    script.arg(order.id);
                }
            }
            let buyers = orders.iter().map(|order| order.buyer);
            self.keys.declare(&mut script, buyers.map(|buyer| (buyer.user_id, buyer.voucher_id)));
            match script.invoke_async::<Vec<String>>(&mut self.redis).await {
                Ok(reply) => return self.replied(reply, orders, taken_in),
                Err(error) => {
                    tracing::warn!(%error, "the admission script did not answer");
                    in_doubt |= !was_not_run(&error);
                }
            }
            if !in_doubt {
                return orders.iter().map(|_| Err(Error::Unavailable("Redis"))).collect();
            }
            let Some(pause) = pauses.next() else {
                let unknown = |order: &NewOrder| Err(Error::OutcomeUnknown(Some(order.id)));
                return orders.iter().map(unknown).collect();
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Counts and keeps what was admitted, also for clients that have hung up, and sends the consumer what was delivered in this generation of its lease.
    fn replied(
        &self,
        mut reply: Vec<String>,
        orders: &[NewOrder],
        taken_in: Option<u64>,
    ) -> Vec<Answer> {
        let delivered = reply.split_off(reply.len().min(orders.len()));
        let answers: Vec<Answer> = reply.iter().map(|reply| answer(reply)).collect();
        let entry = |(answer, order): (&Answer, &NewOrder)| match answer {
            Ok(Admission::Admitted(entry)) => Some((*order, *entry)),
            _ => None,
        };
        let admitted: Vec<(NewOrder, EntryId)> =
            answers.iter().zip(orders).filter_map(entry).collect();
        if let Some((_, last)) = admitted.last() {
            *self.last_entry.lock() = *last;
        }
        let epoch = delivered.first().map_or("", String::as_str).into();
        self.unconfirmed.keep(&epoch, admitted.iter().copied());
        self.stats.admitted.fetch_add(admitted.len() as u64, Relaxed);
        if let Some(generation) = taken_in {
            self.deliveries.send(delivery(generation, &admitted, &delivered));
        }
        answers
    }
}

/// What the script delivered: what it admitted, or nothing of it, and older entries.
fn delivery(generation: u64, admitted: &[(NewOrder, EntryId)], delivered: &[String]) -> Delivery {
    let is_held = delivered.get(1).is_some_and(|held| held == "held");
    let (held, left) = if is_held { (admitted, &[][..]) } else { (&[][..], admitted) };
    let older = delivered.get(2..).unwrap_or_default().chunks_exact(4).filter_map(|entry| {
        Some(Entry::new(EntryId::parse(&entry[0])?, &entry[1], &entry[2], &entry[3]))
    });
    let held = held.iter().map(|(order, entry)| Entry::of(*entry, *order));
    Delivery {
        generation,
        older: older.collect(),
        held: held.collect(),
        left_some: !left.is_empty(),
    }
}

/// What the script's reply to a purchase says.
fn answer(reply: &str) -> Answer {
    if let Some(entry) = EntryId::parse(reply) {
        return Ok(Admission::Admitted(entry));
    }
    Ok(match reply.split_once(": ").unwrap_or((reply, "")) {
        ("refused", code) => Admission::Refused(refusal(code)),
        ("other epoch", _) => Admission::OtherEpoch,
        ("no counter", _) => Admission::NoCounter,
        ("claimed", _) => Admission::Claimed,
        ("sold out", waiting) => {
            Admission::SoldOut { waiting: waiting.parse().unwrap_or(u64::MAX) }
        }
        ("full", _) => Admission::Full,
        _ => return Err(Error::Internal(format!("stream_admit.lua returned {reply:?}"))),
    })
}

#[cfg(test)]
mod tests {
    use super::super::entry_id::tests::id;
    use super::*;
    use crate::order::model::Buyer;

    #[test]
    fn the_consumer_gets_what_was_delivered_and_hears_of_what_was_not() {
        let order =
            |id| NewOrder { id, buyer: Buyer { user_id: id, voucher_id: 7 }, unguarded: false };
        let admitted = [(order(1), id(5, 1)), (order(3), id(5, 2))];
        let entries = || admitted.map(|(order, entry)| Entry::of(entry, order)).to_vec();
        let older = || Entry::new(id(4, 0), "9", "8", "7");
        for (delivered, older, held, left_some) in [
            (&["epoch", "held"][..], vec![], entries(), false),
            (&["epoch", "held", "4-0", "9", "8", "7"], vec![older()], entries(), false),
            (&["epoch", "", "4-0", "9", "8", "7"], vec![older()], vec![], true),
            (&["epoch", ""], vec![], vec![], true),
        ] {
            let delivered: Vec<String> = delivered.iter().map(|text| (*text).into()).collect();
            let found = delivery(3, &admitted, &delivered);
            assert_eq!(found, Delivery { generation: 3, older, held, left_some });
        }
        let none = ["epoch", ""].map(str::to_owned);
        assert!(!delivery(3, &[], &none).left_some);
    }

    #[test]
    fn a_reply_is_an_entry_or_says_why_there_is_none() {
        assert!(matches!(answer("5-1"), Ok(Admission::Admitted(entry)) if entry == id(5, 1)));
        assert!(matches!(answer("sold out: 12"), Ok(Admission::SoldOut { waiting: 12 })));
        let refused = answer("refused: ALREADY_ORDERED 5");
        assert!(matches!(refused, Ok(Admission::Refused(Error::AlreadyOrdered(Some(5))))));
        assert!(matches!(answer(""), Err(Error::Internal(_))));
    }
}
