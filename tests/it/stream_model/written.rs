//! Walks that are written by hand: each needs a rule of a script that no random walk needs.

use std::collections::BTreeSet;

use super::redis::{Count, Entry, Key, Mark, Op, Open, Order, Outcome, Redis, Reply};
use super::rules::Omission;
use super::world::Recorded;

/// The calls of a walk, and the rule without which a script does something else in them.
pub struct WrittenWalk {
    pub rule: Omission,
    pub calls: Vec<Recorded>,
}

pub fn walks() -> [WrittenWalk; 3] {
    [
        WrittenWalk {
            rule: Omission {
                walk: 0,
                script: "admit",
                rule: " and redis.pcall('SISMEMBER', claims, m) == 1",
                instead: " ~= nil",
            },
            calls: admit_after_the_claims_were_lost(),
        },
        WrittenWalk {
            rule: Omission {
                walk: 0,
                script: "resolve",
                rule: " and not string.find(' ' .. left, ' ' .. voucher .. ':', 1, true)",
                instead: "",
            },
            calls: refuse_one_of_a_buyers_two_orders(),
        },
        WrittenWalk {
            rule: Omission {
                walk: 0,
                script: "look",
                rule: "':([^: ]+)%f[ %z]'",
                instead: "':([^: ]+)$'",
            },
            calls: look_up_an_order_whose_entry_was_deleted(),
        },
    ]
}

/// Without claims nobody knows who has bought: the sale is closed until it is counted.
fn admit_after_the_claims_were_lost() -> Vec<Recorded> {
    let mut recorder = Recorder::default();
    recorder.open_sale();
    recorder.call(Op::Lose(Key::Claims));
    recorder.call(Op::Admit {
        orders: vec![Order {
            id: (1, 1),
            user: 0,
        }],
        late: false,
    });
    recorder.calls
}

/// A Java node that lost its claims admitted the buyer twice. The other order, which is still pending, needs the claim.
fn refuse_one_of_a_buyers_two_orders() -> Vec<Recorded> {
    let mut recorder = Recorder::default();
    let mark = recorder.open_sale();
    let [refused, pending] = recorder.add_two_orders_of_one_buyer();
    recorder.count(mark, Open::Under(mark), vec![(1, refused), (2, pending)]);
    recorder.call(Op::Resolve {
        mark,
        entry: 1,
        order: refused,
        outcome: Outcome::Refused(false),
    });
    recorder.calls
}

/// The stream has lost the first of a buyer's two pending orders, which nobody will commit.
fn look_up_an_order_whose_entry_was_deleted() -> Vec<Recorded> {
    let mut recorder = Recorder::default();
    recorder.open_sale();
    let [lost, _] = recorder.add_two_orders_of_one_buyer();
    recorder.call(Op::Delete(1));
    recorder.call(Op::LookUser(lost.user));
    recorder.calls
}

#[derive(Default)]
struct Recorder {
    redis: Redis,
    calls: Vec<Recorded>,
}

impl Recorder {
    /// Makes the call in the model, a second after the one before.
    fn call(&mut self, op: Op) -> Reply {
        let number = self.calls.len() as u32 + 1;
        let reply = self.redis.apply(&op, number, number, "");
        self.calls.push(Recorded {
            op,
            now: number,
            number,
            reply: reply.clone(),
            after: self.redis.clone(),
        });
        reply
    }

    /// Opens a sale of five.
    fn open_sale(&mut self) -> Mark {
        let Reply::Mark(mark) = self.call(Op::Look) else {
            panic!("a look returns the mark");
        };
        let opener = 1;
        self.call(Op::Step("close", opener, BTreeSet::new()));
        self.count(mark, Open::By(opener), Vec::new());
        mark
    }

    /// Adds them to the stream as a Java node does; a look notes that they are pending.
    fn add_two_orders_of_one_buyer(&mut self) -> [Order; 2] {
        let orders = [1, 2].map(|number| Order {
            id: (1, number),
            user: 0,
        });
        self.call(Op::Add(1, orders[0]));
        self.call(Op::Add(2, orders[1]));
        self.call(Op::Page(None));
        orders
    }

    fn count(&mut self, mark: Mark, open_before: Open, undecided: Vec<(Entry, Order)>) {
        let last = undecided.last().map_or(0, |(entry, _)| *entry);
        let count = Count {
            mark,
            open_before,
            stock: 5,
            last,
            undecided,
            active: Vec::new(),
            void_claims: Vec::new(),
            late: false,
        };
        assert_eq!(self.call(Op::Open(count)), Reply::Yes);
    }
}
