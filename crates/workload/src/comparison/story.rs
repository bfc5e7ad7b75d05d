//! Stories: the few attempts of a sale that show why it ended as it did: two that both
//! became orders of one user, with the one that deleted the lock between them if there is one; two that sold the same last
//! voucher; or, where the strategy held, one that was let through while others were turned away. Pure; works on the run's
//! own records.
//!
//! The nodes' clocks need not agree. No request can arrive before it was sent, nor be answered before its last step
//! ended: that bounds the difference between a node's clock and ours. Where all nodes may have the same difference, they
//! are taken to have it, or requests that one node received late would be shown too early beside those of another.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    time::Duration,
};

use strategies::SETNX_UNOWNED_LEASE;

use super::document::{Event, InjectedFault, Request, Story, StoryKind};
use crate::{
    checker::OrderRow,
    generator::Record,
    reply::Reply,
    trace::{Step, Trace},
};

/// Requests in a story at most.
const MOST: usize = 3;

/// An attempt with its steps, on our clock; µs since the first request.
struct Attempt<'a> {
    record: &'a Record,
    trace: Trace,
    /// Whether it was for another voucher.
    elsewhere: bool,
    /// When the request arrived.
    at_us: i64,
    /// When its order was seen in the table, where it is committed after the reply.
    committed_us: Option<i64>,
}

impl Attempt<'_> {
    fn sent_us(&self) -> i64 {
        self.record.sent.as_micros() as i64
    }

    fn answered_us(&self) -> i64 {
        self.record.answered.as_micros() as i64
    }

    /// When its last step ended.
    fn ended_us(&self) -> i64 {
        let steps = self.trace.steps.iter().map(|step| step.at + step.took);
        self.at_us + (steps.fold(0.0, f64::max) * 1e3).round() as i64
    }

    /// When its first step of that name began and ended.
    fn step_us(&self, name: &str) -> Option<(i64, i64)> {
        let step = self.trace.step(name)?;
        let us = |ms: f64| self.at_us + (ms * 1e3).round() as i64;
        Some((us(step.at), us(step.at + step.took)))
    }

    fn order_id(&self) -> Option<i64> {
        if self.elsewhere {
            return None;
        }
        match self.record.observed.reply {
            Reply::Ordered(id) | Reply::Pending(id) => Some(id),
            _ => None,
        }
    }

    fn overlaps(&self, attempt: &Self) -> bool {
        self.sent_us() < attempt.answered_us() && attempt.sent_us() < self.answered_us()
    }

    /// Whether the unique index refused its order: a second one, which no lock kept away.
    fn is_index_refused(&self) -> bool {
        let placed = self.trace.step("placed");
        placed
            .and_then(|step| step.saw.get("outcome"))
            .is_some_and(|how| how == "index-refused")
    }

    /// The stock it read before it took one.
    fn saw_stock(&self) -> Option<i64> {
        self.trace.step("looked")?.saw.get("stock")?.as_i64()
    }
}

/// From the first request to the last answer, µs.
fn span(chosen: &[&Attempt<'_>]) -> (i64, i64) {
    let begin = chosen
        .iter()
        .map(|attempt| attempt.sent_us())
        .min()
        .unwrap_or_default();
    let end = chosen
        .iter()
        .map(|attempt| attempt.answered_us())
        .max()
        .unwrap_or_default();
    (begin, end)
}

/// The fault that the attempts met, the first of several.
fn met(chosen: &[&Attempt<'_>], faults: &[Event]) -> Option<InjectedFault> {
    let (begin, end) = span(chosen);
    let begin = begin as f64 / 1e6;
    let end = end as f64 / 1e6;
    let met = faults
        .iter()
        .find(|fault| begin < fault.end() && fault.at < end)?;
    Some(met.what)
}

/// The traced attempts of one sale.
pub struct Attempts<'a>(Vec<Attempt<'a>>);

/// Attempts that make one story.
type Chosen<'a> = Vec<&'a Attempt<'a>>;

impl<'a> Attempts<'a> {
    /// Those of `records`, and of `elsewhere`, which were for another voucher, that tell their steps. `commits` are the seconds from the first request at which orders that
    /// were committed after the reply were in the table.
    pub fn from_records(
        records: &'a [Record],
        elsewhere: &'a [Record],
        commits: &HashMap<i64, f64>,
    ) -> Self {
        let records = records.iter().map(|record| (record, false));
        let elsewhere = elsewhere.iter().map(|record| (record, true));
        let traced = records.chain(elsewhere).filter_map(|(record, elsewhere)| {
            let trace = Trace::read(record.trace.as_deref()?)?;
            let at_us = i64::try_from(trace.at_us).ok()?;
            Some(Attempt {
                record,
                trace,
                elsewhere,
                at_us,
                committed_us: None,
            })
        });
        let mut attempts: Vec<_> = traced.collect();
        // How far each node's clock is ahead of ours: at least and at most.
        let mut ahead: HashMap<String, (i64, i64)> = HashMap::new();
        for attempt in &attempts {
            let max_ahead = attempt.at_us - attempt.sent_us();
            let min_ahead = attempt.ended_us() - attempt.answered_us();
            let bounds = ahead
                .entry(attempt.trace.node.clone())
                .or_insert((min_ahead, max_ahead));
            *bounds = (min_ahead.max(bounds.0), max_ahead.min(bounds.1));
        }
        let common = ahead
            .values()
            .map(|(_, max_ahead)| *max_ahead)
            .min()
            .unwrap_or_default();
        for attempt in &mut attempts {
            let (min_ahead, max_ahead) = ahead[&attempt.trace.node];
            attempt.at_us -= if min_ahead <= common {
                common
            } else {
                max_ahead
            };
            let committed_s = attempt.order_id().and_then(|id| commits.get(&id));
            attempt.committed_us = committed_s.map(|seconds| (seconds * 1e6) as i64);
        }
        Self(attempts)
    }

    /// The stories, the clearest first: at most one of each kind, and [`StoryKind::Held`] only where nothing went
    /// wrong. Attempts that met a fault are preferred.
    pub fn stories(&self, faults: &[Event]) -> Vec<Story> {
        let missed = |chosen: &Chosen<'_>| !faults.is_empty() && met(chosen, faults).is_none();
        let rank = |chosen: &Chosen<'_>| (missed(chosen), obscurity(chosen));
        let (several, held) = self.group_by_user();
        let let_in = self.let_in_by_foreign_delete(SETNX_UNOWNED_LEASE);
        let let_in = let_in.into_iter().find(|chosen| !missed(chosen));
        let two_orders = let_in.or_else(|| several.into_iter().min_by_key(rank).map(by_arrival));
        let two_orders = two_orders.map(|chosen| story(StoryKind::TwoOrders, chosen, faults));
        // The first of several, which is that of the fewest vouchers.
        let oversold = self.oversold().into_iter().min_by_key(missed);
        let oversold = oversold.map(|chosen| story(StoryKind::Oversold, chosen, faults));
        let mut found: Vec<Story> = two_orders.into_iter().chain(oversold).collect();
        if found.is_empty() {
            let held = held.into_iter().min_by_key(rank).map(by_arrival);
            found.extend(held.map(|chosen| story(StoryKind::Held, chosen, faults)));
        }
        found
    }

    /// How many second orders only the database's unique index refused.
    pub fn index_refused(&self) -> u64 {
        self.0
            .iter()
            .filter(|attempt| attempt.is_index_refused())
            .count() as u64
    }

    /// How many locks of other requests were deleted.
    pub fn foreign_deletes(&self) -> u64 {
        self.0
            .iter()
            .filter(|attempt| attempt.trace.foreign_delete().is_some())
            .count() as u64
    }

    /// The clearest second order that a foreign DEL let in, by leases of this length.
    pub fn foreign_delete(&self, lease: Duration) -> Option<Story> {
        let clearest = self.let_in_by_foreign_delete(lease).into_iter().next()?;
        Some(story(StoryKind::TwoOrders, clearest, &[]))
    }

    /// The first order that was told and is not among `rows`, after an instance was killed; and the nearest in time that another
    /// instance wrote.
    pub fn lost(&self, rows: &[OrderRow], events: &[Event]) -> Option<Story> {
        let killed = events
            .iter()
            .find(|event| event.what == InjectedFault::KillInstance)?;
        let told = self.0.iter().filter(|attempt| attempt.order_id().is_some());
        let (written, lost): (Chosen<'_>, Chosen<'_>) =
            told.partition(|attempt| rows.iter().any(|row| attempt.order_id() == Some(row.id)));
        let lost = lost.into_iter().min_by_key(|attempt| attempt.at_us)?;
        let beside = written
            .into_iter()
            .filter(|attempt| attempt.trace.node != lost.trace.node)
            .min_by_key(|attempt| attempt.at_us.abs_diff(lost.at_us));
        let chosen = by_arrival(iter::once(lost).chain(beside).collect());
        let (begin, end) = span(&chosen);
        let killed_us = ((killed.at * 1e6) as i64).max(end);
        let mut story = story(StoryKind::Lost, chosen, events);
        let lost_id = lost.order_id().map(|id| id.to_string());
        for request in &mut story.requests {
            if request.order_id == lost_id {
                request.steps.push(own_step("killed", killed_us - begin));
            }
        }
        Some(story)
    }

    /// Second orders that a foreign DEL let in: the attempt that got no order and deleted the lock of another, that other one,
    /// and the next one of the user that acquired the lock, before the other's lease could end. The soonest come first.
    fn let_in_by_foreign_delete(&self, lease: Duration) -> Vec<Chosen<'_>> {
        let mut ordered: BTreeMap<u64, Chosen<'_>> = BTreeMap::new();
        for attempt in self.0.iter().filter(|attempt| attempt.order_id().is_some()) {
            let user_id = attempt.record.observed.user_id;
            ordered.entry(user_id).or_default().push(attempt);
        }
        let mut found: Vec<(i64, Chosen<'_>)> = Vec::new();
        for deleting in self.0.iter().filter(|attempt| attempt.order_id().is_none()) {
            let user_id = deleting.record.observed.user_id;
            let orders = ordered.get(&user_id).map_or(&[][..], Vec::as_slice);
            found.extend(second_order_after(deleting, orders));
        }
        found.retain(|(gap, _)| u128::from(gap.unsigned_abs()) < lease.as_micros());
        found.sort_by_key(|(gap, _)| *gap);
        found.into_iter().map(|(_, chosen)| chosen).collect()
    }

    /// Commits by the number of orders in them, up to each power of two, where commits are shared. An order in a commit of
    /// `n` counts as one `n`th of a commit.
    pub fn batches(&self) -> Vec<(u64, u64)> {
        let mut sizes: BTreeMap<u64, f64> = BTreeMap::new();
        for orders in self.0.iter().filter_map(|attempt| attempt.trace.batch()) {
            *sizes.entry(orders.next_power_of_two()).or_default() += 1.0 / orders as f64;
        }
        sizes
            .into_iter()
            .map(|(size, commits)| (size, commits.round() as u64))
            .collect()
    }

    /// The users with several orders, and their orders; and the users with one order, each with that order and the attempts
    /// at the same time that were turned away.
    fn group_by_user(&self) -> (Vec<Chosen<'_>>, Vec<Chosen<'_>>) {
        let mut users: BTreeMap<u64, (Chosen<'_>, Chosen<'_>)> = BTreeMap::new();
        for attempt in self.0.iter().filter(|attempt| !attempt.elsewhere) {
            let (ordered, turned_away) = users.entry(attempt.record.observed.user_id).or_default();
            if attempt.order_id().is_some() {
                ordered.push(attempt);
            } else {
                turned_away.push(attempt);
            }
        }
        let mut several = Vec::new();
        let mut held = Vec::new();
        for (mut ordered, mut turned_away) in users.into_values() {
            if ordered.len() > 1 {
                ordered.truncate(MOST);
                several.push(ordered);
                continue;
            }
            let [ordered] = ordered[..] else { continue };
            // An attempt that met a server in trouble tells nothing of the strategy.
            turned_away.retain(|attempt| {
                attempt.overlaps(ordered) && !attempt.record.observed.reply.is_trouble()
            });
            // The clearest first: refused by the index alone, then on another node, then turned away by the lock.
            turned_away.sort_by_key(|attempt| {
                let busy = attempt.trace.step("lock-busy").is_some();
                let same_node = attempt.trace.node == ordered.trace.node;
                (!attempt.is_index_refused(), same_node, !busy, attempt.at_us)
            });
            turned_away.truncate(MOST - 1);
            if !turned_away.is_empty() {
                let mut chosen = turned_away;
                chosen.push(ordered);
                held.push(chosen);
            }
        }
        (several, held)
    }

    /// Attempts that read the same stock and took one each, where they were more than the stock: the first few of them. The
    /// smallest stock comes first.
    fn oversold(&self) -> Vec<Chosen<'_>> {
        let mut readers: BTreeMap<i64, Chosen<'_>> = BTreeMap::new();
        for attempt in self.0.iter().filter(|attempt| attempt.order_id().is_some()) {
            // Only where the stock that was read is what let it through.
            if attempt.trace.step("placed").is_none()
                && let Some(stock) = attempt.saw_stock().filter(|stock| *stock > 0)
            {
                readers.entry(stock).or_default().push(attempt);
            }
        }
        readers.retain(|stock, readers| readers.len() as i64 > *stock);
        let chosen = readers.into_values().map(|mut readers| {
            readers.sort_by_key(|attempt| attempt.at_us);
            readers.dedup_by_key(|attempt| attempt.record.observed.user_id);
            readers.truncate(MOST);
            readers
        });
        chosen.filter(|readers| readers.len() > 1).collect()
    }
}

/// The story of the lock that `deleting` deleted: whose it was and who acquired it next, of these attempts of the user that
/// became orders; and at most how many µs later the second acquired it.
fn second_order_after<'a>(
    deleting: &'a Attempt<'a>,
    orders: &[&'a Attempt<'a>],
) -> Option<(i64, Chosen<'a>)> {
    let owner = deleting.trace.foreign_delete()?;
    let (delete_began, _) = deleting.step_us("unlocked")?;
    let holder = *orders
        .iter()
        .find(|attempt| attempt.order_id() == Some(owner))?;
    let (tried_us, held_us) = holder.step_us("locked")?;
    let locked_later = orders.iter().filter_map(|attempt| {
        let (_, locked_us) = attempt.step_us("locked")?;
        (locked_us > held_us.max(delete_began)).then_some((locked_us, *attempt))
    });
    let (locked_us, second) = locked_later.min_by_key(|(locked_us, _)| *locked_us)?;
    Some((locked_us - tried_us, vec![deleting, holder, second]))
}

/// How little a story shows: whether the index refused nothing in it, whether it is of one node only, and how long it took,
/// in µs.
fn obscurity(chosen: &[&Attempt<'_>]) -> (bool, bool, i64) {
    let one_node = chosen
        .iter()
        .all(|attempt| attempt.trace.node == chosen[0].trace.node);
    let (begin, end) = span(chosen);
    let refused = chosen.iter().any(|attempt| attempt.is_index_refused());
    (!refused, one_node, end - begin)
}

fn by_arrival(mut chosen: Chosen<'_>) -> Chosen<'_> {
    chosen.sort_by_key(|attempt| attempt.at_us);
    chosen
}

fn story(kind: StoryKind, chosen: Chosen<'_>, faults: &[Event]) -> Story {
    let (zero, _) = span(&chosen);
    Story {
        kind,
        fault: met(&chosen, faults),
        why: None,
        requests: chosen
            .into_iter()
            .map(|attempt| request(attempt, zero))
            .collect(),
    }
}

fn request(attempt: &Attempt<'_>, zero: i64) -> Request {
    let ms = |us: i64| us as f64 / 1e3;
    let arrived = ms(attempt.at_us - zero);
    let step = |step: &Step| Step {
        at: arrived + step.at,
        ..step.clone()
    };
    // Seen on our clock, and never before it was answered.
    let consumed = |us: i64| own_step("consumed", us.max(attempt.answered_us()) - zero);
    let steps = attempt.trace.steps.iter().map(step);
    let observed = &attempt.record.observed;
    Request {
        attempt: observed.attempt,
        user_id: observed.user_id.to_string(),
        node: attempt.trace.node.clone(),
        sent: ms(attempt.sent_us() - zero),
        answered: ms(attempt.answered_us() - zero),
        reply: observed.reply.label().to_owned(),
        elsewhere: attempt.elsewhere,
        order_id: attempt.order_id().map(|id| id.to_string()),
        steps: steps.chain(attempt.committed_us.map(consumed)).collect(),
    }
}

/// A step that no node told, so many µs after the story's first request was sent.
fn own_step(name: &str, us: i64) -> Step {
    Step {
        step: name.to_owned(),
        at: us as f64 / 1e3,
        took: 0.0,
        saw: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::ObservedReply;

    /// An attempt on `node`, sent at `sent` µs and answered 5 ms later.
    fn record(user_id: u64, node: &str, sent: u64, reply: Reply, steps: &str) -> Record {
        // A clock that is an hour ahead changes nothing.
        let ahead = match node {
            "b" => 3_600_000_000,
            "late" => 3_000,
            _ => 0,
        };
        let arrived = 1_000_000 + ahead + sent + 100;
        Record {
            observed: ObservedReply {
                user_id,
                attempt: 0,
                reply,
            },
            due: Duration::from_micros(sent),
            sent: Duration::from_micros(sent),
            answered: Duration::from_micros(sent + 5_000),
            trace: Some(format!("node={node} at={arrived} {steps}").into()),
        }
    }

    fn refused(code: &'static str) -> Reply {
        Reply::Refused(code.into())
    }

    fn stories(records: &[Record]) -> Vec<Story> {
        Attempts::from_records(records, &[], &HashMap::new()).stories(&[])
    }

    fn event(what: InjectedFault, begin: f64, seconds: Option<f64>) -> Event {
        Event {
            at: begin,
            what,
            seconds,
            node: None,
            cut: None,
        }
    }

    const TAKEN: &str = "locked@100+10:place=memory placed@200+900:outcome=taken";

    #[test]
    fn two_orders_of_one_user_are_found_and_those_on_two_nodes_preferred() {
        let records = [
            record(1, "a", 0, Reply::Ordered(1), TAKEN),
            record(1, "a", 10, Reply::Ordered(2), TAKEN),
            record(2, "a", 20_000, Reply::Ordered(3), TAKEN),
            record(2, "b", 20_400, Reply::Ordered(4), TAKEN),
            record(3, "b", 30_000, Reply::Ordered(5), TAKEN),
        ];
        let stories = stories(&records);
        let [
            Story {
                kind: StoryKind::TwoOrders,
                requests,
                ..
            },
        ] = &stories[..]
        else {
            panic!("{stories:?}")
        };
        assert_eq!(requests.len(), 2);
        assert!(requests.iter().all(|request| request.user_id == "2"));
        assert_eq!((requests[0].sent, requests[1].sent), (0.0, 0.4));
        let placed = &requests[1].steps[1];
        assert_eq!((placed.step.as_str(), placed.took), ("placed", 0.9));
        assert!((0.4..0.8).contains(&placed.at), "{placed:?}");
        assert_eq!(placed.saw["outcome"], "taken");
    }

    #[test]
    fn a_second_order_is_told_with_the_foreign_delete_that_let_it_in() {
        let locked = |at: u64, unlocked: &str| {
            format!("locked@{at}+10:place=redis placed@2000+90:outcome=taken {unlocked}")
        };
        let deleted = "unlocked@1000+100:place=redis,outcome=foreign,owner=5000000002";
        let lost = "unlocked@3000+50:place=redis,outcome=lost";
        let elsewhere = [record(2, "a", 0, refused("SOLD_OUT"), &locked(50, deleted))];
        let ordered = |user, id, steps: &str| record(user, "b", 0, Reply::Ordered(id), steps);
        let records = [
            ordered(1, 5_000_000_000, TAKEN),
            ordered(1, 5_000_000_001, TAKEN),
            ordered(2, 5_000_000_004, &locked(1_900, lost)),
            ordered(2, 5_000_000_002, &locked(900, lost)),
            ordered(2, 5_000_000_003, &locked(1_200, lost)),
        ];
        let attempts = Attempts::from_records(&records, &elsewhere, &HashMap::new());
        assert_eq!(attempts.foreign_deletes(), 1);
        let requests = attempts.stories(&[]).remove(0).requests;
        let told = requests
            .iter()
            .map(|request| (request.elsewhere, request.order_id.as_deref()));
        let told: Vec<_> = told.collect();
        assert_eq!(
            told,
            [
                (true, None),
                (false, Some("5000000002")),
                (false, Some("5000000003"))
            ]
        );
        // Without the attempt that got no order, the second order is one of a lease that ended.
        let story = Attempts::from_records(&records, &[], &HashMap::new())
            .stories(&[])
            .remove(0);
        assert!(
            story
                .requests
                .iter()
                .all(|request| request.order_id.is_some())
        );
    }

    #[test]
    fn a_request_that_arrived_late_is_not_shown_too_early_if_its_node_may_have_our_clock() {
        let records = [
            record(1, "a", 0, Reply::Ordered(1), TAKEN),
            record(1, "late", 0, Reply::Ordered(2), TAKEN),
        ];
        let requests = &stories(&records)[0].requests;
        assert_eq!(
            requests
                .iter()
                .map(|request| request.steps[0].at)
                .collect::<Vec<_>>(),
            [0.1, 3.1]
        );
    }

    #[test]
    fn where_the_strategy_held_the_order_is_shown_beside_an_attempt_that_was_turned_away() {
        let records = [
            record(1, "a", 0, Reply::Ordered(1), TAKEN),
            // A server in trouble tells nothing of the strategy.
            record(1, "b", 10, refused("OVERLOADED"), "arrived@1+0"),
            // Later, and therefore no contrast.
            record(1, "b", 900_000, Reply::AlreadyOrdered(None), "arrived@1+0"),
            record(
                1,
                "b",
                300,
                refused("LOCK_BUSY"),
                "lock-busy@100+10:place=redis",
            ),
        ];
        let found = stories(&records);
        assert_eq!(found[0].kind, StoryKind::Held);
        let replies: Vec<_> = found[0]
            .requests
            .iter()
            .map(|request| request.reply.as_str())
            .collect();
        assert_eq!(replies, ["ORDERED", "LOCK_BUSY"]);
        assert_eq!(stories(&records[..3]), []);
    }

    #[test]
    fn orders_that_shared_a_commit_count_as_one_commit() {
        let sizes = [1, 1, 3, 3, 3, 4, 4, 4, 4];
        let records: Vec<_> = (0..)
            .zip(sizes)
            .map(|(user, orders)| {
                let steps = format!("batch-committed@100+900:orders={orders}");
                record(user, "a", user, Reply::Ordered(user as i64), &steps)
            })
            .collect();
        assert_eq!(
            Attempts::from_records(&records, &[], &HashMap::new()).batches(),
            [(1, 2), (4, 2)]
        );
    }

    #[test]
    fn a_story_inside_a_fault_is_preferred_and_then_one_that_only_the_index_refused() {
        let refusal = "locked@100+10:place=redis placed@200+900:outcome=index-refused";
        let pair = |user: u64, sent: u64, steps: &str| {
            [
                record(user, "a", sent, Reply::Ordered(user as i64), TAKEN),
                record(user, "b", sent + 10, Reply::AlreadyOrdered(None), steps),
            ]
        };
        let busy = "lock-busy@100+10:place=redis";
        let records: Vec<_> = [
            pair(1, 0, busy),
            pair(2, 2_000_000, busy),
            pair(3, 2_500_000, refusal),
            pair(4, 4_000_000, refusal),
        ]
        .concat();
        let attempts = Attempts::from_records(&records, &[], &HashMap::new());
        assert_eq!(attempts.index_refused(), 2);
        let cut = InjectedFault::CutLease;
        let first_story = |begin: f64, end: f64| {
            let story = attempts
                .stories(&[event(cut, begin, Some(end - begin))])
                .remove(0);
            (story.requests[0].user_id.clone(), story.fault)
        };
        assert_eq!(first_story(1.9, 2.2), ("2".to_owned(), Some(cut)));
        assert_eq!(first_story(1.9, 3.0), ("3".to_owned(), Some(cut)));
        assert_eq!(first_story(3.9, f64::INFINITY), ("4".to_owned(), Some(cut)));
        // Outside of all faults it is told all the same, but not as one of them.
        assert_eq!(first_story(8.0, 9.0), ("3".to_owned(), None));
    }

    #[test]
    fn attempts_that_read_the_same_last_stock_are_found_and_those_inside_a_fault_preferred() {
        let saw = |stock| format!("looked@10+20:stock={stock},order=no decremented@50+10");
        let records = [
            record(1, "a", 0, Reply::Ordered(1), &saw(2)),
            record(2, "a", 10, Reply::Ordered(2), &saw(2)),
            record(3, "a", 20, Reply::Ordered(3), &saw(2)),
            record(4, "a", 2_000_000, Reply::Ordered(4), &saw(1)),
            record(5, "b", 2_000_010, Reply::Ordered(5), &saw(1)),
        ];
        let attempts = Attempts::from_records(&records, &[], &HashMap::new());
        let first_story = |faults: &[Event]| attempts.stories(faults).remove(0);
        let last = first_story(&[]);
        assert_eq!((last.kind, last.requests.len()), (StoryKind::Oversold, 2));
        assert_eq!(last.requests[0].steps[0].saw["stock"], 1);
        assert_eq!(last.requests[0].steps[0].saw["order"], false);
        let emptied = event(InjectedFault::EmptyRedis, 0.0, None);
        assert_eq!(first_story(&[emptied]).requests.len(), 3);
        // Two who read that two are left took no more than there were.
        assert_eq!(stories(&records[..2]), []);
    }

    #[test]
    fn the_story_of_a_pending_order_goes_on_to_its_commit() {
        let refusal = refused("ALREADY_ORDERED");
        let records = [
            record(1, "a", 1_000, Reply::Pending(7), "admitted@100+200"),
            record(1, "b", 1_100, refusal, "admitted@100+200:outcome=failed"),
        ];
        let commits = HashMap::from([(7, 0.021)]);
        let found = Attempts::from_records(&records, &[], &commits).stories(&[]);
        let last_step = |request: usize| {
            let steps = &found[0].requests[request].steps;
            steps.last().expect("a step").clone()
        };
        let consumed = last_step(0);
        assert_eq!((consumed.step.as_str(), consumed.at), ("consumed", 20.0));
        assert_eq!(last_step(1).step, "admitted");
    }

    #[test]
    fn a_lost_order_is_told_beside_one_that_another_instance_wrote() {
        let steps = "admitted@100+200 queued@310+0";
        let records = [
            record(1, "a", 0, Reply::Ordered(1), steps),
            record(2, "b", 900, Reply::Ordered(2), steps),
            record(3, "a", 700, Reply::Ordered(3), steps),
            record(4, "b", 800, Reply::Ordered(4), steps),
        ];
        let rows = [1, 3].map(|id| OrderRow {
            id,
            user_id: id as u64,
            status: 1,
        });
        let attempts = Attempts::from_records(&records, &[], &HashMap::from([(3, 2.5)]));
        let killed = event(InjectedFault::KillInstance, 2.0, None);
        assert_eq!(attempts.lost(&rows, &[]), None, "nobody was killed");
        let story = attempts.lost(&rows, &[killed]).expect("a story");
        let told = story.requests.iter().map(|request| {
            let last_step = request.steps.last().expect("a step");
            (
                request.user_id.as_str(),
                last_step.step.as_str(),
                last_step.at,
            )
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [("3", "consumed", 2_499.3), ("4", "killed", 1_999.3)]
        );
    }
}
