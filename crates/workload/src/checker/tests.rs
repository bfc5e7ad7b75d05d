//! The checker, judged: an honest sale is clean, and each planted lie is found as just that lie.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

/// Three sold of five on sale; user 4 lost the reply, user 5 came when the lock was busy.
fn honest() -> (Sale, Vec<ObservedReply>, Vec<OrderRow>) {
    let asked = vec![
        asked(1, Reply::Ordered(101)),
        asked(1, Reply::AlreadyOrdered(Some(101))),
        asked(2, Reply::Ordered(102)),
        asked(2, Reply::AlreadyOrdered(None)),
        asked(2, refused("LOCK_BUSY")),
        asked(4, Reply::lost("TIME_OUT")),
        asked(5, refused("LOCK_BUSY")),
        asked(5, Reply::not_sent()),
        asked(6, refused("STOCK_CHANGED")),
    ];
    let rows = vec![row(101, 1), row(102, 2), row(104, 4)];
    (Sale { issued: 5, stock_left: 2, added: 0 }, asked, rows)
}

fn asked(user_id: u64, reply: Reply) -> ObservedReply {
    ObservedReply { user_id, attempt: 0, reply }
}

fn refused(code: &'static str) -> Reply {
    Reply::Refused(code.into())
}

fn row(id: i64, user_id: u64) -> OrderRow {
    OrderRow { id, user_id, status: 1 }
}

/// Plants one change in the honest sale and expects exactly these violations.
#[track_caller]
fn plant(
    change: impl FnOnce(&mut Sale, &mut Vec<ObservedReply>, &mut Vec<OrderRow>),
    expected: &[(&'static str, i64)],
) {
    let (mut sale, mut asked, mut rows) = honest();
    change(&mut sale, &mut asked, &mut rows);
    let verdict = judge(sale, &asked, &rows);
    assert_eq!(verdict.violations(), expected, "{verdict:#?}");
    assert_eq!(verdict.is_clean(), expected.is_empty());
}

#[test]
fn an_honest_sale_is_clean() {
    plant(|_, _, _| (), &[]);
    let (sale, asked, rows) = honest();
    let verdict = judge(sale, &asked, &rows);
    assert_eq!((verdict.orders, verdict.issued, verdict.stock_left), (3, 5, 2));
    assert_eq!(verdict.unacknowledged, 1, "user 4's order");
    assert_eq!(verdict.examples, Vec::<String>::new());
}

#[test]
fn a_lost_update_shows_as_overselling_and_drift() {
    plant(
        |sale, _, _| *sale = Sale { issued: 2, stock_left: 0, added: 0 },
        &[("oversold", 1), ("drift", -1)],
    );
}

#[test]
fn every_order_beyond_the_first_counts() {
    plant(
        |sale, asked, rows| {
            for id in [111, 112] {
                asked.push(self::asked(1, Reply::Ordered(id)));
                rows.push(row(id, 1));
            }
            sale.stock_left -= 2;
        },
        &[("duplicates", 2)],
    );
}

#[test]
fn a_success_whose_row_belongs_to_someone_else_is_lost() {
    plant(|_, asked, _| asked.push(self::asked(5, Reply::Ordered(101))), &[("lost", 1)]);
}

#[test]
fn a_row_of_a_stranger_is_a_phantom() {
    plant(
        |sale, _, rows| {
            rows.push(row(199, 99));
            sale.stock_left -= 1;
        },
        &[("phantom", 1)],
    );
}

#[test]
fn a_row_under_another_id_than_told_is_lost_and_phantom() {
    plant(|_, _, rows| rows[0].id = 111, &[("lost", 1), ("phantom", 1), ("false duplicate", 1)]);
}

#[test]
fn sold_out_is_true_when_nothing_is_left_or_only_a_cancellation_returned() {
    plant(
        |sale, asked, _| {
            *sale = Sale { issued: 3, stock_left: 0, added: 0 };
            asked.push(self::asked(5, refused(SOLD_OUT)));
        },
        &[],
    );
    plant(
        |sale, asked, rows| {
            *sale = Sale { issued: 3, stock_left: 1, added: 0 };
            rows[0].status = CANCELLED;
            asked.push(self::asked(5, refused(SOLD_OUT)));
        },
        &[],
    );
}

#[test]
fn a_success_without_an_id_is_malformed_and_owns_its_row() {
    plant(
        |sale, asked, rows| {
            asked.push(self::asked(5, Reply::Malformed));
            rows.push(row(105, 5));
            sale.stock_left -= 1;
        },
        &[("malformed", 1)],
    );
}

/// What a consumer that acknowledges first does to an order when it dies before the commit.
#[test]
fn a_pending_order_that_never_comes_is_lost() {
    plant(|_, asked, _| asked.push(self::asked(5, Reply::Pending(105))), &[("lost", 1)]);
}

fn withdrawn(id: i64) -> Reply {
    Reply::Withdrawn { id, code: SOLD_OUT.into() }
}

#[test]
fn a_pending_order_may_be_refused_when_nothing_is_left() {
    plant(
        |sale, asked, _| {
            *sale = Sale { issued: 3, stock_left: 0, added: 0 };
            asked.push(self::asked(5, withdrawn(105)));
            // While it was pending, that was true.
            asked.push(self::asked(5, Reply::AlreadyOrdered(Some(105))));
        },
        &[],
    );
}

#[test]
fn a_pending_order_that_is_refused_with_stock_left_is_lost() {
    plant(|_, asked, _| asked.push(self::asked(5, withdrawn(105))), &[("lost", 1)]);
}

#[test]
fn a_pending_order_of_which_nothing_is_known_is_lost_unless_its_user_has_another() {
    for (user, lost) in [(5, 1), (1, 0)] {
        let (mut sale, mut asked, rows) = honest();
        (sale.issued, sale.stock_left) = (3, 0);
        let code = ORDER_NOT_FOUND.into();
        asked.push(self::asked(user, Reply::Withdrawn { id: 105, code }));
        assert_eq!(judge(sale, &asked, &rows).lost, lost);
    }
}

#[test]
fn a_row_of_a_pending_order_that_was_refused_is_a_phantom() {
    plant(
        |sale, asked, rows| {
            asked.push(self::asked(5, withdrawn(105)));
            rows.push(row(105, 5));
            sale.stock_left -= 1;
        },
        &[("phantom", 1)],
    );
}

#[test]
fn a_cancelled_order_returns_its_stock_once_and_not_twice_or_never() {
    for (returned, expected) in [(0, &[("drift", 1_i64)] as &[_]), (1, &[]), (2, &[("drift", -1)])]
    {
        plant(
            |sale, _, rows| {
                rows[0].status = CANCELLED;
                sale.stock_left += returned;
            },
            expected,
        );
        // Bought again: the first order's stock came back, and went again.
        plant(
            |sale, asked, rows| {
                rows[0].status = CANCELLED;
                rows.push(row(111, 1));
                asked.push(self::asked(1, Reply::Ordered(111)));
                sale.stock_left += returned - 1;
            },
            expected,
        );
    }
}

/// A random honest sale: every user's replies and rows agree by construction.
fn random_honest(rng: &mut StdRng) -> (Sale, Vec<ObservedReply>, Vec<OrderRow>) {
    let (mut replies, mut rows) = (Vec::new(), Vec::new());
    let users = rng.random_range(1..60_u64);
    let issued = rng.random_range(0..40_i64);
    for user in 1..=users {
        let id = 1_000 + i64::try_from(user).unwrap();
        let sold = i64::try_from(rows.len()).unwrap() < issued && rng.random_bool(0.5);
        if sold {
            rows.push(row(id, user));
            let owner = match rng.random_range(0..4) {
                0 => Reply::Ordered(id),
                1 => Reply::Pending(id),
                2 => Reply::lost("CONNECTION_LOST"),
                _ => Reply::AlreadyOrdered(Some(id)),
            };
            replies.push(asked(user, owner));
        }
        for _ in 0..rng.random_range(1..4) {
            replies.push(asked(
                user,
                match rng.random_range(0..3) {
                    0 if sold => Reply::AlreadyOrdered(None),
                    1 => refused("LOCK_BUSY"),
                    _ => Reply::lost("TIME_OUT"),
                },
            ));
        }
    }
    let stock_left = issued - i64::try_from(rows.len()).unwrap();
    (Sale { issued, stock_left, added: 0 }, replies, rows)
}

/// A change that breaks one invariant of any honest sale, once, and no other. It gets a user whom nobody knows.
type Lie = fn(u64, &mut Sale, &mut Vec<ObservedReply>, &mut Vec<OrderRow>);

/// One lie for each invariant, under its name.
const LIES: [(&str, Lie); 8] = [
    ("oversold", |_, sale, _, rows| {
        let orders = i64::try_from(rows.len()).unwrap();
        *sale = Sale { issued: orders - 1, stock_left: -1, added: 0 };
    }),
    ("duplicates", |user, sale, replies, rows| {
        for id in [9_001, 9_002] {
            replies.push(asked(user, Reply::Ordered(id)));
            rows.push(row(id, user));
        }
        sale.issued += 2;
    }),
    ("lost", |user, _, replies, _| replies.push(asked(user, Reply::Ordered(9_001)))),
    ("phantom", |user, sale, replies, rows| {
        replies.push(asked(user, refused("LOCK_BUSY")));
        rows.push(row(9_001, user));
        sale.issued += 1;
    }),
    ("drift", |_, sale, _, _| sale.issued += 1),
    ("false sold-out", |user, sale, replies, _| {
        replies.push(asked(user, refused(SOLD_OUT)));
        sale.issued += 1;
        sale.stock_left += 1;
    }),
    ("false duplicate", |user, _, replies, _| {
        replies.push(asked(user, Reply::AlreadyOrdered(None)));
    }),
    ("malformed", |user, _, replies, _| replies.push(asked(user, Reply::Malformed))),
];

#[test]
fn random_honest_sales_are_clean_and_each_lie_is_seen_as_what_it_is() {
    assert_eq!(LIES.map(|(name, _)| name), Verdict::default().invariants().map(|(name, _)| name));
    for seed in 0..300 {
        let (sale, replies, rows) = random_honest(&mut StdRng::seed_from_u64(seed));
        let verdict = judge(sale, &replies, &rows);
        assert!(verdict.is_clean(), "seed {seed}: {verdict:#?}");
        for (name, lie) in LIES {
            let (mut sale, mut replies, mut rows) = (sale, replies.clone(), rows.clone());
            lie(9_999, &mut sale, &mut replies, &mut rows);
            let verdict = judge(sale, &replies, &rows);
            assert_eq!(verdict.violations(), [(name, 1)], "seed {seed}: {verdict:#?}");
        }
    }
}
