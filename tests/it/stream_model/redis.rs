//! The model of Redis and of what the scripts do to it: one sale, its stream, and the hash of pending orders.

use std::collections::{BTreeMap, BTreeSet};

pub type User = u8;
/// The second in which an id was drawn, and its number.
pub type Id = (u32, u32);
/// The number of an entry; 0 is `0-0`.
pub type Entry = u32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub number: u32,
    pub server: u32,
    pub since: u32,
    pub join: Entry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    pub id: Id,
    pub user: User,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    pub entries: BTreeMap<Entry, Order>,
    pub last: Entry,
    /// The group `g1`: what was delivered last, and what is pending since when.
    pub group: Option<(Entry, BTreeMap<Entry, u32>)>,
    /// Where the group `seckill` stands: the entry after which we joined.
    pub joined: Option<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// The sale is open under this mark.
    Under(Mark),
    /// The sale is closed, and the opener with this name is about to open it.
    By(u32),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Redis {
    /// Its replication id.
    pub server: u32,
    pub stream: Option<Stream>,
    pub mark: Option<Mark>,
    pub hash: BTreeMap<User, Vec<(Id, Entry)>>,
    pub counter: Option<i32>,
    /// The users who have a claim; and the mark under which the claims are complete, or the name of the opener that writes them.
    pub claims: Option<(BTreeSet<User>, Option<Open>)>,
    pub open: Option<Open>,
    pub refused: BTreeSet<Id>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ordered,
    SoldOut,
    /// Whether the user has an order of the sale.
    Refused(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Hash,
    Stream,
    Claims,
    Counter,
    Open,
    Group,
}

/// A script, a command or a loss.
#[derive(Clone, Debug)]
pub enum Op {
    Look,
    LookUser(User),
    Page(Option<Entry>),
    Admit {
        orders: Vec<Order>,
        late: bool,
    },
    Read,
    Claim(Entry),
    Ack(Entry),
    Resolve {
        mark: Mark,
        entry: Entry,
        order: Order,
        outcome: Outcome,
    },
    /// A step of opening, the opener, and users who have an order.
    Step(&'static str, u32, BTreeSet<User>),
    Open(Count),
    Lose(Key),
    /// A Java node creates the group, for all that is in the stream.
    Join,
    /// A Java node admits a buyer, whose entry gets this number.
    Add(Entry, Order),
    /// Somebody deletes an entry.
    Delete(Entry),
    Save,
    /// Another server takes over, with these data, which were saved.
    Replace(Box<Redis>),
}

/// What the last script of opening is given.
#[derive(Clone, Debug)]
pub struct Count {
    pub mark: Mark,
    pub open_before: Open,
    pub stock: i32,
    pub last: Entry,
    pub undecided: Vec<(Entry, Order)>,
    pub active: Vec<User>,
    pub void_claims: Vec<User>,
    /// Whether the call was on its way for longer than it may be.
    pub late: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Failed,
    None,
    Mark(Mark),
    Entries(Mark, Vec<(Entry, Order)>),
    Entry(Entry, Order),
    Admission(Vec<&'static str>),
    Yes,
    No,
}

impl Redis {
    /// `number` rises with every call; `without` is the rule that is left out.
    pub fn apply(&mut self, op: &Op, now: u32, number: u32, without: &str) -> Reply {
        let current_mark = |redis: &mut Redis, lost| redis.mark(lost, now, number, without);
        match op {
            Op::Look | Op::LookUser(_) => {
                let lost = self.group().is_none();
                let mut mark = current_mark(self, lost);
                let is_gone = match op {
                    Op::LookUser(user) => {
                        self.hash.get(user).into_iter().flatten().any(|(_, entry)| {
                            self.stream
                                .as_ref()
                                .is_none_or(|stream| !stream.entries.contains_key(entry))
                        })
                    }
                    _ => {
                        let stream = self.stream.as_ref();
                        stream.is_none_or(|stream| stream.entries.is_empty())
                            && !self.hash.is_empty()
                    }
                };
                if is_gone {
                    mark = current_mark(self, true);
                }
                Reply::Mark(mark)
            }
            Op::Page(after) => {
                let lost = self.group().is_none();
                let mark = current_mark(self, lost);
                let page = self.unresolved(after.unwrap_or(mark.join), after.is_none());
                self.take_in(&page);
                Reply::Entries(mark, page)
            }
            Op::Admit { orders, late } => {
                let lost = self.stream.is_none();
                let mark = current_mark(self, lost);
                let late = *late && without != "a late admission admits nobody";
                let answers = orders.iter().map(|order| self.admit(*order, late, mark));
                Reply::Admission(answers.collect())
            }
            Op::Read => {
                let Some(stream) = &mut self.stream else {
                    return Reply::Failed;
                };
                let Some((delivered, pending)) = &mut stream.group else {
                    return Reply::Failed;
                };
                let Some((&entry, order)) = stream.entries.range(*delivered + 1..).next() else {
                    return Reply::None;
                };
                *delivered = entry;
                pending.insert(entry, now);
                Reply::Entry(entry, *order)
            }
            Op::Claim(entry) => {
                let Some(stream) = &mut self.stream else {
                    return Reply::Failed;
                };
                let Some((_, pending)) = &mut stream.group else {
                    return Reply::Failed;
                };
                match (pending.contains_key(entry), stream.entries.get(entry)) {
                    (true, Some(order)) => {
                        pending.insert(*entry, now);
                        Reply::Entry(*entry, *order)
                    }
                    _ => {
                        pending.remove(entry);
                        Reply::None
                    }
                }
            }
            Op::Ack(entry) => {
                if let Some(stream) = &mut self.stream
                    && let Some((_, pending)) = &mut stream.group
                {
                    pending.remove(entry);
                }
                Reply::None
            }
            Op::Resolve {
                mark: read,
                entry,
                order,
                outcome,
            } => {
                let mark = current_mark(self, false);
                if mark != *read && without != "resolved under the mark" {
                    return Reply::No;
                }
                self.resolve(mark, *entry, *order, *outcome, without);
                Reply::Yes
            }
            Op::Step(step, name, users) => {
                let mark = current_mark(self, false);
                let is_opener = self.open == Some(Open::By(*name));
                match *step {
                    "close" => {
                        if self.is_whole(mark)
                            || !is_opener && matches!(self.open, Some(Open::By(_)))
                        {
                            return Reply::No;
                        }
                        self.open = Some(Open::By(*name));
                        self.claims = Some((BTreeSet::new(), self.open));
                        self.counter = Some(0);
                    }
                    "claim" if !is_opener => return Reply::No,
                    "claim" if users.is_empty() => {}
                    "claim" => self.claims.get_or_insert_default().0.extend(users),
                    _ if is_opener => self.open = None,
                    _ => {}
                }
                Reply::Yes
            }
            Op::Open(count) => {
                let mark = current_mark(self, false);
                if self.count(mark, count, without) {
                    Reply::Yes
                } else {
                    Reply::No
                }
            }
            Op::Lose(key) => {
                match key {
                    Key::Hash => {
                        self.hash = BTreeMap::new();
                        self.mark = None;
                    }
                    Key::Stream => self.stream = None,
                    Key::Claims => self.claims = None,
                    Key::Counter => self.counter = None,
                    Key::Open => self.open = None,
                    Key::Group => {
                        if let Some(stream) = &mut self.stream {
                            stream.group = None;
                        }
                    }
                }
                Reply::None
            }
            Op::Join => {
                self.stream.get_or_insert_default().group = Some((0, BTreeMap::new()));
                Reply::None
            }
            Op::Add(entry, order) => {
                let stream = self.stream.get_or_insert_default();
                stream.entries.insert(*entry, *order);
                stream.last = *entry;
                Reply::None
            }
            Op::Delete(entry) => {
                if let Some(stream) = &mut self.stream {
                    stream.entries.remove(entry);
                }
                Reply::None
            }
            Op::Save => Reply::None,
            Op::Replace(data) => {
                *self = Redis {
                    server: number,
                    ..(**data).clone()
                };
                Reply::None
            }
        }
    }

    fn group(&self) -> Option<&(Entry, BTreeMap<Entry, u32>)> {
        self.stream.as_ref()?.group.as_ref()
    }

    pub fn delivered(&self) -> Entry {
        self.group().map_or(0, |(delivered, _)| *delivered)
    }

    pub fn pending(&self) -> BTreeMap<Entry, u32> {
        self.group()
            .map(|(_, pending)| pending.clone())
            .unwrap_or_default()
    }

    /// Entries after `after`. If `with_earlier`, also those up to it that are pending: they were pending before we joined.
    fn unresolved(&self, after: Entry, with_earlier: bool) -> Vec<(Entry, Order)> {
        let Some(stream) = &self.stream else {
            return Vec::new();
        };
        let pending = self.pending();
        stream
            .entries
            .iter()
            .filter(|&(entry, _)| *entry > after || with_earlier && pending.contains_key(entry))
            .map(|(entry, order)| (*entry, *order))
            .collect()
    }

    fn take_in(&mut self, entries: &[(Entry, Order)]) {
        for (entry, Order { id, user }) in entries {
            let pending_orders = self.hash.entry(*user).or_default();
            if !pending_orders.contains(&(*id, *entry)) {
                pending_orders.push((*id, *entry));
            }
        }
    }

    fn mark(&mut self, lost: bool, now: u32, number: u32, without: &str) -> Mark {
        if let Some(mark) = self.mark
            && (mark.server == self.server || without == "a mark names its master")
            && !lost
        {
            return mark;
        }
        let existed = self.stream.is_some();
        let stream = self.stream.get_or_insert_default();
        let kept = stream
            .joined
            .filter(|_| without != "the stream keeps where we joined");
        let join = match (existed, kept, self.mark) {
            (false, ..) => 0,
            (_, Some(joined), _) => joined,
            (.., Some(mark)) => mark.join,
            _ => stream
                .group
                .as_ref()
                .map_or(stream.last, |(delivered, _)| *delivered),
        };
        stream.group.get_or_insert_with(|| (join, BTreeMap::new()));
        stream.joined.get_or_insert(join);
        self.hash.clear();
        let entries = self.unresolved(join, true);
        self.take_in(&entries);
        *self.mark.insert(Mark {
            number,
            server: self.server,
            since: now,
            join,
        })
    }

    pub fn is_whole(&self, mark: Mark) -> bool {
        let under = Some(Open::Under(mark));
        let claims = self.claims.as_ref().is_some_and(|(_, tag)| *tag == under);
        self.open == under && self.counter.is_some() && claims
    }

    fn admit(&mut self, order: Order, late: bool, mark: Mark) -> &'static str {
        if let Some((pending_id, _)) = self.hash.get(&order.user).and_then(|orders| orders.first())
        {
            return if *pending_id == order.id {
                "pending"
            } else {
                "claimed"
            };
        }
        if late {
            return "late";
        }
        let is_whole = self.is_whole(mark);
        let (true, Some((claims, _)), Some(counter), Some(stream)) = (
            is_whole,
            &mut self.claims,
            &mut self.counter,
            &mut self.stream,
        ) else {
            return "closed";
        };
        if claims.contains(&order.user) {
            return "claimed";
        }
        if *counter < 1 {
            return "sold out";
        }
        // The worst case: as the clock stepped back, the ids of entries that were lost come again.
        stream.last += 1;
        stream.entries.insert(stream.last, order);
        claims.insert(order.user);
        *counter -= 1;
        self.hash
            .entry(order.user)
            .or_default()
            .push((order.id, stream.last));
        "pending"
    }

    fn resolve(&mut self, mark: Mark, entry: Entry, order: Order, outcome: Outcome, without: &str) {
        let mut counts = without == "an entry counts once";
        if let Some(stream) = &mut self.stream {
            if let Some((_, pending)) = &mut stream.group {
                pending.remove(&entry);
            }
            counts |= stream.entries.remove(&entry).is_some();
        }
        if let Some(pending_orders) = self.hash.get_mut(&order.user) {
            pending_orders.retain(|pending| *pending != (order.id, entry));
            if pending_orders.is_empty() {
                self.hash.remove(&order.user);
            }
        }
        if outcome == Outcome::Ordered || !counts {
            return;
        }
        self.refused.insert(order.id);
        if outcome != Outcome::Refused(true)
            && !self.hash.contains_key(&order.user)
            && let Some((claims, _)) = &mut self.claims
        {
            claims.remove(&order.user);
        }
        if outcome == Outcome::SoldOut {
            self.open = None;
            self.counter = Some(0);
        } else if self.open == Some(Open::Under(mark)) {
            *self.counter.get_or_insert(0) += 1;
        }
    }

    fn count(&mut self, mark: Mark, count: &Count, without: &str) -> bool {
        let Count {
            open_before,
            stock,
            last,
            undecided,
            active,
            void_claims,
            ..
        } = count;
        let of_mark = self.open == Some(Open::Under(mark));
        if count.late && without != "a late count sets nothing" {
            return false;
        }
        if mark != count.mark || self.open != Some(*open_before) || of_mark && !self.is_whole(mark)
        {
            return false;
        }
        if self
            .claims
            .as_ref()
            .is_none_or(|(_, tag)| *tag != self.open)
            && without != "claims name who writes them"
        {
            return false;
        }
        let newer = self.unresolved(*last, false);
        self.take_in(&newer);
        let waiting_users: Vec<User> = undecided
            .iter()
            .filter(|(entry, order)| {
                let pending_orders = self.hash.get(&order.user);
                pending_orders.is_some_and(|orders| orders.contains(&(order.id, *entry)))
            })
            .chain(&newer)
            .map(|(_, order)| order.user)
            .collect();
        let (claims, tag) = self.claims.get_or_insert_default();
        claims.extend(waiting_users.iter().chain(active));
        claims.retain(|user| !void_claims.contains(user) || waiting_users.contains(user));
        *tag = Some(Open::Under(mark));
        self.counter = Some(stock - waiting_users.len() as i32);
        self.open = Some(Open::Under(mark));
        true
    }
}
