//! Payments and cancellations of orders, asked of several instances at once, and their answers.

use std::{ops::RangeInclusive, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use workload::{
    Target,
    buyers::Buyer,
    generator,
    http::{Call, Connection},
    pending,
    reply::Reply,
};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Pay,
    Cancel,
}

/// One attempt to buy, and the changes that are asked for, all at once, if it makes an order.
pub type Attempt = generator::Attempt<&'static [What]>;

/// The answer to an owner who asked to change an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub order_id: i64,
    pub what: What,
    /// [`Reply::Ordered`] if the order is now as was asked for.
    pub reply: Reply,
    /// The order's age at this answer, or more: it counts from the purchase's request or from before it.
    pub age: Duration,
}

/// How often an operation that got these answers can have happened: once if one of them confirms it, never if all refuse it,
/// otherwise either.
pub fn times<'a>(answers: impl IntoIterator<Item = &'a Reply>) -> RangeInclusive<i64> {
    let mut min = 0;
    let mut max = 0;
    for answer in answers {
        min |= i64::from(matches!(answer, Reply::Ordered(_)));
        max |= i64::from(!matches!(
            answer,
            Reply::Refused(_) | Reply::AlreadyOrdered(_)
        ));
    }
    min..=max
}

/// How long to wait for an order that was pending or of unknown outcome. If it is not there by then, it is not changed.
const PENDING_LIMIT: Duration = Duration::from_millis(1_500);
/// Pause between two look-ups.
const PAUSE: Duration = Duration::from_millis(250);

/// Time limit of one request, also of one to buy.
pub const TIMEOUT: Duration = Duration::from_secs(3);

/// The owner of an order, who asks for changes of it.
#[derive(Debug, Clone)]
pub struct Owner {
    /// Base URLs of the instances.
    pub targets: Vec<Target>,
    pub buyer: Buyer,
    pub order_id: i64,
    /// When the purchase was sent, or before.
    pub bought: Instant,
}

impl Owner {
    /// Waits until the order is there or refused, for [`PENDING_LIMIT`] at most; returns the last look-up's reply.
    pub async fn wait(&self) -> Reply {
        let begin = Instant::now();
        let mut connections: Vec<Connection> = self
            .targets
            .iter()
            .map(|target| Connection::new(target.clone(), TIMEOUT))
            .collect();
        loop {
            let reply = pending::look_up(&mut connections, &self.buyer.token, self.order_id).await;
            if !matches!(reply, Reply::Pending(_)) || begin.elapsed() >= PENDING_LIMIT {
                return reply;
            }
            sleep(PAUSE).await;
            // Another instance is asked first.
            connections.rotate_left(1);
        }
    }

    /// Asks for all of `whats` at once: the first of the first instance, and so on in turn.
    pub async fn ask(&self, whats: &[What]) -> Vec<Answer> {
        let mut asking = JoinSet::new();
        for (what, target) in whats.iter().copied().zip(self.targets.iter().cycle()) {
            let mut connection = Connection::new(target.clone(), TIMEOUT);
            let verb = if what == What::Pay { "pay" } else { "cancel" };
            let path = format!("/voucher-order/{}/{verb}", self.order_id);
            let call = Call::post(path).token(&self.buyer.token);
            let order_id = self.order_id;
            let bought = self.bought;
            asking.spawn(async move {
                let reply = match Reply::from_answer(&connection.send(&call).await) {
                    // A success holds the order itself, which is malformed for the reader of purchases' replies.
                    Reply::Malformed => Reply::Ordered(order_id),
                    reply => reply,
                };
                Answer {
                    order_id,
                    what,
                    reply,
                    age: bought.elapsed(),
                }
            });
        }
        asking.join_all().await
    }
}
