//! A model of how a purchase is decided if its reply is lost. The steps are those of the purchase's text, of another purchase of
//! the same buyer, of the decider, of a look-up and of the clock. The model tries every order of them, on three kinds of server.
//! It leaves out each rule once, and then something false is said. The rules are in `src/order/store/commit.rs` and `decide.rs`.

use std::collections::BTreeSet;

/// After this time the text's deadline is over.
const DEADLINE: u8 = 2;
/// From this time on a look-up may say "no such order".
const SETTLED: u8 = 3;
/// Where the clock stops.
const LAST: u8 = 4;

/// What a server's locks do at a row that a transaction has inserted and not committed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Locks {
    /// InnoDB: whoever reads it with a lock, or inserts under its key, waits.
    ReadsWait,
    /// OceanBase: whoever inserts under its key waits, unless the first insert is itself still waiting at another index. A
    /// locking read does not wait, and returns nothing.
    OnlyInsertsWait,
    /// Several writable nodes, each with locks of its own: nobody waits, and both rows are committed.
    OfOneNode,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    locks: Locks,
    /// The decider inserts a row under the id. Otherwise it goes by what a locking read finds.
    decides_by_row: bool,
    /// The INSERT was answered before the COMMIT was sent.
    insert_is_answered: bool,
    deadline: Deadline,
    /// A look-up says "no" only when the deadline of every text is over.
    look_up_waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Deadline {
    None,
    BeforeInsert,
    BehindInsert,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Text {
    OnItsWay,
    /// Its INSERT waits at the unique index of buyers for the other purchase.
    Waiting,
    Inserted,
    /// It has passed the check of its deadline: only the hot row and the COMMIT are left.
    InTime,
    Committed,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    time: u8,
    text: Text,
    other_is_open: bool,
    refused: bool,
    said_yes: bool,
    said_no: bool,
}

impl State {
    /// Whether something false was said of the order.
    fn is_false(&self) -> bool {
        let exists = self.text == Text::Committed;
        let can_come = exists || self.text == Text::InTime;
        (self.said_no && exists) || (self.said_yes && !can_come)
    }

    /// All states that one step leads to.
    fn next(self, rules: Rules) -> Vec<State> {
        let mut next = Vec::new();
        if self.time < LAST {
            next.push(State {
                time: self.time + 1,
                ..self
            });
        }
        if self.other_is_open {
            next.push(State {
                other_is_open: false,
                ..self
            });
        }
        next.extend(self.text_steps(rules).map(|text| State { text, ..self }));
        next.extend(self.decided(rules));
        next.extend(self.looked_up(rules));
        next
    }

    fn text_steps(self, rules: Rules) -> Option<Text> {
        let is_refused = self.refused && rules.locks != Locks::OfOneNode;
        let is_late = |deadline| rules.deadline == deadline && self.time > DEADLINE;
        let inserted = if is_refused {
            Text::Failed
        } else {
            Text::Inserted
        };
        match self.text {
            Text::OnItsWay if is_late(Deadline::BeforeInsert) => Some(Text::Failed),
            Text::OnItsWay if self.other_is_open && !is_refused => Some(Text::Waiting),
            Text::Waiting if self.other_is_open => None,
            Text::OnItsWay | Text::Waiting => Some(inserted),
            Text::Inserted if is_late(Deadline::BehindInsert) => Some(Text::Failed),
            Text::Inserted => Some(Text::InTime),
            Text::InTime => Some(Text::Committed),
            Text::Committed | Text::Failed => None,
        }
    }

    fn inserts_wait(self, locks: Locks) -> bool {
        match locks {
            Locks::ReadsWait => {
                matches!(self.text, Text::Waiting | Text::Inserted | Text::InTime)
            }
            Locks::OnlyInsertsWait => matches!(self.text, Text::Inserted | Text::InTime),
            Locks::OfOneNode => false,
        }
    }

    fn reads_wait(self, locks: Locks) -> bool {
        locks == Locks::ReadsWait && self.inserts_wait(locks)
    }

    /// Whoever lost the reply decides.
    fn decided(self, rules: Rules) -> Option<State> {
        let has_said = self.said_yes || self.said_no;
        let waits = if rules.decides_by_row {
            self.inserts_wait(rules.locks)
        } else {
            self.reads_wait(rules.locks)
        };
        if has_said || waits {
            return None;
        }
        if self.text == Text::Committed && rules.locks != Locks::OfOneNode {
            return Some(State {
                said_yes: true,
                ..self
            });
        }
        Some(State {
            refused: rules.decides_by_row,
            said_no: true,
            ..self
        })
    }

    /// A look-up, which writes nothing.
    fn looked_up(self, rules: Rules) -> Option<State> {
        let is_locked = self.reads_wait(rules.locks) || self.inserts_wait(rules.locks);
        let is_settled = self.time >= SETTLED || !rules.look_up_waits;
        let is_there = self.text == Text::Committed || is_locked;
        (!is_there && (self.refused || is_settled)).then_some(State {
            said_no: true,
            ..self
        })
    }
}

/// Whether something false is said in some order of steps.
fn lies(rules: Rules) -> bool {
    let first = State {
        time: 0,
        text: if rules.insert_is_answered {
            Text::InTime
        } else {
            Text::OnItsWay
        },
        other_is_open: !rules.insert_is_answered,
        refused: false,
        said_yes: false,
        said_no: false,
    };
    let mut visited = BTreeSet::from([first]);
    let mut to_visit = vec![first];
    while let Some(state) = to_visit.pop() {
        if state.is_false() {
            return true;
        }
        for next in state.next(rules) {
            if visited.insert(next) {
                to_visit.push(next);
            }
        }
    }
    assert!(visited.len() > 10, "the model stands still: {visited:?}");
    false
}

const RULES: Rules = Rules {
    locks: Locks::OnlyInsertsWait,
    decides_by_row: true,
    insert_is_answered: false,
    deadline: Deadline::BehindInsert,
    look_up_waits: true,
};

#[test]
fn a_row_decides_wherever_an_insert_waits_for_another_under_its_key() {
    for (locks, lies_there) in [
        (Locks::ReadsWait, false),
        (Locks::OnlyInsertsWait, false),
        // This is why the service does not start on a database with several writable nodes.
        (Locks::OfOneNode, true),
    ] {
        assert_eq!(lies(Rules { locks, ..RULES }), lies_there, "{locks:?}");
    }
}

/// The method that the rules replace: it depends on how one engine locks, and needs one more round trip.
#[test]
fn a_locking_read_decides_only_where_it_waits_and_the_insert_was_answered() {
    for (locks, insert_is_answered, lies_there) in [
        (Locks::ReadsWait, true, false),
        (Locks::ReadsWait, false, true),
        (Locks::OnlyInsertsWait, true, true),
        (Locks::OfOneNode, true, true),
    ] {
        let rules = Rules {
            locks,
            insert_is_answered,
            decides_by_row: false,
            ..RULES
        };
        assert_eq!(lies(rules), lies_there, "{rules:?}");
    }
}

#[test]
fn without_any_one_of_the_rules_something_false_is_said() {
    let left_out = [
        Rules {
            decides_by_row: false,
            ..RULES
        },
        Rules {
            deadline: Deadline::None,
            ..RULES
        },
        // An INSERT that waits at another index lets a second one under its key pass.
        Rules {
            deadline: Deadline::BeforeInsert,
            ..RULES
        },
        Rules {
            look_up_waits: false,
            ..RULES
        },
    ];
    for rules in left_out {
        assert!(lies(rules), "nothing was wrong without it: {rules:?}");
    }
}
