//! Replies that get lost: the server carried the command out, and nobody heard. A command is sent
//! again then, and must count once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use seckill::lock::{LockConfig, Locks, LostReason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{ask, eventually, nothing_left, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

/// A proxy before a Redis that, once armed, swallows the next reply and closes the connection; or
/// that is deaf to all replies, and closes the connection only when it hears again.
pub(super) struct Lossy {
    address: SocketAddr,
    armed: Arc<AtomicBool>,
    deaf: Arc<AtomicBool>,
    _task: JoinSet<()>,
}

impl Lossy {
    pub(super) async fn before(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("a bound address");
        let (armed, deaf) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let server = server.url().replace("redis://", "").replace('/', "");
        let mut task = JoinSet::new();
        task.spawn({
            let (armed, deaf) = (armed.clone(), deaf.clone());
            async move {
                let mut pairs = JoinSet::new();
                while let Ok((near, _)) = listener.accept().await {
                    let far = TcpStream::connect(&server).await.expect("connect to the server");
                    pairs.spawn(pass(near, far, armed.clone(), deaf.clone()));
                }
            }
        });
        Self { address, armed, deaf, _task: task }
    }

    pub(super) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}/", self.address)).expect("a valid address")
    }

    pub(super) fn lose_next_reply(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    fn deafen(&self, deaf: bool) {
        self.deaf.store(deaf, Ordering::SeqCst);
    }

    pub(super) fn has_lost_it(&self) -> bool {
        !self.armed.load(Ordering::SeqCst)
    }
}

/// Pass bytes both ways until either side closes or a reply is to be lost.
async fn pass(
    mut near: TcpStream,
    mut far: TcpStream,
    armed: Arc<AtomicBool>,
    deaf: Arc<AtomicBool>,
) {
    let (mut up, mut down) = ([0; 4096], [0; 4096]);
    let mut missed = false;
    loop {
        tokio::select! {
            n = near.read(&mut up) => match n {
                Ok(n) if n > 0 => if far.write_all(&up[..n]).await.is_err() { return },
                _ => return,
            },
            n = far.read(&mut down) => match n {
                Ok(n) if n > 0 && deaf.load(Ordering::SeqCst) => missed = true,
                // Later replies would be taken for the answers that were missed.
                Ok(_) if missed => return,
                Ok(n) if n > 0 => {
                    if armed.swap(false, Ordering::SeqCst)
                        || near.write_all(&down[..n]).await.is_err()
                    {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}

#[tokio::test]
async fn a_lost_reply_costs_neither_a_count_nor_an_error() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lossy = Lossy::before(&server).await;
    let locks = Locks::connect(lossy.client(), LockConfig::default()).await.unwrap();
    let me = locks.owner();
    let lock = locks.reentrant(NAME).unwrap();
    // Once without loss, so that the scripts are known and the next reply is the script's.
    lock.acquire(&me).await.unwrap().release().await.unwrap();

    lossy.lose_next_reply();
    let outer = lock.try_acquire(&me).await.unwrap().expect("it is free");
    assert!(lossy.has_lost_it());
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    lossy.lose_next_reply();
    let inner = lock.try_acquire(&me).await.unwrap().expect("it is ours");
    assert!(lossy.has_lost_it());
    assert_eq!(lock.hold_count(&me).await.unwrap(), 2);
    lossy.lose_next_reply();
    inner.release().await.unwrap();
    assert!(lossy.has_lost_it());
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    lossy.lose_next_reply();
    outer.release().await.unwrap();
    assert!(lossy.has_lost_it());
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());

    let simple = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    simple.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    lossy.lose_next_reply();
    let held = simple.try_acquire().await.unwrap().expect("it is free");
    assert!(lossy.has_lost_it());
    lossy.lose_next_reply();
    held.release().await.unwrap();
    assert!(lossy.has_lost_it());
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_lost_reply_about_a_foreign_lock_is_no_acquire() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lossy = Lossy::before(&server).await;
    let locks = Locks::connect(lossy.client(), LockConfig::default()).await.unwrap();
    let _: () = raw.hset(NAME, "somebody else", 1).await.unwrap();
    let _: () = raw.set("lock:setnx:1", "somebody else").await.unwrap();
    let lock = locks.reentrant(NAME).unwrap();
    assert!(lock.try_acquire(&locks.owner()).await.unwrap().is_none());
    lossy.lose_next_reply();
    assert!(lock.try_acquire(&locks.owner()).await.unwrap().is_none());
    assert!(lossy.has_lost_it());
    lossy.lose_next_reply();
    let simple = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    assert!(simple.try_acquire().await.unwrap().is_none());
    assert!(lossy.has_lost_it());
    let _: i64 = ask(&mut raw, "DEL", &[NAME, "lock:setnx:1"]).await;
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn what_renewals_without_an_answer_kept_is_given_back() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lossy = Lossy::before(&server).await;
    let config = LockConfig { lease: Duration::from_secs(4), ..LockConfig::default() };
    let locks = Locks::connect(lossy.client(), config).await.unwrap();
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    // Known scripts, so that a renewal is one message, whose answer is not needed.
    let renew = include_str!("../../../lua/lock_renew.lua");
    let _: String = ask(&mut raw, "SCRIPT", &["LOAD", renew]).await;
    lossy.deafen(true);
    assert_eq!(soon("the loss is noticed", guard.lost()).await, LostReason::Unreachable);
    // Nobody here can know it, but the server has heard every renewal.
    let left: i64 = ask(&mut raw, "PTTL", &[NAME]).await;
    assert!(left > 1_500, "{left}");
    let noticed = Instant::now();
    lossy.deafen(false);
    let gone = async || !raw.exists::<_, bool>(NAME).await.unwrap();
    eventually("the lock is free", gone).await;
    let (took, left) = (noticed.elapsed(), Duration::from_millis(left.unsigned_abs()));
    assert!(took + Duration::from_millis(500) < left, "{took:?} of {left:?}: it just expired");
}
