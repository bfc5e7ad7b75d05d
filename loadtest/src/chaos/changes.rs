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

/// One attempt to buy, and what is asked of the instances, all at once, for the order that comes of it.
pub type Attempt = generator::Attempt<&'static [What]>;

/// An answer to the owner of an order who wanted it to be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub order_id: i64,
    pub what: What,
    /// [`Reply::Ordered`] where it is as was asked for.
    pub reply: Reply,
    /// From the purchase's request, or from before it, to this answer.
    pub age: Duration,
}

/// How often an operation that got these answers can have happened: once where one confirms it, never where all refuse it.
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

/// How long an order that was answered as pending, or whose outcome was unknown, may take to be there, before it is not changed
/// after all.
const PENDING_LIMIT: Duration = Duration::from_millis(1_500);
/// From one look to the next.
const PAUSE: Duration = Duration::from_millis(250);

/// Time limit of one request, also of one to buy.
pub const TIMEOUT: Duration = Duration::from_secs(3);

/// Who asks, and what.
#[derive(Debug, Clone)]
pub struct Owner {
    /// Base URLs of the instances.
    pub targets: Vec<Target>,
    pub buyer: Buyer,
    pub order_id: i64,
    /// When it was asked for, or before.
    pub bought: Instant,
}

impl Owner {
    /// Waits until the order is there or refused, no longer than that is worth it.
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

    /// Asks the instances, in turn, for each of `whats` at once.
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
                    // The reply holds the order itself, which the reader of purchases cannot use.
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
