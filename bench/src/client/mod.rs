//! Very many purchases from one thread: a closed loop (each connection asks again as soon as it is
//! answered) or an open one (attempts begin at a fixed rate, whatever becomes of the others).
//!
//! One `epoll` loop and no task, timer or allocation a request, so that what is measured is the
//! servers. In the open loop latency counts from when an attempt was *due* (no coordinated
//! omission); an attempt that is due while every connection is busy is not made, and counted so.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use workload::descriptors;

pub mod wire;

use wire::{Request, Said, TOKEN};

/// How long answers are awaited after the last attempt.
const DRAIN: Duration = Duration::from_secs(10);

/// Space for one answer, in bytes. The longest here are a few hundred.
const ANSWER: usize = 4096;

/// What to fire.
#[derive(Debug, Clone)]
pub struct Volley<'a> {
    /// Where to; connections are spread evenly.
    pub targets: &'a [SocketAddr],
    /// The path to POST to.
    pub path: &'a str,
    /// Session tokens, one a buyer.
    pub tokens: &'a [[u8; TOKEN]],
    /// Keep-alive connections.
    pub connections: usize,
    /// Attempts begin within this time.
    pub lasting: Duration,
    /// Attempts a second; `None` is a closed loop.
    pub rate: Option<f64>,
    /// Whether buyers may ask again once all had their turn; otherwise the volley ends there.
    pub again: bool,
}

/// What became of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct Shot {
    /// Index of the buyer.
    pub buyer: u32,
    /// When it was due, in µs from the beginning.
    pub due_us: u32,
    /// From then to the last byte of the answer, µs.
    pub latency_us: u32,
    /// What was said.
    pub end: End,
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// An order with this id, or a place for one.
    Ordered(i64),
    /// A refusal: index into [`Fired::codes`].
    Refused(u16),
    /// No answer: the connection broke, or it took too long.
    Lost,
}

/// A volley that was fired.
#[derive(Debug, Default)]
pub struct Fired {
    /// Every attempt that was sent.
    pub shots: Vec<Shot>,
    /// The codes of refusals.
    pub codes: Vec<String>,
    /// Due while all connections were busy, and not made.
    pub not_sent: u64,
    /// How long attempts were begun.
    pub lasted: Duration,
}

impl Fired {
    /// Orders answered while attempts were still being made, by the second.
    pub fn orders_per_s(&self) -> f64 {
        self.rate(|shot| matches!(shot.end, End::Ordered(_)))
    }

    /// Answers of any kind, likewise.
    pub fn answers_per_s(&self) -> f64 {
        self.rate(|shot| shot.end != End::Lost)
    }

    fn rate(&self, counts: impl Fn(&Shot) -> bool) -> f64 {
        let window = self.lasted.as_micros();
        let within = |shot: &&Shot| u128::from(shot.due_us) + u128::from(shot.latency_us) <= window;
        let count = self.shots.iter().filter(within).filter(|shot| counts(shot)).count();
        count as f64 / self.lasted.as_secs_f64().max(1e-6)
    }

    /// How many attempts ended how, orders as `ORDERED`.
    pub fn outcomes(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for shot in &self.shots {
            let name = match shot.end {
                End::Ordered(_) => "ORDERED",
                End::Lost => "LOST",
                End::Refused(code) => self.codes.get(usize::from(code)).map_or("?", |code| code),
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

    fn code(&mut self, name: &str) -> u16 {
        let at = self.codes.iter().position(|known| known == name).unwrap_or_else(|| {
            self.codes.push(name.to_owned());
            self.codes.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }
}

/// One connection, and the attempt it carries.
struct Link {
    stream: TcpStream,
    request: Request,
    written: usize,
    answer: Vec<u8>,
    filled: usize,
    /// Buyer and due time of the attempt under way.
    busy: Option<(u32, Instant)>,
    broken: bool,
}

impl Link {
    fn begin(&mut self, buyer: u32, token: &[u8; TOKEN], due: Instant) {
        self.request.of(token);
        (self.written, self.filled, self.busy) = (0, 0, Some((buyer, due)));
        self.write();
    }

    /// Writes what the socket takes; the rest follows when it is writable again.
    fn write(&mut self) {
        while self.busy.is_some() && self.written < self.request.bytes().len() {
            match self.stream.write(&self.request.bytes()[self.written..]) {
                Ok(count) => self.written += count,
                Err(fault) if fault.kind() == ErrorKind::WouldBlock => return,
                Err(fault) if fault.kind() == ErrorKind::Interrupted => {}
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
                Err(fault) if fault.kind() == ErrorKind::Interrupted => continue,
                Err(fault) if fault.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.broken = true,
            }
            return None;
        }
    }
}

/// Opens the connections and fires. Blocks its thread until the last answer.
///
/// # Errors
/// A target that does not accept, or too few file descriptors.
pub fn fire(volley: &Volley) -> anyhow::Result<Fired> {
    ensure!(
        !volley.targets.is_empty() && !volley.tokens.is_empty(),
        "nobody to ask, or to ask for"
    );
    descriptors::reserve(volley.connections)?;
    let mut poll = Poll::new()?;
    let mut links = open(volley, &poll)?;
    let mut fired = Fired { shots: Vec::with_capacity(1 << 18), ..Fired::default() };
    let mut events = Events::with_capacity(1024);
    let mut idle: Vec<usize> = (0..links.len()).rev().collect();
    let mut turn = Turn { next: 0, volley };
    let begin = Instant::now();
    let close = begin + volley.lasting;
    let mut due_count = 0_u64;
    let mut busy = 0_usize;
    let mut ended = None;
    loop {
        let now = Instant::now();
        let mut open = now < close && !turn.is_over();
        while open {
            let due = match volley.rate {
                None => now,
                Some(rate) => begin + Duration::from_secs_f64(due_count as f64 / rate),
            };
            if due > now || (volley.rate.is_none() && idle.is_empty()) {
                break;
            }
            due_count += 1;
            match (idle.pop(), turn.take()) {
                (Some(at), Some((buyer, token))) => {
                    links[at].begin(buyer, token, due);
                    busy += 1;
                }
                (None, Some(_)) => fired.not_sent += 1,
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
        let wait = if volley.rate.is_some() && open { 1 } else { 100 };
        match poll.poll(&mut events, Some(Duration::from_millis(wait))) {
            Err(fault) if fault.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        let now = Instant::now();
        let open = now < close;
        for event in &events {
            let at = event.token().0;
            let link = &mut links[at];
            if event.is_writable() {
                link.write();
            }
            let Some((buyer, due)) = link.busy else { continue };
            let end = match link.read() {
                Some((head, end)) => match wire::read(&link.answer, head, end) {
                    Said::Ordered(id) => End::Ordered(id),
                    Said::Code(code) => End::Refused(fired.code(&code)),
                },
                None if link.broken => End::Lost,
                None => continue,
            };
            link.busy = None;
            busy -= 1;
            fired.shots.push(shot(buyer, due, begin, now, end));
            if end == End::Lost {
                *link = connect(volley, at, &poll)?;
            }
            // The closed loop's next request goes out at once, before other answers are read.
            if volley.rate.is_none()
                && open
                && let Some((buyer, token)) = turn.take()
            {
                links[at].begin(buyer, token, now);
                busy += 1;
            } else {
                idle.push(at);
            }
        }
    }
    fired.lasted = ended.unwrap_or(close) - begin;
    let now = Instant::now();
    for (buyer, due) in links.iter().filter_map(|link| link.busy) {
        fired.shots.push(shot(buyer, due, begin, now, End::Lost));
    }
    Ok(fired)
}

fn shot(buyer: u32, due: Instant, begin: Instant, now: Instant, end: End) -> Shot {
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    Shot { buyer, due_us: micros(due - begin), latency_us: micros(now - due), end }
}

/// Whose turn it is.
struct Turn<'a> {
    next: usize,
    volley: &'a Volley<'a>,
}

impl<'a> Turn<'a> {
    fn is_over(&self) -> bool {
        !self.volley.again && self.next >= self.volley.tokens.len()
    }

    fn take(&mut self) -> Option<(u32, &'a [u8; TOKEN])> {
        if self.is_over() {
            return None;
        }
        let at = self.next % self.volley.tokens.len();
        self.next += 1;
        Some((u32::try_from(at).ok()?, self.volley.tokens.get(at)?))
    }
}

fn open(volley: &Volley, poll: &Poll) -> anyhow::Result<Vec<Link>> {
    (0..volley.connections).map(|at| connect(volley, at, poll)).collect()
}

/// Connects in the ordinary, blocking way, so that a full backlog only slows the opening.
fn connect(volley: &Volley, at: usize, poll: &Poll) -> anyhow::Result<Link> {
    let target = volley.targets[at % volley.targets.len()];
    let stream = std::net::TcpStream::connect_timeout(&target, Duration::from_secs(5))
        .with_context(|| format!("connecting to {target}"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut stream = TcpStream::from_std(stream);
    poll.registry().register(&mut stream, Token(at), Interest::READABLE | Interest::WRITABLE)?;
    let request = Request::new(&target.to_string(), volley.path);
    let answer = vec![0; ANSWER];
    Ok(Link { stream, request, written: 0, answer, filled: 0, busy: None, broken: false })
}

#[cfg(test)]
mod tests;
