//! The call of the admission script (`lua/stream_admit.lua`), for all purchases that arrive while the call before it is
//! in flight. Sent again under the same order id after a lost reply, it counts once. What it delivers goes to the consumer.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder};

use super::deliveries::{Deliveries, Delivery};
use super::entry::Entry;
use super::names::{GROUP, STATUS_TTL_S};
use super::order_status::refusal;
use crate::connection::coalescer::Coalescer;
use crate::connection::redis::{RoutedConnection, was_not_run};
use crate::error::Error;
use crate::keys::ShardKeys;
use crate::order::model::{Buyer, NewOrder};
use crate::scripts;

/// When replies are lost, the script is sent three times in all.
const RETRIES: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_millis(50)).with_max_times(2);

/// Buyers that one call admits at most, so that it never keeps Redis from others for long.
const BATCH: usize = 64;

/// Strings that the script returns for each.
const STRINGS: usize = 2;

/// An order, and the epoch in which its id was leased.
type Request = (NewOrder, Arc<str>);
type Answer = Result<Admission, Error>;

/// Batches the requests; see [`batcher`].
pub(super) type AdmissionBatcher = Coalescer<Request, Answer>;

/// What the script decided.
pub(super) enum Admission {
    Admitted {
        entry: String,
        epoch: Arc<str>,
    },
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
}

impl AdmissionScript {
    /// Starts the batcher.
    pub fn batcher(self) -> AdmissionBatcher {
        Coalescer::start(BATCH, move |requests| self.clone().admit(requests))
    }

    async fn admit(mut self, requests: Vec<Request>) -> Vec<Answer> {
        let Some((_, epoch)) = requests.last() else { return Vec::new() };
        // Nearly always the epoch of all: a node knows one at a time.
        let sent: Vec<NewOrder> =
            requests.iter().filter(|(_, of)| of == epoch).map(|(order, _)| *order).collect();
        let mut answers = self.call(&sent, epoch).await.into_iter();
        let answer = |(_, of): &Request| match of == epoch {
            true => answers.next().unwrap_or(Err(Error::OutcomeUnknown(None))),
            false => Ok(Admission::OtherEpoch),
        };
        requests.iter().map(answer).collect()
    }

    /// Runs the script for these orders, whose ids were leased in this epoch.
    async fn call(&mut self, orders: &[NewOrder], epoch: &str) -> Vec<Answer> {
        let (mut pauses, mut in_doubt) = (RETRIES.build(), false);
        loop {
            // After a lost reply nobody knows what was delivered: the consumer reads what is pending under its name.
            let taken_in = self.deliveries.taken_in().filter(|_| !in_doubt);
            let consumer = if taken_in.is_some() { &*self.consumer } else { "" };
            let mut script = scripts::STREAM_ADMIT.key(&self.keys.stream);
            script.key(&self.keys.epoch).key(&self.keys.exact_counters);
            script.arg(self.backlog).arg(STATUS_TTL_S).arg(i32::from(in_doubt)).arg(epoch);
            script.arg(GROUP).arg(consumer);
            for NewOrder { id, buyer: Buyer { user_id, voucher_id }, .. } in orders {
                script.arg(user_id).arg(voucher_id).arg(id);
            }
            let buyers = orders.iter().map(|order| order.buyer);
            self.keys.declare(&mut script, buyers.map(|buyer| (buyer.user_id, buyer.voucher_id)));
            match script.invoke_async::<Vec<String>>(&mut self.redis).await {
                Ok(reply) => {
                    let (answers, delivered) =
                        reply.split_at(reply.len().min(STRINGS * orders.len()));
                    let answers = parse(answers, delivered.first().map_or("", String::as_str));
                    if let Some(generation) = taken_in {
                        let delivery = delivery(generation, orders, &answers, delivered);
                        self.deliveries.send(delivery);
                    }
                    return answers;
                }
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
}

/// What the script delivered: the first so many of those that it admitted, and older entries.
fn delivery(
    generation: u64,
    orders: &[NewOrder],
    answers: &[Answer],
    delivered: &[String],
) -> Delivery {
    let count = delivered.get(1).and_then(|count| count.parse().ok()).unwrap_or(0);
    let added = orders.iter().zip(answers).filter_map(|(order, answer)| match answer {
        Ok(Admission::Admitted { entry, .. }) => Some((order, entry)),
        _ => None,
    });
    let left_some = added.clone().count() > count;
    let ours = added.take(count).map(|(order, entry)| Entry::of(entry.clone(), *order));
    let older = delivered.get(2..).unwrap_or_default().chunks_exact(4);
    let older = older.map(|entry| Entry::new(entry[0].clone(), &entry[1], &entry[2], &entry[3]));
    Delivery { generation, entries: older.chain(ours).collect(), left_some }
}

/// The answers in the reply, which came in this epoch.
fn parse(reply: &[String], epoch: &str) -> Vec<Answer> {
    let epoch: Arc<str> = epoch.into();
    let answer = |words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(match words[..] {
            ["admitted", entry] => {
                Admission::Admitted { entry: entry.to_owned(), epoch: epoch.clone() }
            }
            // As of no epoch: the next round of maintenance adds it again.
            ["stream lost", entry] => {
                Admission::Admitted { entry: entry.to_owned(), epoch: "".into() }
            }
            ["refused", code] => Admission::Refused(refusal(code)),
            ["other epoch", _] => Admission::OtherEpoch,
            ["no counter", _] => Admission::NoCounter,
            ["claimed", _] => Admission::Claimed,
            ["sold out", waiting] => {
                Admission::SoldOut { waiting: waiting.parse().unwrap_or(u64::MAX) }
            }
            ["full", _] => Admission::Full,
            _ => return Err(Error::Internal(format!("stream_admit.lua returned {words:?}"))),
        })
    };
    reply.chunks(STRINGS).map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_consumer_gets_what_was_delivered_and_hears_of_what_was_not() {
        let order =
            |id| NewOrder { id, buyer: Buyer { user_id: id, voucher_id: 7 }, unguarded: false };
        let reply =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let orders = [order(1), order(2), order(3)];
        let answers = reply(&["admitted", "5-1", "claimed", "", "admitted", "5-2"]);
        let answers = parse(&answers, "epoch");
        let older = Entry::new("4-0".to_owned(), "9", "8", "7");
        let [first, last] = [("5-1", orders[0]), ("5-2", orders[2])]
            .map(|(id, order)| Entry::of(id.to_owned(), order));
        for (delivered, entries, left_some) in [
            (&["epoch", "2"][..], vec![first.clone(), last], false),
            (&["epoch", "1", "4-0", "9", "8", "7"], vec![older, first], true),
            (&["epoch", "0"], vec![], true),
        ] {
            let found = delivery(3, &orders, &answers, &reply(delivered));
            assert_eq!(found, Delivery { generation: 3, entries, left_some });
        }
        let none = parse(&reply(&["sold out", "0", "full", "", "claimed", ""]), "epoch");
        assert!(!delivery(3, &orders, &none, &reply(&["epoch", "0"])).left_some);
    }
}
