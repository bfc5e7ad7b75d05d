//! Acquires that Redis executes late, when nobody waits for them any more: they must not take the lock.

use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{Error, LockConfig};

use super::late_release::behind_sentinel;
use super::{TIMEOUT, eventually, query, start_behind_proxy};
use testkit::proxy::Mode;

/// The proxy keeps requests with the word `late` in them.
const KEY: &str = "setnx:late";

/// As of the README's job that is done once a day.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The acquire is sent again on a new connection and answered; the first copy comes afterwards.
#[tokio::test]
async fn a_late_copy_of_a_resent_acquire_holds_nothing() {
    let config = LockConfig::default().with_command_timeout(TIMEOUT);
    let (server, proxy, locks) = start_behind_proxy(config).await;
    let mut raw = server.conn().await;
    let lock = locks.setnx(KEY, DAY);
    let first = lock.try_acquire().await.unwrap().unwrap();
    first.release().await.unwrap();
    for refused in [false, true] {
        if refused {
            let _: () = raw.set(KEY, "another owner").await.unwrap();
        }
        proxy.set(Mode::HoldRequest);
        let held = lock.try_acquire().await.unwrap();
        assert_eq!(proxy.held(), 1, "no request is late");
        assert_eq!(held.is_none(), refused);
        match held {
            Some(held) => held.release().await.unwrap(),
            None => raw.del(KEY).await.unwrap(),
        }
        proxy.pass_held().await;
        assert!(
            !raw.exists::<_, bool>(KEY).await.unwrap(),
            "refused: {refused}"
        );
    }
}

/// No sending is answered in time, and the call fails; its clean-up is over when the acquire comes.
#[tokio::test]
async fn an_acquire_that_was_given_up_holds_nothing() {
    let (servers, proxy, locks) = behind_sentinel().await;
    let mut raw = servers[0].conn().await;
    let lock = locks.setnx(KEY, DAY);
    let first = lock.try_acquire().await.unwrap().unwrap();
    first.release().await.unwrap();
    proxy.set(Mode::HoldRequests("late"));
    fails_as!(lock.try_acquire().await, Unavailable);
    proxy.set(Mode::Forward);
    eventually("it is ended", async || {
        query::<Vec<String>>(&mut raw, "KEYS", &["redisson_unlock_latch:{setnx:late}:*"])
            .await
            .len()
            == 1
    })
    .await;
    assert!(proxy.held() > 0, "no request is late");
    proxy.pass_held().await;
    assert!(!raw.exists::<_, bool>(KEY).await.unwrap());
}
