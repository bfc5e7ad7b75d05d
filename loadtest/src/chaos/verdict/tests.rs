//! Tests of the verdict.

use workload::checker::{CANCELLED, Sale};

use super::*;
use What::{Cancel, Pay};

const DONE: Reply = Reply::Ordered(7);

fn record(user_id: u64, reply: Reply) -> Record {
    Record {
        trace: None,
        observed: ObservedReply {
            user_id,
            attempt: 0,
            reply,
        },
        due: Duration::ZERO,
        sent: Duration::ZERO,
        answered: Duration::ZERO,
    }
}

fn row(id: i64, user_id: u64) -> OrderRow {
    OrderRow {
        id,
        user_id,
        status: UNPAID,
    }
}

/// The verdict on a sale that issued so many vouchers and has so many left.
fn judge(
    outcome: &Outcome,
    (issued, stock_left): (i64, i64),
    rows: Vec<OrderRow>,
    (redis_lost, rows_lost): (bool, bool),
) -> SaleVerdict {
    let snapshot = Snapshot {
        sale: Sale {
            issued,
            stock_left,
            added: 0,
        },
        rows,
    };
    let outcome = Outcome {
        published: issued,
        rows_lost,
        redis_lost,
        ..outcome.clone()
    };
    SaleVerdict::judge(&outcome, &snapshot)
}

#[test]
fn a_row_after_a_definite_no_is_found_by_its_id_and_buyer() {
    // But for the no, the reply that got lost would excuse any row of this buyer.
    let records = vec![record(1, Reply::lost("TIME_OUT"))];
    let outcome = Outcome {
        records,
        noes: [(1, 7)].into(),
        ..Outcome::default()
    };
    for redis_lost in [false, true] {
        let judge_rows = |rows: Vec<OrderRow>| {
            judge(
                &outcome,
                (1, 1 - rows.len() as i64),
                rows,
                (redis_lost, false),
            )
        };
        assert!(judge_rows(Vec::new()).is_clean());
        assert!(judge_rows(vec![row(9, 1)]).is_clean());
        let found = judge_rows(vec![row(7, 1)]);
        assert_eq!(found.to_string(), "VIOLATION: row after a no 1");
        assert_eq!(
            found.checker.examples,
            ["user 1: order 7 exists after a no"]
        );
    }
}

#[test]
fn an_order_told_by_id_may_end_as_a_no_where_redis_may_lose_data() {
    let records = vec![
        record(
            1,
            Reply::Withdrawn {
                id: 7,
                code: "ORDER_NOT_FOUND".into(),
            },
        ),
        record(1, Reply::AlreadyOrdered(Some(7))),
        record(2, Reply::AlreadyOrdered(Some(8))),
        record(3, Reply::lost("TIME_OUT")),
        // True when it was said: the three buyers before held all vouchers.
        record(4, Reply::Refused("SOLD_OUT".into())),
    ];
    let outcome = Outcome {
        records,
        noes: [(1, 7), (2, 8)].into(),
        ..Outcome::default()
    };
    let judge_unsold = |stock, outcome: &Outcome, redis_lost| {
        judge(outcome, (stock, stock), Vec::new(), (redis_lost, false))
    };
    let excused = judge_unsold(3, &outcome, true);
    assert!(
        excused.is_clean() && excused.no_after_loss == 2,
        "{excused:?}"
    );
    assert_eq!(
        judge_unsold(4, &outcome, true).to_string(),
        "VIOLATION: false sold-out 1"
    );
    let counted = judge_unsold(3, &outcome, false);
    assert_eq!(
        counted.to_string(),
        "VIOLATION: lost 1, false sold-out 1, false duplicate 1"
    );
    let undecided = Outcome {
        records: vec![record(1, Reply::Pending(7))],
        noes: [].into(),
        ..outcome.clone()
    };
    assert!(judge_unsold(3, &undecided, true).checker.lost == 1);
    let committed = Outcome {
        records: vec![record(1, Reply::Ordered(7))],
        ..outcome
    };
    assert!(
        judge_unsold(3, &committed, true).checker.lost == 1,
        "whatever its look-up says"
    );
}

fn answers(replies: &[(What, Reply)], age_ms: u64) -> Vec<Answer> {
    let age = Duration::from_millis(age_ms);
    replies
        .iter()
        .cloned()
        .map(|(what, reply)| Answer {
            order_id: 7,
            what,
            reply,
            age,
        })
        .collect()
}

#[test]
fn payments_and_cancellations_must_agree_with_their_answers() {
    let no = || Reply::Refused("ALREADY_PAID".into());
    let unknown = || Reply::lost("TIME_OUT");
    let is_false = |replies: &[(What, Reply)], status| {
        let row = OrderRow {
            id: 7,
            user_id: 1,
            status,
        };
        false_change(&row, &answers(replies, 0), None).is_some()
    };
    assert!(!is_false(&[(Cancel, DONE), (Cancel, no())], CANCELLED));
    assert!(
        is_false(&[(Cancel, DONE), (Cancel, no())], UNPAID),
        "confirmed, did not happen"
    );
    assert!(
        is_false(&[(Cancel, no()), (Cancel, no())], CANCELLED),
        "refused, happened"
    );
    assert!(!is_false(&[(Cancel, no()), (Cancel, no())], UNPAID));
    assert!(!is_false(&[(Cancel, no()), (Cancel, unknown())], CANCELLED));
    assert!(!is_false(
        &[(Cancel, unknown()), (Cancel, unknown())],
        UNPAID
    ));
    assert!(!is_false(&[(Pay, DONE), (Cancel, no())], PAID));
    assert!(
        is_false(&[(Pay, DONE), (Cancel, DONE)], PAID),
        "both confirmed"
    );
    assert!(
        is_false(&[(Pay, no()), (Pay, no())], PAID),
        "refused, happened"
    );
}

#[test]
fn an_order_that_nobody_cancelled_may_have_expired_where_orders_do() {
    let row = OrderRow {
        id: 7,
        user_id: 1,
        status: CANCELLED,
    };
    let limit = Some(Duration::from_secs(2));
    assert!(false_change(&row, &[], None).is_some());
    assert!(false_change(&row, &[], limit).is_none());
    let gone = || (Pay, Reply::Refused("ORDER_CANCELLED".into()));
    let early =
        |replies: &[(What, Reply)], age_ms| expired_early(&answers(replies, age_ms), limit).count();
    assert_eq!(early(&[gone()], 300), 1);
    assert_eq!(early(&[gone()], 3_000), 0);
    assert_eq!(
        early(&[gone(), (Cancel, DONE)], 300),
        0,
        "its owner cancelled it"
    );
}

#[test]
fn orders_that_the_database_may_lose_are_counted_apart_and_never_excuse_an_oversold_sale() {
    // Order 7 is lost. Its buyer is told of it once more, and has order 9 after that.
    let records = vec![
        record(1, Reply::Ordered(7)),
        record(1, Reply::AlreadyOrdered(Some(7))),
        record(1, Reply::Ordered(9)),
        record(2, Reply::Pending(8)),
    ];
    let outcome = Outcome {
        records,
        ..Outcome::default()
    };
    let judge_rows =
        |stock_left, rows, rows_lost| judge(&outcome, (2, stock_left), rows, (false, rows_lost));
    let rows = vec![row(8, 2), row(9, 1)];
    let excused = judge_rows(0, rows.clone(), true);
    assert!(
        excused.is_clean() && excused.lost_by_database == 1,
        "{excused}"
    );
    let counted = judge_rows(0, rows, false);
    assert!(
        counted.checker.lost > 0 && counted.lost_by_database == 0,
        "{counted}"
    );
    let oversold = judge_rows(-1, vec![row(8, 2), row(9, 1), row(10, 3)], true);
    assert!(oversold.checker.oversold > 0, "{oversold}");
    let twice = judge_rows(0, vec![row(9, 1), row(10, 1)], true);
    assert!(twice.checker.duplicates > 0, "{twice}");
}

#[test]
fn invented_and_unsold_stock_are_violations() {
    let checker = Verdict {
        drift: -2,
        ..Verdict::default()
    };
    let verdict = SaleVerdict {
        checker,
        stranded: 1,
        ..SaleVerdict::default()
    };
    assert_eq!(verdict.to_string(), "VIOLATION: drift -2, stranded 1");
}
