//! Sign-in: codes, tokens, the authentication layers, and what Redis holds of them. Limits per address are in
//! `client_address`.

use std::collections::HashMap;
use std::time::Duration;

use redis::AsyncCommands;
use seckill::user::phone::Phone;
use serde_json::json;

use crate::session_tracking::lookups;
use crate::support::api::{Answer, get, post};
use crate::support::database::TestDatabase;
use crate::support::eventually;
use crate::support::stack::{Stack, sign_in};
use testkit::raw::query;

const PHONE: &str = "13800000001";

async fn request_code(stack: &Stack, phone: &str) -> String {
    post(stack.url(), &format!("/user/code?phone={phone}"))
        .send()
        .await
        .data();
    sent_code(stack, phone).await
}

/// A code that is not the right one.
fn wrong_for(right: &str) -> &'static str {
    if right == "000000" {
        "000001"
    } else {
        "000000"
    }
}

/// Signs in from this client address, to which the limits apply.
async fn login_from(stack: &Stack, address: &str, phone: &str, code: &str) -> Answer {
    post(stack.url(), "/user/login")
        .json(json!({ "phone": phone, "code": code }))
        .header("x-forwarded-for", address)
        .send()
        .await
}

async fn sent_code(stack: &Stack, phone: &str) -> String {
    let key = format!("login:code:{phone}");
    stack.redis.conn().await.get(key).await.unwrap()
}

pub async fn login(stack: &Stack, phone: &str, code: &str) -> Answer {
    post(stack.url(), "/user/login")
        .json(json!({ "phone": phone, "code": code }))
        .send()
        .await
}

#[tokio::test]
async fn a_session_has_the_contracts_shape_and_is_renewed_by_every_request_until_logout() {
    let stack = Stack::lab(2).await;
    let user = sign_in(stack.url(), &mut stack.redis.conn().await, PHONE).await;
    assert!(user.token.len() == 32 && user.token.bytes().all(|b| b.is_ascii_hexdigit()));

    let mut redis = stack.redis.conn().await;
    let key = format!("login:token:{}", user.token);
    let fields: HashMap<String, String> = redis.hgetall(&key).await.unwrap();
    assert_eq!(fields["id"], user.id.to_string());
    assert_eq!(fields["icon"], "");
    let nick = fields["nickName"]
        .strip_prefix("user_")
        .expect("a generated name");
    assert_eq!((nick.len(), fields.len()), (10, 3), "{fields:?}");
    let ttl: i64 = redis.ttl(&key).await.unwrap();
    assert!((36_000 * 60 - 60..=36_000 * 60).contains(&ttl), "{ttl}");

    let [first_url, second_url] = [&stack.instances[0].url, &stack.instances[1].url];
    let me = get(second_url, "/user/me").token(&user.token).send().await;
    assert_eq!(
        me.data(),
        &json!({ "id": user.id, "nickName": fields["nickName"], "icon": "" })
    );
    let bearer = format!("Bearer {}", user.token);
    assert_eq!(
        get(first_url, "/user/me")
            .token(&bearer)
            .send()
            .await
            .data()["id"],
        user.id
    );
    let user_by_id = get(first_url, &format!("/user/{}", user.id))
        .token(&user.token)
        .send()
        .await;
    assert_eq!(user_by_id.data()["id"], user.id);
    let unknown = get(first_url, "/user/999999999")
        .token(&user.token)
        .send()
        .await;
    assert_eq!(unknown.body, json!({ "success": true }));

    // A request on a public route renews it, too, once more than ten minutes of its time are gone; before, nothing is written.
    for path in ["/shop/1", "/user/me"] {
        for (minutes_gone, is_renewed) in [(11, true), (9, false)] {
            let seconds = (36_000 - minutes_gone) * 60;
            let _: bool = redis.expire(&key, seconds).await.unwrap();
            let looked_up = lookups(first_url).await;
            // Redis reports the change to the node, or the node looks the session up again soon because it is not tracked.
            eventually("the session is looked up", async || {
                get(first_url, path).token(&user.token).send().await.data();
                lookups(first_url).await > looked_up
            })
            .await;
            let remaining: i64 = redis.ttl(&key).await.unwrap();
            assert_eq!(
                remaining > seconds,
                is_renewed,
                "{path}: {remaining} of {seconds} s"
            );
        }
    }
    // An administrator's request renews it, too, even if it is refused.
    let seconds = (36_000 - 11) * 60;
    let _: bool = redis.expire(&key, seconds).await.unwrap();
    eventually("the session is renewed", async || {
        let refused = post(first_url, "/voucher").admin().token(&user.token);
        refused.json(json!({})).send().await;
        redis.ttl::<_, i64>(&key).await.unwrap() > seconds
    })
    .await;

    post(first_url, "/user/logout")
        .token(&user.token)
        .send()
        .await
        .data();
    get(first_url, "/user/me")
        .token(&user.token)
        .send()
        .await
        .refused(401, "UNAUTHORIZED");
}

#[tokio::test]
async fn a_session_that_is_missing_forged_or_expired_lets_nobody_in() {
    let stack = Stack::start(1, &[]).await;
    let url = stack.url();
    let mut redis = stack.redis.conn().await;
    // It expires before its first request, which would renew it.
    let user = &stack.users(1).await[0];
    let key = format!("login:token:{}", user.token);
    let _: bool = redis.pexpire(&key, 1).await.unwrap();
    eventually("the session expires", async || {
        !redis.exists::<_, bool>(&key).await.unwrap()
    })
    .await;
    get(url, "/user/me")
        .send()
        .await
        .refused(401, "UNAUTHORIZED");
    let no_session = "e".repeat(32);
    let key = format!("login:token:{no_session}");
    let _: i64 = redis.lpush(key, "a list").await.unwrap();
    for token in [
        &user.token,
        &no_session,
        "",
        "x",
        "*",
        &"f".repeat(32),
        &"a".repeat(5000),
        "Bearer *",
    ] {
        let answer = get(url, "/user/me").token(token).send().await;
        answer.refused(401, "UNAUTHORIZED");
        // A bad token does not matter to a public route.
        get(url, "/shop/1").token(token).send().await.data();
    }
}

#[tokio::test]
async fn a_code_is_six_digits_for_two_minutes_works_once_and_cannot_be_guessed() {
    let stack = Stack::lab(1).await;
    let first = request_code(&stack, PHONE).await;
    assert!(
        first.len() == 6 && first.bytes().all(|byte| byte.is_ascii_digit()),
        "{first}"
    );
    let ttl: i64 = stack
        .redis
        .conn()
        .await
        .ttl(format!("login:code:{PHONE}"))
        .await
        .unwrap();
    assert!((100..=120).contains(&ttl), "{ttl}");
    // The log shows it at debug level.
    let line = stack.instances[0].wait_for_line(&first).await;
    assert!(
        line.contains("DEBUG") && line.contains("seckill::user::code"),
        "{line}"
    );

    let signed_in = login(&stack, PHONE, &first).await;
    let token = signed_in.data().as_str().unwrap();
    // The session lives for the full time, although no request has used it.
    let remaining = seconds_left(&stack, &format!("login:token:{token}")).await;
    assert!(
        (36_000 * 60 - 60..=36_000 * 60).contains(&remaining),
        "{remaining} s"
    );
    assert_eq!(
        login(&stack, PHONE, &first)
            .await
            .refused(200, "CODE_INVALID"),
        "验证码错误!"
    );
    let users = stack.database.number("SELECT COUNT(*) FROM tb_user").await;
    assert_eq!(users, 1);

    // Malformed phones and codes.
    for phone in [
        "",
        "12000000000",
        "138000000011",
        "1380000000x",
        "%00",
        "13800000001%20",
    ] {
        let answer = post(stack.url(), &format!("/user/code?phone={phone}"))
            .send()
            .await;
        assert_eq!(answer.refused(200, "PHONE_INVALID"), "手机号格式错误！");
    }
    login(&stack, "123", "123456")
        .await
        .refused(200, "PHONE_INVALID");
    let phone = "13800000002";
    for code in ["", "000000", "1", &"9".repeat(1000)] {
        login(&stack, phone, code)
            .await
            .refused(200, "CODE_INVALID");
    }
    post(stack.url(), "/user/code")
        .send()
        .await
        .refused(400, "INVALID_PARAMETER");
    post(stack.url(), "/user/login")
        .json(json!({}))
        .send()
        .await
        .refused(200, "PHONE_INVALID");
    let form = "application/x-www-form-urlencoded";
    for kind in [form, &format!("{form}; charset=UTF-8")] {
        let call = post(stack.url(), "/user/code").body(kind, format!("phone={phone}"));
        call.send().await.data();
    }
    // The query counts, whatever the body is.
    let call = post(stack.url(), &format!("/user/code?phone={phone}")).body(form, "phone=1");
    call.send().await.data();
}

/// Asserts a refusal that lasts no longer than the two minutes of a code.
fn refused_for_two_minutes(answer: &Answer) {
    answer.refused(429, "TOO_MANY_REQUESTS");
    let wait: u64 = answer.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    // The code was sent just now.
    assert!((2..=120).contains(&wait), "{wait}");
}

/// A stranger who guesses at somebody's code is refused long before the code becomes invalid. A stranger who has codes sent to a
/// phone keeps its owner out for no longer than the last of these codes works.
#[tokio::test]
async fn a_stranger_locks_a_phone_for_two_minutes_at_most_and_not_by_guesses_from_one_address() {
    let stack = Stack::start(1, &[]).await;
    let phone = "13800000003";
    let right = request_code(&stack, phone).await;
    let wrong = wrong_for(&right);
    for _ in 0..5 {
        let guess = login_from(&stack, "203.0.113.1", phone, wrong).await;
        guess.refused(200, "CODE_INVALID");
    }
    // From now on even the right code is refused for this address. Refusals do not make the code invalid for other addresses.
    for guess in [wrong, wrong, wrong, wrong, wrong, &right] {
        refused_for_two_minutes(&login_from(&stack, "203.0.113.1", phone, guess).await);
    }
    // This does not concern the code of another phone.
    login_from(&stack, "203.0.113.1", "13800000009", "123456")
        .await
        .refused(200, "CODE_INVALID");
    login_from(&stack, "203.0.113.2", phone, &right)
        .await
        .data();

    // Guesses from many addresses do make a code invalid, so that it cannot be found by guessing. A new one works.
    let right = request_code(&stack, phone).await;
    let wrong = wrong_for(&right);
    for guess in 0..10 {
        let address = format!("203.0.113.{}", 10 + guess / 4);
        let guess = login_from(&stack, &address, phone, wrong).await;
        guess.refused(200, "CODE_INVALID");
    }
    let late = login_from(&stack, "203.0.113.2", phone, &right).await;
    late.refused(200, "CODE_INVALID");
    let right = request_code(&stack, phone).await;
    login_from(&stack, "203.0.113.2", phone, &right)
        .await
        .data();

    // For each phone the number of codes that are sent is limited. The last one works until another is sent.
    let phone = "13800000004";
    let mut right = String::new();
    let mut sent = 0;
    let refused = loop {
        let path = format!("/user/code?phone={phone}");
        let answer = post(stack.url(), &path).send().await;
        if answer.status != 200 {
            break answer;
        }
        right = sent_code(&stack, phone).await;
        sent += 1;
    };
    assert_eq!(sent, 3);
    refused_for_two_minutes(&refused);
    login(&stack, phone, &right).await.data();
    request_code(&stack, "13800000005").await;
}

/// Only a wrong guess at a code counts against an address and this code, and it counts once.
#[tokio::test]
async fn right_and_refused_guesses_do_not_count_and_the_guesses_at_a_new_code_begin_at_zero() {
    let limits = ["--code-guesses-per-address", "7", "--code-sends", "100"];
    let stack = Stack::start(1, &limits).await;
    let phone = "13800000006";

    // Six wrong guesses, three at each of two codes; then the right one.
    let mut right = String::new();
    for _ in 0..2 {
        right = request_code(&stack, phone).await;
        for _ in 0..3 {
            let guess = login_from(&stack, "203.0.113.1", phone, wrong_for(&right)).await;
            guess.refused(200, "CODE_INVALID");
        }
    }
    login_from(&stack, "203.0.113.1", phone, &right)
        .await
        .data();

    // An address signs in more often than it may guess wrong.
    for _ in 0..9 {
        let right = request_code(&stack, phone).await;
        let sign_in = login_from(&stack, "203.0.113.2", phone, &right).await;
        sign_in.data();
    }

    // It is also refused more often than that: five guesses were wrong, and the others were not even compared.
    let right = request_code(&stack, phone).await;
    let wrong = wrong_for(&right);
    for earlier_guesses in 0..9 {
        let guess = login_from(&stack, "203.0.113.3", phone, wrong).await;
        match earlier_guesses {
            0..5 => drop(guess.refused(200, "CODE_INVALID")),
            _ => refused_for_two_minutes(&guess),
        }
    }
    let other_phone = "13800000007";
    let right = request_code(&stack, other_phone).await;
    let sign_in = login_from(&stack, "203.0.113.3", other_phone, &right).await;
    sign_in.data();
}

/// The seconds for which a key will live.
async fn seconds_left(stack: &Stack, key: &str) -> i64 {
    stack.redis.conn().await.ttl(key).await.unwrap()
}

/// If each count began the window anew, somebody who comes regularly would never get in again after a refusal.
#[tokio::test]
async fn the_window_of_a_limit_begins_with_its_first_count_and_no_later_one_extends_it() {
    let stack = Stack::start(1, &["--code-sends", "100"]).await;
    let phone = "13800000008";
    let code_key = format!("login:code:{phone}");
    let send = async || {
        let path = format!("/user/code?phone={phone}");
        let call = post(stack.url(), &path).header("x-forwarded-for", "203.0.113.4");
        call.send().await.data();
    };
    let guess_wrong = async || {
        let right = sent_code(&stack, phone).await;
        let guess = login_from(&stack, "203.0.113.4", phone, wrong_for(&right)).await;
        guess.refused(200, "CODE_INVALID");
    };
    send().await;
    guess_wrong().await;
    for (key, window) in [
        ("login:code:sends:from:203.0.113.4".to_owned(), 600),
        (format!("{{{code_key}}}:sends"), 120),
        ("login:code:guesses:from:203.0.113.4".to_owned(), 600),
        // Guesses do not make a code live longer.
        (code_key.clone(), 120),
    ] {
        let remaining = seconds_left(&stack, &key).await;
        assert!(
            (window - 60..=window).contains(&remaining),
            "{key}: {remaining} s"
        );
        let _: bool = stack.redis.conn().await.expire(&key, 50).await.unwrap();
        if key.contains("sends") {
            send().await;
        }
        guess_wrong().await;
        let remaining = seconds_left(&stack, &key).await;
        assert!(
            (1..=50).contains(&remaining),
            "{key}: {remaining} s after one more"
        );
    }
    // The count of the guesses at a code expires with the code.
    let remaining = seconds_left(&stack, &format!("{{{code_key}}}:guesses")).await;
    assert!((1..=50).contains(&remaining), "guesses: {remaining} s");
    // A count that is taken back after the end of its window begins no new window, which would never end.
    let mut redis = stack.redis.conn().await;
    let key = "login:code:guesses:from:203.0.113.4";
    let _: () = redis.del(key).await.unwrap();
    let count = include_str!("../../lua/address_count.lua");
    let take_back = [count, "1", key, "5", "600", "-1"];
    let () = query(&mut redis, "EVAL", &take_back).await;
    assert!(!redis.exists::<_, bool>(key).await.unwrap());
}

#[tokio::test]
async fn two_sign_ins_of_a_new_phone_at_once_make_one_user() {
    let database = TestDatabase::migrated().await;
    let limit = Duration::from_secs(10);
    let connection = seckill::connection::mysql::connect(&database.url(), 8, limit)
        .await
        .unwrap();
    let store = seckill::user::store::UserStore::new(connection);
    // Two at the same time, not more: each has used up a code, and a phone has one code at a time.
    for digits in 10..50 {
        let phone = Phone::parse(&format!("139111122{digits}")).unwrap();
        let (first, second) = tokio::join!(
            store.find_or_register(&phone),
            store.find_or_register(&phone)
        );
        assert_eq!(first.unwrap().id, second.unwrap().id);
    }
}
