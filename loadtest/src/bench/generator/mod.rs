//! Load generator on one thread: a closed loop (each connection sends its next request as soon as it is answered) or
//! an open one (attempts begin at a fixed rate, independent of answers).
//!
//! One `epoll` loop and no task, timer or allocation a request, so that what is measured is the
//! servers. In the open loop latency counts from when an attempt was *due* (no coordinated
//! omission); an attempt that is due while every connection is busy is not made, and counted so.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use workload::{buyers::Buyer, descriptors};

pub mod wire;

use wire::{Answer, Request, TOKEN};

/// How long answers are awaited after the last attempt.
const DRAIN: Duration = Duration::from_secs(10);

/// Space for one answer, in bytes. The longest here are a few hundred.
const ANSWER: usize = 4096;

/// The load to generate.
#[derive(Debug, Clone)]
pub struct Load {
    /// Servers; connections are spread evenly over them.
    pub targets: Vec<SocketAddr>,
    /// The methods and paths to ask for, such as `POST /x`, in turn; all of one length.
    pub paths: Arc<[String]>,
    /// The buyers, whose tokens are [`TOKEN`] long.
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
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    pub buyer: u32,
    pub path: u32,
    /// When it was due, in µs from the beginning.
    pub due_us: u32,
    /// From then to the last byte of the answer, in µs.
    pub latency_us: u32,
    pub outcome: Outcome,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// An order with this id, or a pending one (202).
    Ordered(i64),
    /// A refusal: index into [`Attempts::codes`].
    Refused(u16),
    /// No answer: the connection broke, or it took too long.
    Lost,
}

/// The attempts of one load.
#[derive(Debug, Default)]
pub struct Attempts {
    /// Every attempt that was sent.
    pub list: Vec<Attempt>,
    pub codes: Vec<String>,
    /// Attempts due while all connections were busy, and not made.
    pub not_sent: u64,
    /// How long attempts were begun.
    pub duration: Duration,
}

impl Attempts {
    /// Orders answered while attempts were still being made, per second.
    pub fn orders_per_s(&self) -> f64 {
        self.rate(|attempt| matches!(attempt.outcome, Outcome::Ordered(_)))
    }

    /// Answers of any kind, likewise.
    pub fn answers_per_s(&self) -> f64 {
        self.rate(|attempt| attempt.outcome != Outcome::Lost)
    }

    fn rate(&self, counts: impl Fn(&Attempt) -> bool) -> f64 {
        let window = self.duration.as_micros();
        let within = |attempt: &&Attempt| {
            u128::from(attempt.due_us) + u128::from(attempt.latency_us) <= window
        };
        let count = self.list.iter().filter(within).filter(|attempt| counts(attempt)).count();
        count as f64 / self.duration.as_secs_f64().max(1e-6)
    }

    /// Number of attempts by outcome; orders count as `ORDERED`.
    pub fn outcomes(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for attempt in &self.list {
            let name = match attempt.outcome {
                Outcome::Ordered(_) => "ORDERED",
                Outcome::Lost => "LOST",
                Outcome::Refused(code) => self.code(code),
            };
            // A name is only copied the first time.
            match counts.get_mut(name) {
                Some(count) => *count += 1,
                None => drop(counts.insert(name.to_owned(), 1)),
            }
        }
        if self.not_sent > 0 {
            counts.insert("NOT_SENT".to_owned(), self.not_sent);
        }
        counts
    }

    /// The code at this index of [`Attempts::codes`].
    pub fn code(&self, at: u16) -> &str {
        self.codes.get(usize::from(at)).map_or("?", |code| code)
    }

    /// The index of the code `name`, added where it is new.
    fn index(&mut self, name: &str) -> u16 {
        let at = self.codes.iter().position(|known| known == name).unwrap_or_else(|| {
            self.codes.push(name.to_owned());
            self.codes.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }
}

/// A connection and its attempt in flight.
struct Connection {
    stream: TcpStream,
    request: Request,
    written: usize,
    answer: Vec<u8>,
    filled: usize,
    attempt: Option<Pending>,
    broken: bool,
}

/// An attempt in flight.
#[derive(Clone, Copy)]
struct Pending {
    buyer: u32,
    path: u32,
    due: Instant,
}

impl Pending {
    fn end(self, begin: Instant, now: Instant, outcome: Outcome) -> Attempt {
        let Pending { buyer, path, due } = self;
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        Attempt { buyer, path, due_us: micros(due - begin), latency_us: micros(now - due), outcome }
    }
}

impl Connection {
    fn begin(&mut self, load: &Load, (buyer, path): (usize, usize), due: Instant) {
        self.request.set_token(load.buyers[buyer].token.as_bytes());
        self.request.set_line(&load.paths[path]);
        let [buyer, path] = [buyer, path].map(|at| u32::try_from(at).unwrap_or(u32::MAX));
        (self.written, self.filled) = (0, 0);
        self.attempt = Some(Pending { buyer, path, due });
        self.write();
    }

    /// Writes what the socket takes; the rest follows when it is writable again.
    fn write(&mut self) {
        while self.attempt.is_some() && self.written < self.request.bytes().len() {
            match self.stream.write(&self.request.bytes()[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    /// Reads what there is; the bounds of head and body once the answer is complete.
    fn read(&mut self) -> Option<(usize, usize)> {
        loop {
            match self.stream.read(&mut self.answer[self.filled..]) {
                Ok(0) => self.broken = true,
                Ok(count) => {
                    self.filled += count;
                    if let Some(end) = wire::end_of(&self.answer[..self.filled]) {
                        return Some(end);
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.broken = true,
            }
            return None;
        }
    }
}

/// Opens the connections and generates the load. Blocks its thread until the last answer.
pub fn generate(load: &Load) -> anyhow::Result<Attempts> {
    ensure!(
        !load.targets.is_empty() && !load.buyers.is_empty() && !load.paths.is_empty(),
        "a load needs a target, a buyer and a path"
    );
    let is_as_long = |path: &String| path.len() == load.paths[0].len();
    ensure!(load.paths.iter().all(is_as_long), "the paths of a load are of one length");
    let is_whole = |buyer: &Buyer| buyer.token.len() == TOKEN;
    ensure!(load.buyers.iter().all(is_whole), "the tokens of buyers are {TOKEN} digits");
    descriptors::reserve(load.connections)?;
    let mut poll = Poll::new()?;
    let mut connections: Vec<Connection> =
        (0..load.connections).map(|at| connect(load, at, &poll)).collect::<anyhow::Result<_>>()?;
    let mut attempts = Attempts { list: Vec::with_capacity(1 << 18), ..Attempts::default() };
    let mut events = Events::with_capacity(1024);
    let mut idle: Vec<usize> = (0..connections.len()).rev().collect();
    let mut queue = Queue { next: 0, load };
    let begin = Instant::now();
    let close = begin + load.duration;
    let mut due_count = 0_u64;
    let mut busy = 0_usize;
    let mut ended = None;
    loop {
        let now = Instant::now();
        let mut open = now < close && !queue.is_empty();
        while open {
            let due = match load.rate {
                None => now,
                Some(rate) => begin + Duration::from_secs_f64(due_count as f64 / rate),
            };
            if due > now || (load.rate.is_none() && idle.is_empty()) {
                break;
            }
            due_count += 1;
            match (idle.pop(), queue.next()) {
                (Some(at), Some(next)) => {
                    connections[at].begin(load, next, due);
                    busy += 1;
                }
                (None, Some(_)) => attempts.not_sent += 1,
                (_, None) => open = false,
            }
        }
        if !open {
            ended.get_or_insert(now.min(close));
        }
        if !open && (busy == 0 || now > close + DRAIN) {
            break;
        }
        // epoll counts in milliseconds; an open loop catches up on what has fallen due meanwhile.
        let wait = if load.rate.is_some() && open { 1 } else { 100 };
        match poll.poll(&mut events, Some(Duration::from_millis(wait))) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        let now = Instant::now();
        let open = now < close;
        for event in &events {
            let at = event.token().0;
            let connection = &mut connections[at];
            if event.is_writable() {
                connection.write();
            }
            let Some(pending) = connection.attempt else { continue };
            let outcome = match connection.read() {
                Some((head, end)) => match wire::read(&connection.answer, head, end) {
                    Answer::Ordered(id) => Outcome::Ordered(id),
                    Answer::Code(code) => Outcome::Refused(attempts.index(&code)),
                },
                None if connection.broken => Outcome::Lost,
                None => continue,
            };
            connection.attempt = None;
            busy -= 1;
            attempts.list.push(pending.end(begin, now, outcome));
            if outcome == Outcome::Lost {
                *connection = connect(load, at, &poll)?;
            }
            // The closed loop's next request goes out at once, before other answers are read.
            if load.rate.is_none()
                && open
                && let Some(next) = queue.next()
            {
                connections[at].begin(load, next, now);
                busy += 1;
            } else {
                idle.push(at);
            }
        }
    }
    attempts.duration = ended.unwrap_or(close) - begin;
    let now = Instant::now();
    for pending in connections.iter().filter_map(|connection| connection.attempt) {
        attempts.list.push(pending.end(begin, now, Outcome::Lost));
    }
    Ok(attempts)
}

/// The buyers in their order, and the paths in turn.
struct Queue<'a> {
    next: usize,
    load: &'a Load,
}

impl Queue<'_> {
    fn is_empty(&self) -> bool {
        !self.load.repeat && self.next >= self.load.buyers.len()
    }

    /// Indexes of the buyer and of the path.
    fn next(&mut self) -> Option<(usize, usize)> {
        if self.is_empty() {
            return None;
        }
        let next = (self.next % self.load.buyers.len(), self.next % self.load.paths.len());
        self.next += 1;
        Some(next)
    }
}

/// Connects in the ordinary, blocking way, so that a full backlog only slows the opening.
fn connect(load: &Load, at: usize, poll: &Poll) -> anyhow::Result<Connection> {
    let target = load.targets[at % load.targets.len()];
    let stream = std::net::TcpStream::connect_timeout(&target, Duration::from_secs(5))
        .with_context(|| format!("connecting to {target}"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut stream = TcpStream::from_std(stream);
    poll.registry().register(&mut stream, Token(at), Interest::READABLE | Interest::WRITABLE)?;
    let request = Request::new(&target.to_string(), &load.paths[0]);
    let answer = vec![0; ANSWER];
    Ok(Connection { stream, request, written: 0, answer, filled: 0, attempt: None, broken: false })
}

#[cfg(test)]
mod tests;
