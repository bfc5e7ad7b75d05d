//! The checker, judged: honest sales are clean, and what is planted in them is found as just that.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

/// A sale: what its buyers were told, and what is in the tables.
#[derive(Clone, Default)]
struct Case {
    sale: Sale,
    replies: Vec<ObservedReply>,
    rows: Vec<OrderRow>,
}

impl Case {
    fn tell(&mut self, user_id: u64, reply: Reply) {
        self.replies.push(ObservedReply {
            user_id,
            attempt: 0,
            reply,
        });
    }

    /// One voucher more, and its order.
    fn sell(&mut self, id: i64, user_id: u64) {
        self.sale.issued += 1;
        self.rows.push(OrderRow {
            id,
            user_id,
            status: 1,
        });
    }

    /// So many vouchers more, which nobody bought.
    fn stock_up(&mut self, count: i64) {
        self.sale.issued += count;
        self.sale.stock_left += count;
    }

    fn sell_out(&mut self) {
        self.stock_up(-self.sale.stock_left);
    }

    /// An order that was told and then cancelled; so much stock came back.
    fn cancel(&mut self, id: i64, user_id: u64, returned: i64) {
        self.tell(user_id, Reply::Ordered(id));
        self.sale.issued += 1;
        self.sale.stock_left += returned;
        self.rows.push(OrderRow {
            id,
            user_id,
            status: CANCELLED,
        });
    }

    fn verdict(&self) -> Verdict {
        judge(self.sale, &self.replies, &self.rows)
    }
}

fn refused(code: &'static str) -> Reply {
    Reply::Refused(code.into())
}

/// The order 1, of which nothing came.
fn withdrawn(code: &'static str) -> Reply {
    Reply::Withdrawn {
        id: 1,
        code: code.into(),
    }
}

/// A random honest sale: every user's replies and rows agree by construction.
fn random_honest(rng: &mut StdRng) -> Case {
    let mut case = Case::default();
    for user in 1..rng.random_range(2..61_u64) {
        let id = 1_000 + i64::try_from(user).unwrap();
        let sold = rng.random_bool(0.5);
        if sold {
            case.sell(id, user);
            let owner = match rng.random_range(0..4) {
                0 => Reply::Ordered(id),
                1 => Reply::Pending(id),
                2 => Reply::lost("CONNECTION_LOST"),
                _ => Reply::AlreadyOrdered(Some(id)),
            };
            case.tell(user, owner);
        }
        for _ in 0..rng.random_range(1..4) {
            let further_reply = match rng.random_range(0..3) {
                0 if sold => Reply::AlreadyOrdered(None),
                1 => refused("LOCK_BUSY"),
                _ => Reply::lost("TIME_OUT"),
            };
            case.tell(user, further_reply);
        }
    }
    case.stock_up(rng.random_range(0..20));
    case
}

/// Two users who are in no honest sale.
const ANN: u64 = 9_001;
const BOB: u64 = 9_002;

/// What is planted in an honest sale, the violations that it makes, and the function that plants it.
type Planted = (&'static str, &'static [(&'static str, i64)], fn(&mut Case));

const PLANTED: &[Planted] = &[
    ("nothing", &[], |_| ()),
    ("a lost update", &[("oversold", 1), ("drift", -1)], |case| {
        case.sell_out();
        case.sale.issued -= 1;
    }),
    ("stock below zero", &[("oversold", 1)], |case| {
        case.sell_out();
        case.stock_up(-1);
    }),
    (
        "every order beyond the first",
        &[("duplicates", 2)],
        |case| {
            for id in [1, 2, 3] {
                case.tell(ANN, Reply::Ordered(id));
                case.sell(id, ANN);
            }
        },
    ),
    ("an order without a row", &[("lost", 1)], |case| {
        case.tell(ANN, Reply::Ordered(1))
    }),
    ("an order that is someone else's", &[("lost", 1)], |case| {
        case.tell(ANN, Reply::Ordered(1));
        case.tell(BOB, Reply::Ordered(1));
        case.sell(1, BOB);
    }),
    // What a consumer that acknowledges first does to an order when it dies before the commit.
    ("a pending order that never comes", &[("lost", 1)], |case| {
        case.tell(ANN, Reply::Pending(1))
    }),
    ("a row of a stranger", &[("phantom", 1)], |case| {
        case.sell(1, ANN)
    }),
    (
        "a row of a user who was refused",
        &[("phantom", 1)],
        |case| {
            case.tell(ANN, refused("LOCK_BUSY"));
            case.sell(1, ANN);
        },
    ),
    (
        "a row under another id than told",
        &[("lost", 1), ("phantom", 1), ("false duplicate", 1)],
        |case| {
            case.tell(ANN, Reply::Ordered(1));
            case.tell(ANN, Reply::AlreadyOrdered(Some(1)));
            case.sell(2, ANN);
        },
    ),
    ("stranded stock", &[("drift", 1)], |case| {
        case.sale.issued += 1
    }),
    (
        "sold out, with stock left",
        &[("false sold-out", 1)],
        |case| {
            case.tell(ANN, refused(SOLD_OUT));
            case.stock_up(1);
        },
    ),
    ("sold out, with nothing left", &[], |case| {
        case.tell(ANN, refused(SOLD_OUT));
        case.sell_out();
    }),
    (
        "sold out, where only a cancellation and an addition left some",
        &[],
        |case| {
            case.tell(ANN, refused(SOLD_OUT));
            case.sell_out();
            case.cancel(1, BOB, 1);
            case.stock_up(1);
            case.sale.added = 1;
        },
    ),
    (
        "an earlier order that does not exist",
        &[("false duplicate", 1)],
        |case| case.tell(ANN, Reply::AlreadyOrdered(None)),
    ),
    (
        "a success without an id, and without an order",
        &[("lost", 1), ("malformed", 1)],
        |case| case.tell(ANN, Reply::Malformed),
    ),
    (
        "a success without an id, which owns its row",
        &[("malformed", 1)],
        |case| {
            case.tell(ANN, Reply::Malformed);
            case.sell(1, ANN);
        },
    ),
    (
        "a pending order that was refused when nothing was left",
        &[],
        |case| {
            case.sell_out();
            case.tell(ANN, withdrawn(SOLD_OUT));
            // While it was pending, that was true.
            case.tell(ANN, Reply::AlreadyOrdered(Some(1)));
        },
    ),
    (
        "a pending order that was refused with stock left",
        &[("lost", 1)],
        |case| {
            case.stock_up(1);
            case.tell(ANN, withdrawn(SOLD_OUT));
        },
    ),
    (
        "a pending order of which nothing is known",
        &[("lost", 1)],
        |case| {
            case.sell_out();
            case.tell(ANN, withdrawn(ORDER_NOT_FOUND));
        },
    ),
    ("the same, of a user who has another order", &[], |case| {
        case.tell(ANN, withdrawn(ORDER_NOT_FOUND));
        case.tell(ANN, Reply::Ordered(2));
        case.sell(2, ANN);
    }),
    (
        "a row of a pending order that was refused",
        &[("phantom", 1)],
        |case| {
            case.tell(ANN, withdrawn(SOLD_OUT));
            case.sell(1, ANN);
        },
    ),
    (
        "a cancelled order that never returned its stock",
        &[("drift", 1)],
        |case| case.cancel(1, ANN, 0),
    ),
    (
        "a cancelled order that returned it twice",
        &[("drift", -1)],
        |case| case.cancel(1, ANN, 2),
    ),
    (
        "a cancelled order that returned it once, and a new one of the same user",
        &[],
        |case| {
            case.cancel(1, ANN, 1);
            case.tell(ANN, Reply::Ordered(2));
            case.sell(2, ANN);
        },
    ),
];

#[test]
fn random_honest_sales_are_clean_and_each_planted_violation_is_named() {
    for (name, _) in Verdict::default().invariants() {
        assert!(
            PLANTED
                .iter()
                .any(|(_, expected, _)| expected.iter().any(|(broken, _)| *broken == name)),
            "{name}"
        );
    }
    for seed in 0..300 {
        let honest = random_honest(&mut StdRng::seed_from_u64(seed));
        for (what, expected, plant) in PLANTED {
            let mut case = honest.clone();
            plant(&mut case);
            let verdict = case.verdict();
            assert_eq!(
                verdict.violations(),
                *expected,
                "{what}, seed {seed}: {verdict:#?}"
            );
            assert_eq!(verdict.is_clean(), expected.is_empty());
        }
    }
}

#[test]
fn an_order_whose_reply_was_lost_is_counted_and_not_a_violation() {
    let mut case = Case::default();
    case.tell(ANN, Reply::lost("TIME_OUT"));
    case.sell(1, ANN);
    case.stock_up(2);
    let counted = Verdict {
        orders: 1,
        issued: 3,
        stock_left: 2,
        ..Verdict::default()
    };
    assert_eq!(
        case.verdict(),
        Verdict {
            unacknowledged: 1,
            ..counted
        }
    );
}
