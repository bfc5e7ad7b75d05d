//! The scripts in a real Redis: makes the calls that were recorded of the model, and compares the reply and the keys after each.

use std::collections::{BTreeMap, BTreeSet};

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamInfoGroupsReply, StreamInfoStreamReply, StreamPendingCountReply};
use redis::{AsyncCommands, FromRedisValue, Pipeline, RedisResult, Value, from_redis_value};

use super::redis::{Entry, Id, Key, Mark, Op, Open, Order, Outcome, Reply, User};
use super::rules::Omission;
use super::world::Recorded;

const SCRIPTS: [(&str, &str); 4] = [
    ("look", include_str!("../../../lua/stream_look.lua")),
    ("admit", include_str!("../../../lua/stream_admit.lua")),
    ("resolve", include_str!("../../../lua/stream_resolve.lua")),
    ("open", include_str!("../../../lua/stream_open.lua")),
];

/// Gives the scripts the clock, the replication id and the ids of entries of the model, so that both have the same.
const OF_THE_MODEL: &str = "
local server = redis
local redis = setmetatable({}, {__index = server})
function redis.call(command, ...)
  local arguments = {...}
  if command == 'TIME' then return server.call('MGET', 'model:now', 'model:call') end
  if command == 'INFO' then return 'role:master, master_replid:' .. server.call('GET', 'model:server') end
  if command == 'XADD' and arguments[2] == '*' then
    local info = server.call('XINFO', 'STREAM', arguments[1])
    for at = 1, #info, 2 do
      if info[at] == 'last-generated-id' then arguments[2] = '0-' .. string.match(info[at + 1], '%d+$') + 1 end
    end
  end
  return server.call(command, unpack(arguments))
end
";

const STREAM: &str = "stream.orders|stream.orders.pending";
const SALE: &str = "seckill:stock:7|seckill:order:7|seckill:open:7";

fn user_text(user: User) -> String {
    (user + 1).to_string()
}

fn id_text((second, number): Id) -> String {
    format!("{second}{number:09}")
}

fn entry_text(entry: Entry) -> String {
    format!("0-{entry}")
}

fn entry_name((entry, order): &(Entry, Order)) -> String {
    format!("7:{}:{}", id_text(order.id), entry_text(*entry))
}

fn mark_text(
    Mark {
        number,
        server,
        since,
        join,
    }: Mark,
) -> String {
    format!("{server:x} {since}{number:06} {}", entry_text(join))
}

fn open_text(open: Open) -> String {
    match open {
        Open::By(name) => format!("by{name}"),
        Open::Under(mark) => mark_text(mark),
    }
}

fn refusal_key(refused: Id) -> String {
    format!("seckill:refused:{}", id_text(refused))
}

/// An entry as it is in a reply of Redis.
fn entry_reply(&(entry, order): &(Entry, Order)) -> Vec<String> {
    let entry = entry_text(entry);
    let user = user_text(order.user);
    let id = id_text(order.id);
    [entry.as_str(), "userId", &user, "voucherId", "7", "id", &id]
        .map(str::to_owned)
        .into()
}

/// The time until which a call may run, as an argument of it.
fn until(late: bool) -> &'static str {
    if late { "0" } else { "9000000000000000" }
}

/// The call of a script with its keys and arguments, or a command: its words between `|`.
fn call(op: &Op) -> String {
    match op {
        Op::Look => format!("look|2|{STREAM}|tidy|"),
        Op::LookUser(user) => format!("look|2|{STREAM}|user|{}", user_text(*user)),
        Op::Page(after) => {
            format!(
                "look|2|{STREAM}|page|{}",
                after.map(entry_text).unwrap_or_default()
            )
        }
        Op::Admit { orders, late } => {
            let until = until(*late);
            let orders = orders.iter().map(|order| {
                format!(
                    "|1|7|{}|{}|{until}",
                    user_text(order.user),
                    id_text(order.id)
                )
            });
            format!("admit|5|{STREAM}|{SALE}|1000{}", orders.collect::<String>())
        }
        Op::Read => "XREADGROUP|GROUP|g1|c1|COUNT|1|STREAMS|stream.orders|>".to_owned(),
        Op::Claim(entry) => format!("XCLAIM|stream.orders|g1|c1|0|{}", entry_text(*entry)),
        Op::Ack(entry) => format!("XACK|stream.orders|g1|{}", entry_text(*entry)),
        Op::Resolve {
            mark,
            entry,
            order,
            outcome,
        } => {
            let mark = mark_text(*mark);
            let user = user_text(order.user);
            let name = entry_name(&(*entry, *order));
            let entry = entry_text(*entry);
            let id = id_text(order.id);
            let refused = refusal_key(order.id);
            let (outcome, has_order) = match outcome {
                Outcome::Ordered => {
                    let keys = format!("3|{STREAM}|stream.orders.dead");
                    return format!("resolve|{keys}|{mark}|1|{entry}|{user}|{name}");
                }
                Outcome::SoldOut => ("sold out", 0),
                Outcome::Refused(has_order) => ("refused", i32::from(*has_order)),
            };
            let keys = format!("7|{STREAM}|stream.orders.dead|{SALE}|{refused}");
            let refusal = format!("{entry}|{user}|7|{id}|{outcome}|CODE|{has_order}|");
            format!("resolve|{keys}|{mark}|0|{refusal}")
        }
        Op::Step(step, name, users) => {
            let users = users
                .iter()
                .map(|user| format!("|{}", user_text(*user)))
                .collect::<String>();
            let name = open_text(Open::By(*name));
            let until = until(false);
            format!("open|5|{STREAM}|{SALE}|{step}|{until}|{name}{users}")
        }
        Op::Open(count) => {
            let mark = mark_text(count.mark);
            let open_before = open_text(count.open_before);
            let last = entry_text(count.last);
            let until = until(count.late);
            let mut call =
                format!("open|5|{STREAM}|{SALE}|open|{until}|{mark}|{open_before}|9000000000");
            call += &format!("|{}|7|{last}|{}", count.stock, count.undecided.len());
            for undecided in &count.undecided {
                call += &format!("|{}|{}", user_text(undecided.1.user), entry_name(undecided));
            }
            call += &format!("|{}", count.active.len());
            for user in count.active.iter().chain(&count.void_claims) {
                call += &format!("|{}", user_text(*user));
            }
            call
        }
        Op::Lose(Key::Group) => "XGROUP|DESTROY|stream.orders|g1".to_owned(),
        Op::Lose(Key::Hash) => "DEL|stream.orders.pending".to_owned(),
        Op::Lose(Key::Stream) => "DEL|stream.orders".to_owned(),
        Op::Lose(Key::Claims) => "DEL|seckill:order:7".to_owned(),
        Op::Lose(Key::Counter) => "DEL|seckill:stock:7".to_owned(),
        Op::Lose(Key::Open) => "DEL|seckill:open:7".to_owned(),
        Op::Join => "XGROUP|CREATE|stream.orders|g1|0|MKSTREAM".to_owned(),
        Op::Delete(entry) => format!("XDEL|stream.orders|{}", entry_text(*entry)),
        Op::Add(entry, order) => {
            let entry = entry_text(*entry);
            let user = user_text(order.user);
            let id = id_text(order.id);
            format!("XADD|stream.orders|{entry}|userId|{user}|voucherId|7|id|{id}")
        }
        // `difference` has done this on the server before.
        Op::Save | Op::Replace(_) => "PING".to_owned(),
    }
}

/// The texts and numbers in a reply.
fn texts(reply: &Value) -> Vec<String> {
    match reply {
        Value::Nil => Vec::new(),
        Value::Array(parts) => parts.iter().flat_map(texts).collect(),
        scalar => vec![from_redis_value(scalar.clone()).expect("a text or a number")],
    }
}

/// That part of a reply of Redis which the model has, too.
fn reply_of_redis(op: &Op, reply: RedisResult<Value>) -> Vec<String> {
    let mut all = match (op, reply) {
        (
            Op::Lose(_)
            | Op::Ack(_)
            | Op::Join
            | Op::Add(..)
            | Op::Delete(_)
            | Op::Save
            | Op::Replace(_),
            _,
        ) => return Vec::new(),
        (_, Ok(reply)) => texts(&reply),
        (_, Err(_)) => return vec!["failed".to_owned()],
    };
    match op {
        Op::Look | Op::LookUser(_) => all.truncate(1),
        // After the mark come the clock, the number of users with pending orders, and the pending orders of one user. The model
        // has none of these.
        Op::Page(_) => drop(all.drain(1..4)),
        Op::Admit { .. } => {
            all.remove(0);
            // Some answers also name the order that has the claim.
            let claimed = all
                .iter_mut()
                .filter(|answer| answer.starts_with("claimed"));
            claimed.for_each(|answer| answer.truncate("claimed".len()));
        }
        // The stream's name.
        Op::Read if !all.is_empty() => drop(all.remove(0)),
        Op::Resolve { .. } => all = vec![if all == ["-1"] { "no" } else { "yes" }.to_owned()],
        _ => {}
    }
    all
}

/// A reply of the model.
fn reply_of_model(reply: &Reply) -> Vec<String> {
    match reply {
        Reply::None => Vec::new(),
        Reply::Failed => vec!["failed".to_owned()],
        Reply::Yes => vec!["yes".to_owned()],
        Reply::No => vec!["no".to_owned()],
        Reply::Mark(mark) => vec![mark_text(*mark)],
        Reply::Entry(entry, order) => entry_reply(&(*entry, *order)),
        Reply::Entries(mark, entries) => [mark_text(*mark)]
            .into_iter()
            .chain(entries.iter().flat_map(entry_reply))
            .collect(),
        Reply::Admission(answers) => answers.iter().map(|&answer| answer.to_owned()).collect(),
    }
}

/// The reply to a call, and what each key holds, by name, as text.
type State = BTreeMap<&'static str, String>;

/// The reply to a call, and what the keys hold after it, in the model.
fn expected(Recorded { reply, after, .. }: &Recorded) -> State {
    let mut hash: BTreeMap<String, String> = after
        .mark
        .iter()
        .map(|mark| ("mark".to_owned(), mark_text(*mark)))
        .collect();
    for (&user, pending_orders) in &after.hash {
        let names = pending_orders
            .iter()
            .map(|&(id, entry)| entry_name(&(entry, Order { id, user })));
        hash.insert(user_text(user), names.collect::<Vec<_>>().join(" "));
    }
    let (users, tag) = after.claims.clone().unwrap_or_default();
    let claims: BTreeSet<String> = users
        .into_iter()
        .map(user_text)
        .chain(tag.map(open_text))
        .collect();
    let refused: BTreeSet<String> = after.refused.iter().copied().map(refusal_key).collect();
    let mut state = State::from([
        ("reply", format!("{:?}", reply_of_model(reply))),
        ("hash", format!("{hash:?}")),
        ("counter", format!("{:?}", after.counter)),
        ("claims", format!("{claims:?}")),
        ("open mark", format!("{:?}", after.open.map(open_text))),
        ("refusals", format!("{refused:?}")),
    ]);
    let Some(stream) = &after.stream else {
        return state;
    };
    let mut groups = BTreeMap::new();
    if let Some((delivered, _)) = &stream.group {
        groups.insert("g1", entry_text(*delivered));
    }
    if let Some(joined) = stream.joined {
        groups.insert("seckill", entry_text(joined));
    }
    let pending: Vec<String> = after.pending().into_keys().map(entry_text).collect();
    let entries: Vec<String> = stream
        .entries
        .iter()
        .flat_map(|(entry, order)| entry_reply(&(*entry, *order)))
        .collect();
    state.extend([
        ("last entry", entry_text(stream.last)),
        ("groups", format!("{groups:?}")),
        ("pending entries", format!("{pending:?}")),
        ("entries", format!("{entries:?}")),
    ]);
    state
}

/// `None` for an error, and for a value of another type.
fn value<T: FromRedisValue>(reply: &RedisResult<Value>) -> Option<T> {
    let value = reply.as_ref().ok()?.clone();
    from_redis_value(value).ok()
}

/// The same in Redis, from its replies: first the one to the call, then those to [`read_state`].
fn found(op: &Op, replies: &mut impl Iterator<Item = RedisResult<Value>>) -> State {
    let [
        called,
        hash,
        counter,
        claims,
        open,
        refusals,
        stream,
        groups,
        pending,
        entries,
    ] = std::array::from_fn(|_| replies.next().expect("a reply to each command"));
    let hash: BTreeMap<String, String> = value(&hash).unwrap_or_default();
    let claims: BTreeSet<String> = value(&claims).unwrap_or_default();
    let refusals: BTreeSet<String> = value(&refusals).unwrap_or_default();
    let mut state = State::from([
        ("reply", format!("{:?}", reply_of_redis(op, called))),
        ("hash", format!("{hash:?}")),
        (
            "counter",
            format!("{:?}", value::<Option<i64>>(&counter).flatten()),
        ),
        ("claims", format!("{claims:?}")),
        (
            "open mark",
            format!("{:?}", value::<Option<String>>(&open).flatten()),
        ),
        ("refusals", format!("{refusals:?}")),
    ]);
    let Some(stream) = value::<StreamInfoStreamReply>(&stream) else {
        return state;
    };
    let groups = value::<StreamInfoGroupsReply>(&groups).unwrap_or_default();
    let groups: BTreeMap<String, String> = groups
        .groups
        .into_iter()
        .map(|group| (group.name, group.last_delivered_id))
        .collect();
    // Empty if the group is gone.
    let pending = value::<StreamPendingCountReply>(&pending).unwrap_or_default();
    let pending: Vec<String> = pending.ids.into_iter().map(|entry| entry.id).collect();
    let entries = entries.as_ref().map(texts).unwrap_or_default();
    state.extend([
        ("last entry", stream.last_generated_id),
        ("groups", format!("{groups:?}")),
        ("pending entries", format!("{pending:?}")),
        ("entries", format!("{entries:?}")),
    ]);
    state
}

fn read_state(read: &mut Pipeline) {
    // An opener's name must not expire by itself: in the model that is a step.
    read.pexpire("seckill:open:7", 10_000).ignore();
    read.hgetall("stream.orders.pending")
        .get("seckill:stock:7")
        .smembers("seckill:order:7");
    read.get("seckill:open:7").keys("seckill:refused:*");
    let stream = "stream.orders";
    read.xinfo_stream(stream).xinfo_groups(stream);
    read.xpending_count(stream, "g1", "-", "+", 1000)
        .xrange_all(stream);
}

/// Whatever differs: what Redis has, and what the model has.
fn differences(found: &State, expected: &State) -> String {
    let names: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let mut differences = String::new();
    for name in names {
        let [redis, model] =
            [found, expected].map(|state| state.get(name).map_or("(none)", String::as_str));
        if redis != model {
            differences += &format!("{name}:\n  Redis {redis}\n  model {model}\n");
        }
    }
    differences
}

pub struct Scripts {
    redis: MultiplexedConnection,
    /// By the name of the script.
    hashes: BTreeMap<&'static str, String>,
    saved: Vec<(String, Vec<u8>)>,
}

impl Scripts {
    pub async fn load(mut redis: MultiplexedConnection, without: Option<&Omission>) -> Scripts {
        let mut hashes = BTreeMap::new();
        let text_without_rule = |name: &str, text: &str| match without {
            Some(omission) if omission.script == name => {
                assert_eq!(
                    text.matches(omission.rule).count(),
                    1,
                    "{}: {}",
                    name,
                    omission.rule
                );
                text.replace(omission.rule, omission.instead)
            }
            _ => text.to_owned(),
        };
        let head = text_without_rule("mark", include_str!("../../../lua/stream_mark.lua"));
        for (name, text) in SCRIPTS {
            let mut load = redis::cmd("SCRIPT");
            let text = [OF_THE_MODEL, &head, &text_without_rule(name, text)].concat();
            load.arg("LOAD").arg(text);
            hashes.insert(name, load.query_async(&mut redis).await.unwrap());
        }
        Scripts {
            redis,
            hashes,
            saved: Vec::new(),
        }
    }

    /// Makes these calls; says after which of them a reply, or what the keys hold, first differs from the model, and how.
    pub async fn difference(&mut self, recorded: &[Recorded]) -> Option<String> {
        self.saved.clear();
        let _: () = redis::cmd("FLUSHALL")
            .query_async(&mut self.redis)
            .await
            .unwrap();
        let mut calls = String::new();
        for part in recorded.chunk_by(|_, next| !matches!(next.op, Op::Save | Op::Replace(_))) {
            match part[0].op {
                Op::Save => self.save().await,
                Op::Replace(_) => self.restore().await,
                _ => {}
            }
            let mut replies = self.make(part).await.into_iter();
            for recorded_call in part {
                let expected = expected(recorded_call);
                let found = found(&recorded_call.op, &mut replies);
                let call = call(&recorded_call.op);
                let now = recorded_call.now;
                calls += &format!("  at {now} s: {call} -> {}\n", found["reply"]);
                if found != expected {
                    let differences = differences(&found, &expected);
                    return Some(format!("after these calls:\n{calls}{differences}"));
                }
            }
        }
        None
    }

    /// Makes these calls, and reads all keys after each.
    async fn make(&mut self, part: &[Recorded]) -> Vec<RedisResult<Value>> {
        let mut all = redis::pipe();
        for recorded_call in part {
            let mut set = redis::cmd("MSET");
            set.arg("model:now").arg(recorded_call.now);
            set.arg("model:call").arg(recorded_call.number);
            set.arg("model:server")
                .arg(format!("{:x}", recorded_call.after.server));
            all.add_command(set).ignore();
            let call = call(&recorded_call.op);
            let mut words = call.split('|');
            let first = words.next().unwrap();
            let mut command = redis::cmd(first);
            if let Some(hash) = self.hashes.get(first) {
                command = redis::cmd("EVALSHA");
                command.arg(hash);
            }
            command.arg(words.collect::<Vec<_>>());
            all.add_command(command);
            read_state(&mut all);
        }
        all.ignore_errors()
            .query_async(&mut self.redis)
            .await
            .unwrap()
    }

    async fn save(&mut self) {
        self.saved.clear();
        for key in self.redis.keys::<_, Vec<String>>("*").await.unwrap() {
            let mut dump = redis::cmd("DUMP");
            let dump = dump.arg(&key).query_async(&mut self.redis).await.unwrap();
            self.saved.push((key, dump));
        }
    }

    /// As another server would have it: with what was saved, and nothing else.
    async fn restore(&mut self) {
        let mut restore = redis::pipe();
        restore.cmd("FLUSHALL");
        for (key, dump) in &self.saved {
            restore.cmd("RESTORE").arg(key).arg(0).arg(dump);
        }
        restore.exec_async(&mut self.redis).await.unwrap();
    }
}
