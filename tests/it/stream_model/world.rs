//! Two instances, a Java node's consumer, the database, and what fails: random walks, and what must hold on each.

use std::collections::{BTreeMap, BTreeSet};

use super::redis::{Count, Entry, Id, Key, Mark, Op, Open, Order, Outcome, Redis, Reply, User};

const USERS: usize = 3;

// All times are in seconds.

/// How long an entry is pending before another consumer may claim it.
const IDLE: u32 = 10;
/// How long after it asked for an entry an instance may still commit it.
const COMMIT: u32 = 8;
/// How long after it was sent an admission may be run.
const ADMISSION: u32 = 3;
/// How old an order and the mark must be before a look-up may say that the order does not exist.
const UNSURE: u32 = 30;
/// How long after it was sent the call that ends a count may be run.
const OPENING: u32 = 1;
/// How long a master that was replaced takes writes.
const APART: u32 = 15;
/// How far a replica may be behind when it is promoted.
const BEHIND: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Row {
    Active,
    Cancelled,
    Refused,
}

#[derive(Default)]
struct Database {
    stock: i32,
    issued: i32,
    rows: BTreeMap<Id, (User, Row)>,
    /// The instance that holds the sale's row.
    locked_by: Option<usize>,
    /// Users of the orders in the outbox of returned stock.
    returns: BTreeSet<User>,
}

impl Database {
    fn is_buyer(&self, user: User) -> bool {
        self.rows.values().any(|row| *row == (user, Row::Active))
    }

    fn buyers(&self) -> BTreeSet<User> {
        let active = self.rows.values().filter(|(_, row)| *row == Row::Active);
        active.map(|(user, _)| *user).collect()
    }

    /// Whether the order is there, of whatever status.
    fn has_order(&self, order: &Order) -> bool {
        let row = self.rows.get(&order.id);
        row.is_some_and(|(user, row)| *user == order.user && *row != Row::Refused)
    }
}

#[derive(Clone)]
struct Admission {
    orders: Vec<Order>,
    /// The time until which its call may be run.
    until: u32,
    /// Whether a call of it got no answer: that call may have been run, or be on its way.
    in_doubt: bool,
}

#[derive(Clone, Copy)]
struct Attempt {
    entry: Entry,
    order: Order,
    begun: u32,
    mark: Mark,
    /// If it is set, the order is not to be committed but refused, for this reason.
    refuse: Option<Outcome>,
    outcome: Option<Outcome>,
}

#[derive(Clone)]
struct Opener {
    mark: Mark,
    last: Entry,
    entries: Vec<(Entry, Order)>,
    /// Its name; none where the sale stays open.
    name: Option<u32>,
    closed: bool,
    claimed: bool,
    count: Option<(Count, BTreeSet<User>)>,
    /// If it is set, the last call got no answer, and cannot run any more after this time.
    waits: Option<u32>,
}

#[derive(Clone, Default)]
struct Watch {
    mark: Mark,
    delivered: Option<Entry>,
    entries: Option<Vec<(Entry, Order)>>,
    pending: Option<BTreeSet<Entry>>,
}

#[derive(Clone, Default)]
struct Instance {
    /// Still connected to the master that was replaced.
    is_on_old_master: bool,
    admission: Option<Admission>,
    mark: Option<(Mark, u32)>,
    attempt: Option<Attempt>,
    opener: Option<Opener>,
    watch: Option<Watch>,
    /// An order that was looked up and has no row; the mark at that time, and the time.
    lookup: Option<(Order, Mark, u32)>,
}

/// A call that was recorded: when it was made, what Redis replied, and what it was like afterwards.
pub struct Recorded {
    pub op: Op,
    pub now: u32,
    pub number: u32,
    pub reply: Reply,
    pub after: Redis,
}

#[derive(Default)]
pub struct World {
    without: &'static str,
    now: u32,
    number: u32,
    database: Database,
    redis: Redis,
    old_master: Option<(Redis, u32)>,
    replica: (Redis, u32),
    saved: (Redis, u32),
    ids: BTreeMap<u32, u32>,
    instances: [Instance; 2],
    /// A call of an admission that is on its way, and whose answer nobody waits for any more.
    stalled: Option<Admission>,
    /// The call that ends a count, which is on its way, and whose opener gets no answer; the time until which it may be run; and
    /// the opener's instance.
    stalled_count: Option<(Count, u32, usize)>,
    /// How far the clock of the second instance is behind that of Redis.
    behind: u32,
    /// An entry that a Java node's consumer has, since when, and whether it committed it.
    java: Option<(Entry, Order, u32, bool)>,
    sent: Vec<Order>,
    pending: BTreeSet<Order>,
    denied: BTreeSet<Order>,
    /// Whether Redis ever lost data.
    lossy: bool,
    /// Orders that may be lost, because they were sent before Redis lost data, or to a master that was replaced.
    may_be_lost: BTreeSet<Order>,
    /// Whether a count was asked for.
    is_count_requested: bool,
    /// Users with a claim and without an order, for whom a count is asked for.
    claimed: BTreeSet<User>,
    /// A bit for each action that this walk has.
    actions: u64,
    /// The state of the random numbers.
    random: u64,
    /// Whether no replica is ever promoted.
    pub one_server: bool,
    pub recorded: Option<Vec<Recorded>>,
    pub broken: Option<String>,
}

impl World {
    pub fn new(seed: u64, without: &'static str) -> World {
        let issued = 1 + (seed % 2) as i32;
        let mut world = World {
            without,
            now: 100,
            database: Database {
                stock: issued,
                issued,
                ..Database::default()
            },
            replica: (Redis::default(), 100),
            saved: (Redis::default(), 100),
            behind: [0, 20, 40][seed as usize % 3],
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            ..World::default()
        };
        // Each walk has only some of the actions, so that it gets far with these.
        world.actions = (world.any(1 << 40) | world.any(1 << 40)) as u64 | 0b111_1111;
        world
    }

    /// A Java node has sold before we came: one order that it acknowledged, one that its consumer has, and one that nobody read.
    /// After we came it sells another one.
    pub fn begin_beside_java(&mut self) {
        self.call(0, Op::Join);
        let order = |number: u32| Order {
            id: (99, number),
            user: (number as User - 1) % USERS as User,
        };
        for number in 1..=3 {
            self.call(0, Op::Add(number, order(number)));
        }
        for number in 1..=2 {
            if let Reply::Entry(entry, order) = self.call(0, Op::Read) {
                self.java = Some((entry, order, self.now, false));
            }
            if number == 1 {
                self.java_acknowledges();
            }
        }
        self.call(0, Op::Look);
        self.call(0, Op::Add(4, order(4)));
    }

    /// A random number below this one.
    fn any(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % below
    }

    /// Notes the first promise that is broken.
    fn fails(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    fn redis(&mut self, instance: usize) -> &mut Redis {
        match &mut self.old_master {
            Some((old, until))
                if self.instances[instance].is_on_old_master && self.now <= *until =>
            {
                old
            }
            _ => &mut self.redis,
        }
    }

    fn call(&mut self, instance: usize, op: Op) -> Reply {
        self.number += 1;
        let now = self.now;
        let number = self.number;
        let without = self.without;
        if self.instances[instance].is_on_old_master
            && self
                .old_master
                .as_ref()
                .is_none_or(|(_, until)| now > *until)
        {
            return Reply::Failed;
        }
        if self.instances[instance].is_on_old_master
            && let Op::Admit { orders, .. } = &op
        {
            self.lossy = true;
            self.may_be_lost.extend(orders);
        }
        let reply = self.redis(instance).apply(&op, now, number, without);
        let after = self.redis.clone();
        if let Some(recorded) = &mut self.recorded {
            recorded.push(Recorded {
                op,
                now,
                number,
                reply: reply.clone(),
                after,
            });
        }
        reply
    }

    fn look(&mut self, instance: usize) -> Option<Mark> {
        match self.call(instance, Op::Look) {
            Reply::Mark(mark) => Some(mark),
            _ => None,
        }
    }

    /// A client is told that its order does not exist: no row of it may follow.
    fn denies(&mut self, order: Order) {
        if self.database.has_order(&order) {
            self.fails(format!("a no for {order:?}, which is there"));
        }
        self.denied.insert(order);
    }

    fn inserts(&mut self, order: Order) {
        if self.denied.contains(&order) {
            self.fails(format!("{order:?} became a row after its no"));
        }
        self.database.stock -= 1;
        self.database
            .rows
            .insert(order.id, (order.user, Row::Active));
    }

    /// One step of somebody.
    pub fn step(&mut self) {
        // What buys and sells comes more often than what fails.
        let drawn = self.any(60);
        let action = if drawn < 24 {
            self.any(24)
        } else {
            1 + (drawn - 24) % 9
        };
        if self.actions & (1 << action) == 0 {
            return;
        }
        let instance = self.any(2);
        match action {
            0 => self.now += 1,
            1 => self.sends(instance),
            2 => self.admits(instance),
            3 => self.reads(instance),
            4 => self.decides(instance),
            5 => self.resolves(instance),
            6 | 7 => self.opens(instance),
            8 => self.looks_up(instance),
            9 => self.watches(instance),
            10 => self.cancels(),
            11 => self.java_reads(),
            12 => self.java_commits(),
            13 => self.java_acknowledges(),
            14 if self.any(2) == 0 => self.now += [5, 10, 16, 31][self.any(4)],
            15 => self.replica = (self.redis.clone(), self.now),
            16 => self.instances[instance].is_on_old_master = false,
            17 => {
                // An instance is started again. No call of it is on its way then.
                self.stalled_count
                    .take_if(|(.., opener_instance)| *opener_instance == instance);
                self.instances[instance] = Instance {
                    is_on_old_master: self.instances[instance].is_on_old_master,
                    ..Instance::default()
                }
            }
            18 if self.any(3) == 0 => self.promotes(),
            // Redis goes back to older data only while nobody can have been told that an order in them does not exist.
            19 if self.any(4) == 0 && self.now < self.saved.1 + UNSURE => {
                self.loses(self.saved.0 != self.redis);
                self.call_master(Op::Replace(Box::new(self.saved.0.clone())));
            }
            20 => {
                self.call_master(Op::Save);
                self.saved = (self.redis.clone(), self.now);
            }
            21 if self.any(4) == 0 => {
                let keys = [
                    Key::Hash,
                    Key::Stream,
                    Key::Claims,
                    Key::Counter,
                    Key::Open,
                    Key::Group,
                ];
                let key = keys[self.any(keys.len())];
                self.loses(matches!(key, Key::Hash | Key::Stream | Key::Group));
                self.call_master(Op::Lose(key));
            }
            // A row's lock is lost; an opener's name expires.
            22 if self.stalled_count.is_none() => self.database.locked_by = None,
            23 if matches!(self.redis.open, Some(Open::By(_))) => {
                self.call_master(Op::Lose(Key::Open));
            }
            _ => {}
        }
        self.checks();
    }

    /// If a fault loses data, all orders that were sent so far may be lost.
    fn loses(&mut self, data: bool) {
        if data {
            self.lossy = true;
            self.may_be_lost.extend(&self.sent);
        }
    }

    /// A fault of the current master, not of the old one, to which instance 0 may still be connected.
    fn call_master(&mut self, op: Op) {
        let is_on_old_master = std::mem::take(&mut self.instances[0].is_on_old_master);
        self.call(0, op);
        self.instances[0].is_on_old_master = is_on_old_master;
    }

    fn sends(&mut self, instance: usize) {
        if self.instances[instance].admission.is_some() {
            return;
        }
        let Some(mark) = self.look(instance) else {
            return;
        };
        // The counter of ids begins anew under each mark.
        let begin = if self.without == "ids begin at random" {
            0
        } else {
            mark.number * 1000
        };
        let drawn = self.now - [0, self.behind][instance];
        let mut orders = Vec::new();
        for _ in 0..1 + self.any(2) {
            let id = self.ids.entry(mark.number).or_insert(begin);
            *id += 1;
            let id = (drawn, *id);
            orders.push(Order {
                id,
                user: self.any(USERS) as User,
            });
        }
        self.sent.extend(&orders);
        let mut until = self.now + ADMISSION;
        if self.without != "an admission ends before its order's grace" {
            until = until.min(drawn + UNSURE - 1);
        }
        self.instances[instance].admission = Some(Admission {
            orders,
            until,
            in_doubt: false,
        });
    }

    fn admits(&mut self, instance: usize) {
        let Some(mut admission) = self.instances[instance].admission.take() else {
            if let Some(stalled) = self.stalled.take() {
                self.calls_admission(instance, &stalled);
            }
            return;
        };
        if self.stalled.is_none() && self.any(8) == 0 {
            self.stalled = Some(admission.clone());
            if self.any(2) == 0 {
                // It is sent again; otherwise the buyers are told that nothing is known.
                admission.in_doubt = true;
                self.instances[instance].admission = Some(admission);
            }
            return;
        }
        let reply = self.calls_admission(instance, &admission);
        // Its reply may be lost, and it is sent again.
        if self.any(4) == 0 {
            admission.in_doubt = true;
            self.instances[instance].admission = Some(admission);
            return;
        }
        let Reply::Admission(answers) = reply else {
            return;
        };
        let is_unknown = admission.in_doubt && self.without != "a refusal in doubt is not said";
        for (order, answer) in admission.orders.into_iter().zip(answers) {
            if answer == "pending" {
                self.told_pending(order);
            } else if answer == "claimed" && !self.database.is_buyer(order.user) {
                self.claimed.insert(order.user);
            } else if answer == "sold out" && !is_unknown {
                self.denies(order);
            }
        }
    }

    fn calls_admission(&mut self, instance: usize, admission: &Admission) -> Reply {
        let orders = admission.orders.clone();
        let late = self.now > admission.until;
        self.call(instance, Op::Admit { orders, late })
    }

    fn told_pending(&mut self, order: Order) {
        if self
            .pending
            .iter()
            .any(|pending| pending.id == order.id && pending.user != order.user)
        {
            self.fails(format!("{:?} was told to two buyers", order.id));
        }
        self.pending.insert(order);
    }

    fn reads(&mut self, instance: usize) {
        if self.instances[instance].attempt.is_some() {
            return;
        }
        let Some((mark, begun)) = self.instances[instance].mark.take() else {
            self.instances[instance].mark = self.look(instance).map(|mark| (mark, self.now));
            return;
        };
        let now = self.now;
        let idle = self
            .redis(instance)
            .pending()
            .into_iter()
            .find(|(_, since)| since + IDLE <= now);
        let op = idle.map_or(Op::Read, |(entry, _)| Op::Claim(entry));
        if let Reply::Entry(entry, order) = self.call(instance, op) {
            let attempt = Attempt {
                entry,
                order,
                begun,
                mark,
                refuse: None,
                outcome: None,
            };
            self.instances[instance].attempt = Some(attempt);
        }
    }

    fn decides(&mut self, instance: usize) {
        let Some(mut attempt) = self.instances[instance].attempt else {
            return;
        };
        let Attempt { order, refuse, .. } = attempt;
        if attempt.outcome.is_some() || self.database.locked_by.is_some() {
            return;
        }
        let row = self.database.rows.get(&order.id).copied();
        if let Some(why) = refuse {
            // The primary key says what is there.
            if row.is_none() && self.without != "a refusal is a row" {
                self.database
                    .rows
                    .insert(order.id, (order.user, Row::Refused));
            }
            attempt.outcome = Some(if self.database.has_order(&order) {
                Outcome::Ordered
            } else {
                why
            });
        } else if self.now > attempt.begun + COMMIT && self.without != "no COMMIT is late" {
            self.instances[instance].attempt = None;
            return;
        } else if self.database.has_order(&order) {
            attempt.outcome = Some(Outcome::Ordered);
        } else if row.is_some() {
            attempt.refuse = Some(Outcome::Refused(false));
        } else if self.database.is_buyer(order.user) {
            attempt.refuse = Some(Outcome::Refused(true));
        } else if self.database.stock < 1 {
            attempt.refuse = Some(Outcome::SoldOut);
        } else {
            self.inserts(order);
            attempt.outcome = Some(Outcome::Ordered);
        }
        self.instances[instance].attempt = Some(attempt);
    }

    fn resolves(&mut self, instance: usize) {
        let Some(Attempt {
            entry,
            order,
            mark,
            outcome: Some(outcome),
            ..
        }) = self.instances[instance].attempt
        else {
            return;
        };
        let reply = self.call(
            instance,
            Op::Resolve {
                mark,
                entry,
                order,
                outcome,
            },
        );
        // Its reply may be lost, and it is sent again.
        if self.any(4) > 0 {
            self.instances[instance].attempt = None;
        }
        if reply == Reply::Yes && outcome != Outcome::Ordered {
            self.denies(order);
        }
    }

    fn looks_up(&mut self, instance: usize) {
        match self.instances[instance].lookup.take() {
            None => {
                if self.sent.is_empty() {
                    return;
                }
                let index = self.any(self.sent.len());
                let order = self.sent[index];
                let mut sending = self
                    .instances
                    .iter()
                    .filter_map(|sender| sender.admission.as_ref());
                if sending.any(|admission| admission.orders.contains(&order)) {
                    // No buyer knows the id yet.
                    return;
                }
                let row = self.database.rows.get(&order.id).copied();
                if self.database.has_order(&order) {
                    return;
                }
                let Reply::Mark(mark) = self.call(instance, Op::LookUser(order.user)) else {
                    return;
                };
                let redis = self.redis(instance);
                let pending_orders = redis.hash.get(&order.user);
                let is_pending = pending_orders
                    .is_some_and(|orders| orders.iter().any(|(id, _)| *id == order.id));
                if redis.refused.contains(&order.id)
                    && row.is_none_or(|(owner, _)| owner == order.user)
                    || row == Some((order.user, Row::Refused))
                {
                    self.denies(order);
                } else if is_pending && self.denied.contains(&order) {
                    self.fails(format!("{order:?} is pending after its no"));
                } else if !is_pending {
                    self.instances[instance].lookup = Some((order, mark, self.now));
                }
            }
            Some((order, mark, looked_up_at)) => {
                let drawn = if self.without == "unsure after it was sent" {
                    0
                } else {
                    order.id.0
                };
                let began = if self.without == "unsure under a new mark" {
                    0
                } else {
                    mark.since
                };
                // By the clock of Redis when it was asked: an order that may be admitted later is younger.
                let is_unsure = looked_up_at < drawn.max(began) + UNSURE;
                if !is_unsure && !self.database.has_order(&order) {
                    self.denies(order);
                }
            }
        }
    }

    fn watches(&mut self, instance: usize) {
        let Some(mut watch) = self.instances[instance].watch.take() else {
            let mark = self.look(instance);
            self.instances[instance].watch = mark.map(|mark| Watch {
                mark,
                ..Watch::default()
            });
            return;
        };
        if watch.delivered.is_none() {
            watch.delivered = Some(self.redis(instance).delivered());
        } else if watch.entries.is_none() {
            let Reply::Entries(_, entries) = self.call(instance, Op::Page(None)) else {
                return;
            };
            watch.entries = Some(entries);
        } else if watch.pending.is_none() {
            watch.pending = Some(self.redis(instance).pending().into_keys().collect());
        } else {
            let mark = watch.mark;
            if self.look(instance) != Some(mark) {
                return;
            }
            let (Some(delivered), Some(pending)) = (watch.delivered, watch.pending) else {
                return;
            };
            let dropped =
                |entry: Entry| entry > mark.join && entry <= delivered && !pending.contains(&entry);
            let dropped = watch
                .entries
                .into_iter()
                .flatten()
                .find(|(entry, _)| dropped(*entry));
            if let (Some((entry, order)), None) = (dropped, self.instances[instance].attempt) {
                let refuse = Some(Outcome::Refused(self.database.is_buyer(order.user)));
                let attempt = Attempt {
                    entry,
                    order,
                    begun: self.now,
                    mark,
                    refuse,
                    outcome: None,
                };
                self.instances[instance].attempt = Some(attempt);
            }
            return;
        }
        self.instances[instance].watch = Some(watch);
    }

    fn cancels(&mut self) {
        let mut rows = self.database.rows.values_mut();
        if self.database.locked_by.is_none()
            && let Some((user, row)) = rows.find(|(_, row)| *row == Row::Active)
        {
            *row = Row::Cancelled;
            self.database.stock += 1;
            self.database.returns.insert(*user);
        }
    }

    fn java_reads(&mut self) {
        if self.java.is_none()
            && !self.instances[0].is_on_old_master
            && let Reply::Entry(entry, order) = self.call(0, Op::Read)
        {
            self.java = Some((entry, order, self.now, false));
        }
    }

    fn java_commits(&mut self) {
        let Some((_, order, since, committed)) = &mut self.java else {
            return;
        };
        let is_free =
            !self.database.rows.contains_key(&order.id) && !self.database.is_buyer(order.user);
        let is_late = self.now > *since + UNSURE - IDLE;
        if !*committed
            && is_free
            && !is_late
            && self.database.locked_by.is_none()
            && self.database.stock > 0
        {
            *committed = true;
            let order = *order;
            self.inserts(order);
        }
    }

    /// The Java node may acknowledge an entry that it has not committed.
    fn java_acknowledges(&mut self) {
        if let Some((entry, ..)) = self.java.take()
            && !self.instances[0].is_on_old_master
        {
            self.call(0, Op::Ack(entry));
        }
    }

    /// A replica becomes the master; the old one goes on for a while.
    fn promotes(&mut self) {
        if self.one_server || self.now > self.replica.1 + BEHIND {
            return;
        }
        let old = self.redis.clone();
        self.loses(self.replica.0 != old);
        self.call_master(Op::Replace(Box::new(self.replica.0.clone())));
        self.old_master = Some((old, self.now + APART));
        self.instances
            .iter_mut()
            .for_each(|instance| instance.is_on_old_master = true);
        self.replica = (self.redis.clone(), self.now);
    }

    fn opens(&mut self, instance: usize) {
        if self.any(4) == 0
            && let Some((mut count, until, opener_instance)) = self.stalled_count.take()
        {
            count.late = self.now > until;
            self.call(opener_instance, Op::Open(count));
            return;
        }
        let Some(mut opener) = self.instances[instance].opener.take() else {
            let Reply::Entries(mark, entries) = self.call(instance, Op::Page(None)) else {
                return;
            };
            let last = entries.last().map_or(mark.join, |(entry, _)| *entry);
            let number = self.number;
            let redis = self.redis(instance);
            let is_open = redis.is_whole(mark);
            if is_open
                && !self.is_count_requested
                && self.claimed.is_empty()
                && self.database.returns.is_empty()
            {
                return;
            }
            let name = (!is_open).then_some(number);
            let opener = Opener {
                mark,
                last,
                entries,
                name,
                closed: is_open,
                claimed: false,
                count: None,
                waits: None,
            };
            self.instances[instance].opener = Some(opener);
            return;
        };
        if opener.waits.is_some_and(|until| self.now <= until) {
            self.instances[instance].opener = Some(opener);
            return;
        }
        let goes_on = match (opener.name, opener.claimed, opener.count.take()) {
            _ if opener.waits.is_some() => false,
            (Some(name), ..) if !opener.closed => {
                opener.closed = true;
                self.call(instance, Op::Step("close", name, BTreeSet::new())) == Reply::Yes
            }
            (Some(name), false, None) => {
                let users = self.database.buyers();
                opener.claimed = true;
                self.call(instance, Op::Step("claim", name, users)) == Reply::Yes
            }
            (_, _, None) => {
                if self.database.locked_by.is_none() {
                    self.database.locked_by = Some(instance);
                    self.counts(instance, &mut opener)
                } else {
                    true
                }
            }
            // The call is delayed only while the row's lock is held.
            (_, _, Some((count, _)))
                if self.stalled_count.is_none()
                    && self.database.locked_by == Some(instance)
                    && self.any(8) == 0 =>
            {
                let until = self.now + OPENING;
                self.stalled_count = Some((count, until, instance));
                let waits = self.without != "a row is locked while its count may run";
                opener.waits = waits.then_some(until);
                waits
            }
            (_, _, Some((count, returns))) => {
                let opened = self.call(instance, Op::Open(count)) == Reply::Yes;
                let kept = self.database.locked_by == Some(instance);
                if kept {
                    self.database.locked_by = None;
                } else if self.without != "closed where the lock was lost" {
                    self.call(instance, Op::Lose(Key::Open));
                }
                if opened && kept {
                    self.is_count_requested = false;
                    self.database.returns.retain(|user| !returns.contains(user));
                    return;
                }
                false
            }
        };
        if goes_on {
            self.instances[instance].opener = Some(opener);
            return;
        }
        if self.database.locked_by == Some(instance) {
            self.database.locked_by = None;
        }
        if let Some(name) = opener.name {
            self.call(instance, Op::Step("release", name, BTreeSet::new()));
        }
    }

    /// Reads what is pending and what is in the database while the sale's row is locked, for the call that ends the count.
    fn counts(&mut self, instance: usize, opener: &mut Opener) -> bool {
        let Reply::Entries(mark, newer) = self.call(instance, Op::Page(Some(opener.last))) else {
            return false;
        };
        if mark != opener.mark {
            return false;
        }
        opener.last = newer.last().map_or(opener.last, |(entry, _)| *entry);
        opener.entries.extend(newer);
        let database = &self.database;
        let (rows, undecided): (Vec<_>, Vec<_>) = opener
            .entries
            .iter()
            .copied()
            .partition(|(_, order)| database.has_order(order));
        let active = rows
            .iter()
            .map(|(_, order)| order)
            .filter(|order| database.rows.get(&order.id) == Some(&(order.user, Row::Active)));
        let returns = database.returns.clone();
        let claimants = returns.iter().chain(&self.claimed).copied();
        let count = Count {
            mark,
            open_before: opener.name.map_or(Open::Under(mark), Open::By),
            stock: database.stock,
            last: opener.last,
            undecided,
            active: active.map(|order| order.user).collect(),
            void_claims: claimants.filter(|user| !database.is_buyer(*user)).collect(),
            late: false,
        };
        self.claimed.clear();
        opener.count = Some((count, returns));
        true
    }

    fn checks(&mut self) {
        let Database { stock, issued, .. } = self.database;
        let active = self
            .database
            .rows
            .values()
            .filter(|(_, row)| *row == Row::Active)
            .count();
        if issued != stock + active as i32 {
            self.fails("the orders are not what was sold".to_owned());
        }
        let redis = &self.redis;
        if let (Some(mark), Some(counter), Some(stream), false) =
            (redis.mark, redis.counter, &redis.stream, self.lossy)
            && redis.open == Some(Open::Under(mark))
        {
            let undecided = stream
                .entries
                .values()
                .filter(|order| !self.database.has_order(order))
                .count();
            if counter > stock - undecided as i32 {
                self.fails(format!(
                    "the counter is {counter}, with {stock} left and {undecided} pending"
                ));
            }
        }
    }

    /// Nothing fails any more; then everything must be in order.
    pub fn settle(&mut self) {
        self.old_master = None;
        self.stalled = None;
        self.stalled_count = None;
        self.java = None;
        self.database.locked_by = None;
        self.instances = Default::default();
        if matches!(self.redis.open, Some(Open::By(_))) {
            self.call(0, Op::Lose(Key::Open));
        }
        self.is_count_requested = true;
        for second in 0..60 {
            self.now += 1;
            if second == 50 {
                // Everybody tries to buy once more, so that a count of all their claims is asked for.
                self.claimed = (0..USERS as User).collect();
            }
            for _ in 0..10 {
                self.opens(0);
                self.reads(0);
                self.decides(0);
                self.decides(0);
                self.resolves(0);
                self.watches(1);
            }
            for _ in 0..4 {
                self.decides(1);
                self.resolves(1);
            }
            self.checks();
        }
        let Redis {
            mark,
            counter,
            open,
            hash,
            claims,
            refused,
            ..
        } = self.redis.clone();
        let buyers = self.database.buyers();
        let lost: Vec<Order> = self
            .pending
            .iter()
            .filter(|order| {
                let is_known = self.database.has_order(order) || refused.contains(&order.id);
                !is_known && !self.may_be_lost.contains(order)
            })
            .copied()
            .collect();
        // A claim may be missing if its order came through a master that was replaced: the unique index refuses a second order.
        let claims = claims.map(|(users, _)| users).unwrap_or_default();
        let wrong = if open != mark.map(Open::Under) {
            format!("the sale is not open: {open:?}")
        } else if counter != Some(self.database.stock) {
            format!(
                "the counter is {counter:?}, with {} left",
                self.database.stock
            )
        } else if !hash.is_empty() {
            format!("the hash names {hash:?}")
        } else if !claims.is_subset(&buyers) || !self.lossy && claims != buyers {
            format!("claims of {claims:?}, orders of {buyers:?}")
        } else if !lost.is_empty() {
            format!("{lost:?} are lost, and Redis did not lose them")
        } else {
            return;
        };
        self.fails(wrong);
    }
}
