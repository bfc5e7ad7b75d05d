//! Load generator on one thread: a closed loop (each connection sends its next request as soon as it is answered) or
//! an open one (attempts begin at a fixed rate, independent of answers).
//!
//! Plain sockets, and no task per request, so that what is measured is the servers: the client of [`workload::http`]
//! needs half as much processor time again. In the open loop latency counts from when an attempt was *due* (no
//! coordinated omission). An attempt that is due while every connection is busy is not made, which is counted, and its buyer
//! has the next turn. Otherwise more buyers would come under overload than at the peak, and the servers would know fewer of
//! them.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use workload::checker::ObservedReply;
use workload::reply::{CONNECTION_LOST, Reply};
use workload::{Target, buyers::Buyer, descriptors};

/// How long answers are awaited after the last attempt.
const DRAIN: Duration = Duration::from_secs(10);
/// Longest wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A connection that becomes free takes an attempt that was due at most so long ago: timers count in milliseconds.
const LATE: Duration = Duration::from_millis(1);
/// Space for one answer, in bytes. The longest here are a few hundred.
const ANSWER: usize = 4096;

/// The load to generate.
#[derive(Debug, Clone)]
pub struct Load {
    /// Servers; connections are spread evenly over them.
    pub targets: Vec<Target>,
    /// The methods and paths to ask for, such as `POST /x`, in turn.
    pub paths: Arc<[String]>,
    pub buyers: Arc<[Buyer]>,
    /// Keep-alive connections.
    pub connections: usize,
    /// Attempts begin within this time.
    pub duration: Duration,
    /// Attempts per second of an open loop; `None` is a closed loop.
    pub rate: Option<f64>,
    /// Whether buyers try again once all had their turn; otherwise the load ends there.
    pub repeat: bool,
}

/// One attempt to buy.
#[derive(Debug)]
pub struct Attempt {
    pub observed: ObservedReply,
    /// Index of the path asked for.
    pub path: usize,
    /// From when it was due to the last byte of the answer.
    pub latency: Duration,
    /// From the beginning of the load to that byte.
    pub end: Duration,
}

impl Attempt {
    /// Whether it made an order, perhaps a pending one (202).
    pub fn is_order(&self) -> bool {
        self.observed.reply.is_success()
    }
}

/// The attempts of one load.
#[derive(Debug, Default)]
pub struct Attempts {
    /// Every attempt that was sent.
    pub list: Vec<Attempt>,
    /// Attempts due while all connections were busy, and not made.
    pub not_sent: usize,
    /// For how long new attempts were begun.
    pub duration: Duration,
}

impl Attempts {
    /// Attempts that `count` and were answered while others were still being made, per second.
    pub fn per_s(&self, count: impl Fn(&Attempt) -> bool) -> f64 {
        let within = self
            .list
            .iter()
            .filter(|attempt| attempt.end <= self.duration);
        let count = within.filter(|attempt| count(attempt)).count();
        count as f64 / self.duration.as_secs_f64().max(1e-6)
    }

    /// Answers of any kind per second, likewise.
    pub fn answers_per_s(&self) -> f64 {
        self.per_s(|attempt| attempt.observed.reply != Reply::lost(CONNECTION_LOST))
    }

    /// Number of attempts by the reply they got.
    pub fn outcomes(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for attempt in &self.list {
            *counts
                .entry(attempt.observed.reply.label().to_owned())
                .or_default() += 1;
        }
        if self.not_sent > 0 {
            counts.insert("NOT_SENT".to_owned(), self.not_sent);
        }
        counts
    }
}

/// Opens the connections and generates the load. Blocks its thread until the last answer.
pub fn generate(load: Load) -> anyhow::Result<Attempts> {
    descriptors::reserve(load.connections)?;
    Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let mut connections = Vec::new();
            // One after the other, so that a full backlog only slows the opening.
            for target in load.targets.iter().cycle().take(load.connections) {
                connections.push(Connection::open(target.authority()).await?);
            }
            let list = Vec::with_capacity(1 << 18);
            let attempts = Attempts {
                list,
                not_sent: 0,
                duration: load.duration,
            };
            let state = Mutex::new(State {
                due: 0,
                sent: 0,
                attempts,
            });
            let running = Arc::new(Running {
                load,
                begin: Instant::now(),
                state,
            });
            let mut tasks = JoinSet::new();
            for connection in connections {
                tasks.spawn(running.clone().drive(connection));
            }
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok(std::mem::take(&mut running.state().attempts))
        })
}

/// A load under way.
struct Running {
    load: Load,
    begin: Instant,
    /// All tasks run on one thread, so that none ever waits for this lock.
    state: Mutex<State>,
}

struct State {
    /// Attempts that were due.
    due: usize,
    /// Those of them that were begun.
    sent: usize,
    /// Those that are over.
    attempts: Attempts,
}

impl Running {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes attempts on one connection.
    async fn drive(self: Arc<Self>, mut connection: Connection) -> anyhow::Result<()> {
        let Load {
            buyers,
            paths,
            duration,
            rate,
            ..
        } = &self.load;
        let close = self.begin + *duration;
        let mut limit = pin!(sleep_until((close + DRAIN).into()));
        while let Some((number, due_at)) = self.next() {
            if rate.is_some() {
                sleep_until(due_at.into()).await;
            }
            let buyer = &buyers[number % buyers.len()];
            let path = number % paths.len();
            let reply = tokio::select! {
                biased;
                reply = connection.ask(&paths[path], buyer) => reply.ok(),
                () = &mut limit => None,
            };
            let now = Instant::now();
            let is_lost = reply.is_none();
            let observed = ObservedReply {
                user_id: buyer.user_id,
                attempt: u32::try_from(number).unwrap_or(u32::MAX),
                reply: reply.unwrap_or_else(|| Reply::lost(CONNECTION_LOST)),
            };
            let latency = now - due_at;
            let end = now - self.begin;
            self.state().attempts.list.push(Attempt {
                observed,
                path,
                latency,
                end,
            });
            if is_lost && now < close {
                connection = Connection::open(connection.host).await?;
            }
        }
        Ok(())
    }

    /// The next attempt's number among those sent, and when it is due. `None` when all are made or time is up.
    fn next(&self) -> Option<(usize, Instant)> {
        let Load {
            buyers,
            duration,
            rate,
            repeat,
            ..
        } = &self.load;
        let count = if *repeat { usize::MAX } else { buyers.len() };
        let close = self.begin + *duration;
        let now = Instant::now();
        let mut due_at = now;
        let state = &mut *self.state();
        if state.sent >= count {
            state.attempts.duration = state.attempts.duration.min(now - self.begin);
            return None;
        }
        if let Some(rate) = rate {
            let passed = (now.min(close) - self.begin).saturating_sub(LATE);
            // What was due before, and not begun, had no connection: an idle one would have taken it.
            let first = (passed.as_secs_f64() * rate).ceil() as usize;
            state.attempts.not_sent += first.saturating_sub(state.due);
            state.due = first.max(state.due);
            due_at = self.begin + Duration::from_secs_f64(state.due as f64 / rate);
        }
        if due_at.max(now) >= close {
            return None;
        }
        state.due += 1;
        state.sent += 1;
        Some((state.sent - 1, due_at))
    }
}

/// A keep-alive connection, for one request at a time.
struct Connection {
    host: String,
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Connection {
    async fn open(host: String) -> anyhow::Result<Self> {
        let connecting =
            async { anyhow::Ok(timeout(CONNECT_LIMIT, TcpStream::connect(&host)).await??) };
        let stream = connecting
            .await
            .with_context(|| format!("connecting to {host}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            host,
            stream,
            answer: Vec::with_capacity(ANSWER),
        })
    }

    /// Sends a request and reads its answer. A read that succeeds is a reply with its HTTP status as the code.
    async fn ask(&mut self, path: &str, buyer: &Buyer) -> anyhow::Result<Reply> {
        let is_read = path.starts_with("GET ");
        // A read is anonymous: its token is in a header that nobody looks at.
        let header: &[u8] = if is_read {
            b"x-reader: "
        } else {
            b"authorization: "
        };
        let request = [
            path.as_bytes(),
            b" HTTP/1.1\r\nhost: ",
            self.host.as_bytes(),
            b"\r\n",
            header,
            buyer.token.as_bytes(),
            b"\r\ncontent-length: 0\r\n\r\n",
        ];
        self.stream.write_all(&request.concat()).await?;
        self.answer.clear();
        loop {
            ensure!(
                self.stream.read_buf(&mut self.answer).await? > 0,
                "the connection was closed"
            );
            match complete(&self.answer)? {
                Some((200, _)) if is_read => return Ok(Reply::Refused("HTTP_200".into())),
                Some((status, body)) => return Ok(Reply::read(status, body)),
                None => {}
            }
        }
    }
}

/// Status and body of an answer; `None` while it is incomplete.
fn complete(bytes: &[u8]) -> anyhow::Result<Option<(u16, &[u8])>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut answer = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = answer.parse(bytes)? else {
        return Ok(None);
    };
    let status = answer.code.context("an answer without a status")?;
    let mut headers = answer.headers.iter();
    let length = headers.find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.context("an answer without a length")?.value;
    let length: usize = std::str::from_utf8(length)?.parse()?;
    Ok(bytes[head..].get(..length).map(|body| (status, body)))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use tokio::net::TcpListener;
    use tokio::task::spawn_blocking;
    use tokio::time::sleep;

    use super::*;

    /// A load of three purchases on two connections, and what it connects to.
    async fn load() -> (Load, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap());
        let load = Load {
            targets: vec![target.parse().unwrap()],
            paths: ["POST /x".to_owned(), "POST /y".to_owned()].into(),
            buyers: workload::sessions::buyers(1, 3).into(),
            connections: 2,
            duration: Duration::from_secs(20),
            rate: None,
            repeat: false,
        };
        (load, listener)
    }

    #[tokio::test]
    async fn an_open_loop_counts_unsent_attempts_whose_buyers_have_the_next_turn() {
        let (load, listener) = load().await;
        let answers = Router::new().fallback(|| async {
            sleep(Duration::from_millis(50)).await;
            r#"{"success":true,"data":5,"orderId":"5"}"#
        });
        tokio::spawn(axum::serve(listener, answers).into_future());
        let duration = Duration::from_millis(500);
        let load = Load {
            rate: Some(1_000.0),
            buyers: workload::sessions::buyers(1, 100).into(),
            duration,
            ..load
        };
        let attempts = spawn_blocking(|| generate(load)).await.unwrap().unwrap();
        let due_count = attempts.list.len() + attempts.not_sent;
        // Two connections, 50 ms each: twenty answers or so, fewer on a busy machine.
        assert!(
            (1..=22).contains(&attempts.list.len()),
            "{}",
            attempts.list.len()
        );
        assert!(attempts.list.iter().all(Attempt::is_order));
        assert!(
            due_count <= 500 && attempts.not_sent > 0,
            "{due_count} of 500 fell due"
        );
        let mut buyers: Vec<_> = attempts
            .list
            .iter()
            .map(|attempt| attempt.observed.user_id)
            .collect();
        buyers.sort_unstable();
        let came = 1..=buyers.len() as u64;
        assert!(buyers.into_iter().eq(came), "others came: {attempts:?}");
    }

    #[tokio::test]
    async fn what_falls_due_after_the_last_buyer_is_not_counted() {
        let (load, _) = load().await;
        let passed = Duration::from_secs(10);
        let sent = load.buyers.len();
        let attempts = Attempts {
            duration: load.duration,
            ..Attempts::default()
        };
        let running = Running {
            load: Load {
                rate: Some(1_000.0),
                ..load
            },
            begin: Instant::now().checked_sub(passed).unwrap(),
            state: Mutex::new(State {
                due: sent,
                sent,
                attempts,
            }),
        };
        assert!(running.next().is_none());
        let attempts = &running.state().attempts;
        assert_eq!(attempts.not_sent, 0);
        assert!(attempts.duration >= passed);
    }

    #[tokio::test]
    async fn a_missing_answer_is_counted_as_lost() {
        let (load, listener) = load().await;
        // This server closes every connection.
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let attempts = spawn_blocking(|| generate(load)).await.unwrap().unwrap();
        assert_eq!(
            attempts.outcomes(),
            [(CONNECTION_LOST.to_owned(), 3)].into()
        );
        assert_eq!(attempts.answers_per_s(), 0.0);
    }
}
