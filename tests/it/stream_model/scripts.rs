//! The scripts, in a real Redis: does what was recorded of the model, and compares replies and keys after every call.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script, Value, from_redis_value};

use super::redis::{Entry, Id, Key, Mark, Op, Open, Order, Outcome, Redis, Reply, Stream, User};
use super::world::Recorded;

const STREAM: &str = "stream.orders";
const PENDING: &str = "stream.orders.pending";
const COUNTER: &str = "seckill:stock:7";
const CLAIMS: &str = "seckill:order:7";
const OPEN: &str = "seckill:open:7";
const REFUSED: &str = "seckill:refused:";
const OF_SALE: [&str; 5] = [STREAM, PENDING, COUNTER, CLAIMS, OPEN];

fn script(text: &str) -> Script {
    Script::new(&format!("{}{text}", include_str!("../../../lua/stream_mark.lua")))
}

fn user(user: User) -> String {
    (u32::from(user) + 1).to_string()
}

fn id((second, number): Id) -> String {
    format!("{second}{number:09}")
}

fn opener(name: u32) -> String {
    format!("by{name}")
}

fn name(order: &Order, entry: &str) -> String {
    format!("7:{}:{entry}", id(order.id))
}

fn parse_id(text: &str) -> Id {
    let (second, number) = text.split_at(text.len() - 9);
    (second.parse().unwrap(), number.parse().unwrap())
}

fn parse_user(text: &str) -> User {
    text.parse::<User>().unwrap() - 1
}

/// What Redis calls what the model numbers.
#[derive(Clone, Default)]
struct Names {
    entries: HashMap<String, Entry>,
    ids: HashMap<Entry, String>,
    marks: HashMap<String, Mark>,
}

impl Names {
    fn entry(&self, id: &str) -> Entry {
        if id == "0-0" { 0 } else { self.entries[id] }
    }

    fn id(&self, entry: Entry) -> String {
        self.ids.get(&entry).cloned().unwrap_or_else(|| "0-0".to_owned())
    }

    fn open(&self, text: &str) -> Open {
        self.marks
            .get(text)
            .map_or_else(|| Open::By(text[2..].parse().unwrap()), |of| Open::Under(*of))
    }

    fn text(&self, open: Open) -> String {
        match open {
            Open::By(name) => opener(name),
            Open::Under(mark) => self.mark(mark),
        }
    }

    fn mark(&self, mark: Mark) -> String {
        let found = self.marks.iter().find(|(_, of)| **of == mark);
        // One that is of no server any more.
        found.map_or_else(|| "none".to_owned(), |(text, _)| text.clone())
    }

    fn orders(&self, entries: &Value) -> Vec<(Entry, Order)> {
        let entries: Vec<(String, Vec<String>)> = from_redis_value(entries.clone()).unwrap();
        let order = |(entry, fields): &(String, Vec<String>)| {
            let order = Order { user: parse_user(&fields[1]), id: parse_id(&fields[5]) };
            (self.entry(entry), order)
        };
        entries.iter().map(order).collect()
    }
}

pub struct Scripts {
    redis: MultiplexedConnection,
    look: Script,
    admit: Script,
    resolve: Script,
    open: Script,
    names: Names,
    saved: Vec<(String, Vec<u8>)>,
}

impl Scripts {
    pub fn new(redis: MultiplexedConnection) -> Scripts {
        Scripts {
            redis,
            look: script(include_str!("../../../lua/stream_look.lua")),
            admit: script(include_str!("../../../lua/stream_admit.lua")),
            resolve: script(include_str!("../../../lua/stream_resolve.lua")),
            open: script(include_str!("../../../lua/stream_open.lua")),
            names: Names::default(),
            saved: Vec::new(),
        }
    }

    /// # Panics
    /// Where a reply, or what the keys hold then, is not the model's.
    pub async fn replay(&mut self, recorded: &[Recorded]) {
        let _: () = redis::cmd("FLUSHALL").query_async(&mut self.redis).await.unwrap();
        (self.names, self.saved) = (Names::default(), Vec::new());
        for (at, Recorded { op, reply, after }) in recorded.iter().enumerate() {
            let raw = self.run(op).await;
            let state = self.state(after).await;
            let mut expected = after.clone();
            if let Some((_, pending)) =
                expected.stream.as_mut().and_then(|stream| stream.group.as_mut())
            {
                pending.values_mut().for_each(|since| *since = 0);
            }
            expected.claims =
                expected.claims.filter(|(users, of)| !users.is_empty() || of.is_some());
            assert_eq!(state, expected, "after call {at}, {op:?}");
            assert_eq!(self.reply(op, raw), *reply, "of call {at}, {op:?}");
        }
    }

    async fn run(&mut self, op: &Op) -> RedisResult<Value> {
        let redis = &mut self.redis;
        let names = &self.names;
        match op {
            Op::Look | Op::LookUser(_) | Op::Page(_) => {
                let (what, of) = match op {
                    Op::LookUser(of) => ("user", user(*of)),
                    Op::Page(Some(after)) => ("page", names.id(*after)),
                    Op::Page(None) => ("page", String::new()),
                    _ => ("tidy", String::new()),
                };
                let mut look = self.look.key(&[STREAM, PENDING]);
                look.arg(what).arg(of).invoke_async(redis).await
            }
            Op::Admit { orders, late } => {
                let mut admit = self.admit.key(&OF_SALE);
                admit.arg(if *late { "0" } else { "9000000000000000" }).arg(1000);
                for order in orders {
                    admit.arg(1).arg(7).arg(user(order.user)).arg(id(order.id));
                }
                admit.invoke_async(redis).await
            }
            Op::Read => {
                let of = ["GROUP", "g1", "c1", "COUNT", "1", "STREAMS", STREAM, ">"];
                redis::cmd("XREADGROUP").arg(&of).query_async(redis).await
            }
            Op::Claim(entry) => {
                let of = [STREAM, "g1", "c1", "0", &names.id(*entry)];
                redis::cmd("XCLAIM").arg(&of).query_async(redis).await
            }
            Op::Ack(entry) => {
                let of = [STREAM, "g1", &names.id(*entry)];
                redis::cmd("XACK").arg(&of).query_async(redis).await
            }
            Op::Resolve { mark, entry, order, outcome } => {
                let entry = names.id(*entry);
                let mut resolve = self.resolve.key(&[STREAM, PENDING, "stream.orders.dead"]);
                resolve.arg(names.mark(*mark));
                let (outcome, has_order) = match outcome {
                    Outcome::Ordered => {
                        resolve.arg(1).arg(&entry).arg(user(order.user)).arg(name(order, &entry));
                        return resolve.invoke_async(redis).await;
                    }
                    Outcome::SoldOut => ("sold out", 0),
                    Outcome::Refused(has_order) => ("refused", i32::from(*has_order)),
                };
                resolve.key(&[COUNTER, CLAIMS, OPEN]).key(format!("{REFUSED}{}", id(order.id)));
                resolve.arg(0).arg(entry).arg(user(order.user)).arg(7).arg(id(order.id));
                resolve.arg(outcome).arg("CODE").arg(has_order).arg("");
                resolve.invoke_async(redis).await
            }
            Op::Close(name) => self.step("close", *name, &BTreeSet::new()).await,
            Op::ClaimAll(name, users) => self.step("claim", *name, users).await,
            Op::Release(name) => self.step("release", *name, &BTreeSet::new()).await,
            Op::Open(count) => {
                let mut open = self.open.key(&OF_SALE);
                open.arg("open").arg(names.mark(count.mark)).arg(names.text(count.was));
                open.arg("9000000000").arg(count.stock).arg(7).arg(names.id(count.last));
                open.arg(count.undecided.len());
                for (entry, order) in &count.undecided {
                    open.arg(user(order.user)).arg(name(order, &names.id(*entry)));
                }
                open.arg(count.active.len());
                let users = count.active.iter().chain(&count.void).copied().map(user);
                open.arg(users.collect::<Vec<_>>());
                open.invoke_async(redis).await
            }
            Op::Lose(Key::Group) => {
                redis::cmd("XGROUP").arg(&["DESTROY", STREAM, "g1"]).query_async(redis).await
            }
            Op::Lose(key) => {
                let key = match key {
                    Key::Hash => PENDING,
                    Key::Claims => CLAIMS,
                    Key::Counter => COUNTER,
                    Key::Open => OPEN,
                    Key::Stream | Key::Group => STREAM,
                };
                redis::cmd("DEL").arg(key).query_async(redis).await
            }
            Op::Save => {
                let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(redis).await?;
                self.saved.clear();
                for key in keys {
                    let dump = redis::cmd("DUMP").arg(&key).query_async(redis).await?;
                    self.saved.push((key, dump));
                }
                Ok(Value::Nil)
            }
            Op::Replace(_) => {
                let mut replace = redis::pipe();
                replace.cmd("FLUSHALL");
                for (key, dump) in &self.saved {
                    replace.cmd("RESTORE").arg(key).arg(0).arg(dump);
                }
                // A replica that becomes the master draws a new id.
                replace.cmd("REPLICAOF").arg("127.0.0.1").arg(1);
                replace.cmd("REPLICAOF").arg("NO").arg("ONE");
                replace.query_async(redis).await
            }
        }
    }

    async fn step(&mut self, step: &str, name: u32, users: &BTreeSet<User>) -> RedisResult<Value> {
        let mut open = self.open.key(&OF_SALE);
        open.arg(step).arg(opener(name));
        open.arg(users.iter().copied().map(user).collect::<Vec<_>>());
        let reply = open.invoke_async(&mut self.redis).await;
        // The model says when it expires.
        redis::cmd("PERSIST").arg(OPEN).query_async::<()>(&mut self.redis).await?;
        reply
    }

    fn reply(&self, op: &Op, raw: RedisResult<Value>) -> Reply {
        let raw = match (op, raw) {
            (Op::Lose(_) | Op::Ack(_), _) => return Reply::None,
            (_, Err(_)) => return Reply::Failed,
            (_, Ok(raw)) => raw,
        };
        let parts: &[Value] = if let Value::Array(parts) = &raw { parts } else { &[] };
        let text = |value: &Value| from_redis_value::<String>(value.clone()).unwrap();
        let mark = |value: &Value| self.names.marks[&text(value)];
        match op {
            Op::Look | Op::LookUser(_) => Reply::Mark(mark(&parts[0])),
            Op::Page(_) => {
                let mut entries = self.names.orders(&parts[4]);
                entries.extend(self.names.orders(&parts[5]));
                Reply::Entries(mark(&parts[0]), entries)
            }
            Op::Admit { .. } => {
                let answer = |value: &Value| {
                    let answer = text(value);
                    let known = ["pending", "claimed", "late", "closed", "sold out"];
                    known.into_iter().find(|known| answer.starts_with(known)).unwrap_or("another")
                };
                Reply::Admission(parts[1..].iter().map(answer).collect())
            }
            Op::Read | Op::Claim(_) => {
                let of_stream = if matches!(op, Op::Read) { parts.first() } else { None };
                let of_stream: Option<(String, Value)> =
                    of_stream.map(|stream| from_redis_value(stream.clone()).unwrap());
                let entries = of_stream.map_or(raw.clone(), |(_, entries)| entries);
                let is_none = matches!(entries, Value::Nil);
                let entry = if is_none { None } else { self.names.orders(&entries).pop() };
                entry.map_or(Reply::None, |(entry, order)| Reply::Entry(entry, order))
            }
            Op::Resolve { .. } if matches!(raw, Value::Int(-1)) => Reply::No,
            Op::Resolve { .. } => Reply::Yes,
            Op::Close(_) | Op::ClaimAll(..) | Op::Release(_) | Op::Open(_) => {
                if text(&raw) == "yes" { Reply::Yes } else { Reply::No }
            }
            _ => Reply::None,
        }
    }

    /// What the keys hold, in the model's words.
    async fn state(&mut self, model: &Redis) -> Redis {
        let redis = &mut self.redis;
        let mut read = redis::pipe();
        read.hgetall(PENDING)
            .get(COUNTER)
            .smembers(CLAIMS)
            .get(OPEN)
            .keys(format!("{REFUSED}*"))
            .exists(STREAM);
        type Read =
            (BTreeMap<String, String>, Option<i32>, Vec<String>, Option<String>, Vec<String>, bool);
        let (hash, counter, members, open, refused, exists): Read =
            read.query_async(redis).await.unwrap();
        let stream = if exists { Some(self.stream(model).await) } else { None };
        let names = &mut self.names;
        let mark = hash.get("mark");
        if let (Some(text), Some(mark)) = (mark, model.mark) {
            if !names.marks.contains_key(text) {
                assert_eq!(names.mark(mark), "none", "a mark that is there has another text");
                names.marks.insert(text.clone(), mark);
            }
            let join = text.rsplit(' ').next().unwrap();
            assert_eq!(names.entry(join), mark.join, "where we joined");
        }
        let own = |value: &String| {
            let own = value.split(' ').map(|order| order.splitn(3, ':').collect::<Vec<_>>());
            own.map(|order| (parse_id(order[1]), names.entry(order[2]))).collect()
        };
        let users = hash.iter().filter(|(field, _)| !["mark", "ids"].contains(&field.as_str()));
        let is_user = |member: &&String| member.parse::<User>().is_ok_and(|of| of <= 3);
        let (users_with_claims, tags): (Vec<&String>, Vec<&String>) =
            members.iter().partition(is_user);
        let claims = (!members.is_empty()).then(|| {
            let users = users_with_claims.iter().map(|of| parse_user(of)).collect();
            (users, tags.first().map(|text| names.open(text)))
        });
        Redis {
            server: model.server,
            stream,
            mark: mark.map(|text| names.marks[text]),
            hash: users.map(|(of, value)| (parse_user(of), own(value))).collect(),
            counter,
            claims,
            open: open.map(|text| names.open(&text)),
            refused: refused.iter().map(|key| parse_id(&key[REFUSED.len()..])).collect(),
        }
    }

    async fn stream(&mut self, model: &Redis) -> Stream {
        let mut read = redis::pipe();
        read.cmd("XINFO").arg("STREAM").arg(STREAM).cmd("XINFO").arg("GROUPS").arg(STREAM);
        read.cmd("XRANGE").arg(STREAM).arg("-").arg("+");
        type Info = BTreeMap<String, Value>;
        let (info, groups, entries): (Info, Vec<Info>, Value) =
            read.query_async(&mut self.redis).await.unwrap();
        let text = |value: &Value| from_redis_value::<String>(value.clone()).unwrap();
        let last = text(&info["last-generated-id"]);
        let names = &mut self.names;
        // The new ones, which the model numbers up to its last.
        let all: Vec<(String, Value)> = from_redis_value(entries.clone()).unwrap();
        let new =
            all.iter().rev().map(|(id, _)| id).take_while(|id| !names.entries.contains_key(*id));
        let new: Vec<String> = new.cloned().collect();
        for (number, id) in (1..=model.stream.as_ref().map_or(0, |of| of.last)).rev().zip(new) {
            names.entries.insert(id.clone(), number);
            names.ids.insert(number, id);
        }
        let delivered = |name: &str| {
            let group = groups.iter().find(|group| text(&group["name"]) == name);
            group.map(|group| text(&group["last-delivered-id"]))
        };
        let (group, joined) = (delivered("g1"), delivered("seckill"));
        let group = match group {
            None => None,
            Some(delivered) => {
                let mut read = redis::cmd("XPENDING");
                read.arg(&[STREAM, "g1", "-", "+", "1000"]);
                let pending: Vec<(String, String, i64, i64)> =
                    read.query_async(&mut self.redis).await.unwrap();
                let pending = pending.iter().map(|(id, ..)| (names.entry(id), 0));
                Some((names.entry(&delivered), pending.collect()))
            }
        };
        Stream {
            entries: names.orders(&entries).into_iter().collect(),
            last: names.entry(&last),
            group,
            joined: joined.map(|id| names.entry(&id)),
        }
    }
}
