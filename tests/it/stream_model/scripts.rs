//! The scripts, in a real Redis: does what was recorded of the model, and compares replies and keys after every call.

use std::collections::{BTreeMap, BTreeSet};

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamInfoGroupsReply, StreamInfoStreamReply, StreamPendingCountReply};
use redis::{AsyncCommands, RedisResult, Script, Value, from_redis_value};

use super::redis::{Entry, Id, Key, Mark, Op, Open, Order, Outcome, Redis, Reply, User};
use super::world::Recorded;

const STREAM: &str = "stream.orders";
const PENDING: &str = "stream.orders.pending";
const COUNTER: &str = "seckill:stock:7";
const CLAIMS: &str = "seckill:order:7";
const OPEN: &str = "seckill:open:7";
const REFUSED: &str = "seckill:refused:";
const OF_SALE: [&str; 5] = [STREAM, PENDING, COUNTER, CLAIMS, OPEN];

/// Clock, replication id and the ids of entries are the model's, so that it knows what Redis calls them.
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

fn script(text: &str) -> Script {
    Script::new(&[OF_THE_MODEL, include_str!("../../../lua/stream_mark.lua"), text].concat())
}

fn user(user: User) -> String {
    (user + 1).to_string()
}

fn id((second, number): Id) -> String {
    format!("{second}{number:09}")
}

fn entry(entry: Entry) -> String {
    format!("0-{entry}")
}

fn name((at, order): &(Entry, Order)) -> String {
    format!("7:{}:{}", id(order.id), entry(*at))
}

fn mark(Mark { number, server, since, join }: Mark) -> String {
    format!("{server:x} {since}{number:06} {}", entry(join))
}

fn open(open: Open) -> String {
    match open {
        Open::By(name) => format!("by{name}"),
        Open::Under(of) => mark(of),
    }
}

/// An entry as Redis tells it.
fn told(&(at, order): &(Entry, Order)) -> [String; 7] {
    let [of_user, of_sale, of_order] = ["userId", "voucherId", "id"].map(str::to_owned);
    [entry(at), of_user, user(order.user), of_sale, "7".to_owned(), of_order, id(order.id)]
}

/// What the keys of a sale hold: hash, counter, claims, open mark, refusals.
type Keys =
    (BTreeMap<String, String>, Option<i32>, BTreeSet<String>, Option<String>, BTreeSet<String>);

/// And the stream, if there is one: its last id, where its groups stand, what is pending, the entries.
type Entries = Option<(String, BTreeMap<String, String>, Vec<String>, Vec<String>)>;

/// The same, as the model has it.
fn of_model(model: &Redis) -> (Keys, Entries) {
    let pending = model.hash.iter().map(|(of, own)| {
        let own = own.iter().map(|&(id, at)| name(&(at, Order { id, user: *of })));
        (user(*of), own.collect::<Vec<_>>().join(" "))
    });
    let of_mark = model.mark.map(|of| ("mark".to_owned(), mark(of)));
    let (users, tag) = model.claims.clone().unwrap_or_default();
    let claims = users.into_iter().map(user).chain(tag.map(open)).collect();
    let refused = model.refused.iter().map(|of| format!("{REFUSED}{}", id(*of))).collect();
    let hash = pending.chain(of_mark).collect();
    let stream = model.stream.as_ref().map(|stream| {
        let delivered = stream.group.as_ref().map(|(delivered, _)| ("g1".to_owned(), *delivered));
        let joined = stream.joined.map(|joined| ("seckill".to_owned(), joined));
        let groups = delivered.into_iter().chain(joined).map(|(name, at)| (name, entry(at)));
        let pending = model.pending().into_keys().map(entry).collect();
        let entries = stream.entries.iter().flat_map(|(at, order)| told(&(*at, *order)));
        (entry(stream.last), groups.collect(), pending, entries.collect())
    });
    ((hash, model.counter, claims, model.open.map(open), refused), stream)
}

/// A reply of the model.
fn reply_of_model(reply: &Reply) -> Vec<String> {
    match reply {
        Reply::None => Vec::new(),
        Reply::Failed => vec!["failed".to_owned()],
        Reply::Yes => vec!["yes".to_owned()],
        Reply::No => vec!["no".to_owned()],
        Reply::Mark(of) => vec![mark(*of)],
        Reply::Entry(at, order) => told(&(*at, *order)).into(),
        Reply::Entries(of, entries) => {
            [mark(*of)].into_iter().chain(entries.iter().flat_map(told)).collect()
        }
        Reply::Admission(answers) => answers.iter().map(|&answer| answer.to_owned()).collect(),
    }
}

/// The texts and numbers in a reply.
fn texts(reply: &Value) -> Vec<String> {
    match reply {
        Value::Nil => Vec::new(),
        Value::Array(parts) => parts.iter().flat_map(texts).collect(),
        one => vec![from_redis_value(one.clone()).expect("a text or a number")],
    }
}

/// What the model says of a reply, too.
fn reply(op: &Op, reply: RedisResult<Value>) -> Vec<String> {
    let mut all = match (op, reply) {
        (Op::Lose(_) | Op::Ack(_) | Op::Save | Op::Replace(_), Ok(_))
        | (Op::Lose(_) | Op::Ack(_), Err(_)) => return Vec::new(),
        (_, Ok(reply)) => texts(&reply),
        (_, Err(_)) => return vec!["failed".to_owned()],
    };
    match op {
        Op::Look | Op::LookUser(_) => all.truncate(1),
        // Behind the mark: the clock, how many users have pending orders, and what of one is pending.
        Op::Page(_) => drop(all.drain(1..4)),
        Op::Admit { .. } => {
            all.remove(0);
            // Some name the order that has the claim.
            let is_of_id = |character: char| character.is_ascii_digit() || character == ' ';
            all.iter_mut()
                .for_each(|answer| answer.truncate(answer.trim_end_matches(is_of_id).len()));
        }
        // The stream's name.
        Op::Read if !all.is_empty() => drop(all.remove(0)),
        Op::Resolve { .. } => all = vec![if all == ["-1"] { "no" } else { "yes" }.to_owned()],
        _ => {}
    }
    all
}

pub struct Scripts {
    redis: MultiplexedConnection,
    look: Script,
    admit: Script,
    resolve: Script,
    open: Script,
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
            saved: Vec::new(),
        }
    }

    /// # Panics
    /// Where a reply, or what the keys hold then, is not the model's.
    pub async fn replay(&mut self, recorded: &[Recorded]) {
        let _: () = redis::cmd("FLUSHALL").query_async(&mut self.redis).await.unwrap();
        self.saved.clear();
        for (at, Recorded { op, now, number, reply: expected, after }) in
            recorded.iter().enumerate()
        {
            let (now, number, server) =
                (now.to_string(), number.to_string(), format!("{:x}", after.server));
            let model = [("model:now", now), ("model:call", number), ("model:server", server)];
            let _: () = self.redis.mset(&model).await.unwrap();
            let raw = self.run(op).await;
            assert_eq!(self.keys().await, of_model(after), "after call {at}, {op:?}");
            assert_eq!(reply(op, raw), reply_of_model(expected), "of call {at}, {op:?}");
        }
    }

    async fn run(&mut self, op: &Op) -> RedisResult<Value> {
        let redis = &mut self.redis;
        match op {
            Op::Look | Op::LookUser(_) | Op::Page(_) => {
                let (what, of) = match op {
                    Op::LookUser(of) => ("user", user(*of)),
                    Op::Page(after) => ("page", after.map(entry).unwrap_or_default()),
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
            Op::Claim(at) => {
                let of = [STREAM, "g1", "c1", "0", &entry(*at)];
                redis::cmd("XCLAIM").arg(&of).query_async(redis).await
            }
            Op::Ack(at) => {
                redis::cmd("XACK").arg(&[STREAM, "g1", &entry(*at)]).query_async(redis).await
            }
            Op::Resolve { mark: of, entry: at, order, outcome } => {
                let (user, name) = (user(order.user), name(&(*at, *order)));
                let mut resolve = self.resolve.key(&[STREAM, PENDING, "stream.orders.dead"]);
                resolve.arg(mark(*of));
                let (outcome, has_order) = match outcome {
                    Outcome::Ordered => {
                        resolve.arg(1).arg(entry(*at)).arg(user).arg(name);
                        return resolve.invoke_async(redis).await;
                    }
                    Outcome::SoldOut => ("sold out", 0),
                    Outcome::Refused(has_order) => ("refused", i32::from(*has_order)),
                };
                resolve.key(&[COUNTER, CLAIMS, OPEN]).key(format!("{REFUSED}{}", id(order.id)));
                resolve.arg(0).arg(entry(*at)).arg(user).arg(7).arg(id(order.id));
                resolve.arg(outcome).arg("CODE").arg(has_order).arg("");
                resolve.invoke_async(redis).await
            }
            Op::Close(name) => self.step("close", *name, &BTreeSet::new()).await,
            Op::ClaimAll(name, users) => self.step("claim", *name, users).await,
            Op::Release(name) => self.step("release", *name, &BTreeSet::new()).await,
            Op::Open(count) => {
                let mut step = self.open.key(&OF_SALE);
                step.arg("open").arg(mark(count.mark)).arg(open(count.was));
                step.arg("9000000000").arg(count.stock).arg(7).arg(entry(count.last));
                step.arg(count.undecided.len());
                for undecided in &count.undecided {
                    step.arg(user(undecided.1.user)).arg(name(undecided));
                }
                step.arg(count.active.len());
                let users = count.active.iter().chain(&count.void).copied().map(user);
                step.arg(users.collect::<Vec<_>>());
                step.invoke_async(redis).await
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
                let keys: Vec<String> = redis.keys("*").await?;
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
                replace.query_async(redis).await
            }
        }
    }

    async fn step(&mut self, step: &str, name: u32, users: &BTreeSet<User>) -> RedisResult<Value> {
        let mut script = self.open.key(&OF_SALE);
        script.arg(step).arg(open(Open::By(name)));
        script.arg(users.iter().copied().map(user).collect::<Vec<_>>());
        let reply = script.invoke_async(&mut self.redis).await;
        // The model says when it expires.
        redis::cmd("PERSIST").arg(OPEN).query_async::<()>(&mut self.redis).await?;
        reply
    }

    async fn keys(&mut self) -> (Keys, Entries) {
        let redis = &mut self.redis;
        let mut read = redis::pipe();
        read.hgetall(PENDING).get(COUNTER).smembers(CLAIMS).get(OPEN).keys(format!("{REFUSED}*"));
        let keys = read.query_async(redis).await.unwrap();
        if !redis.exists::<_, bool>(STREAM).await.unwrap() {
            return (keys, None);
        }
        let of: StreamInfoStreamReply = redis.xinfo_stream(STREAM).await.unwrap();
        let groups: StreamInfoGroupsReply = redis.xinfo_groups(STREAM).await.unwrap();
        let groups: BTreeMap<_, _> =
            groups.groups.into_iter().map(|group| (group.name, group.last_delivered_id)).collect();
        let mut pending = StreamPendingCountReply::default();
        if groups.contains_key("g1") {
            pending = redis.xpending_count(STREAM, "g1", "-", "+", 1000).await.unwrap();
        }
        let pending = pending.ids.into_iter().map(|pending| pending.id).collect();
        let entries: Value =
            redis::cmd("XRANGE").arg(&[STREAM, "-", "+"]).query_async(redis).await.unwrap();
        (keys, Some((of.last_generated_id, groups, pending, texts(&entries))))
    }
}
