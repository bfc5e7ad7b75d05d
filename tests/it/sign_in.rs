//! Sign-in: codes, tokens, the authentication layers, and what Redis holds of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use serde_json::json;

use crate::support::api::{get, post};
use crate::support::stack::Stack;
use testkit::wait::eventually;

const PHONE: &str = "13800000001";

async fn code(stack: &Stack, phone: &str) -> String {
    post(stack.url(), &format!("/user/code?phone={phone}")).send().await.data();
    stack.redis.conn().await.get(format!("login:code:{phone}")).await.unwrap()
}

async fn login(stack: &Stack, phone: &str, code: &str) -> crate::support::api::Answer {
    post(stack.url(), "/user/login").json(json!({ "phone": phone, "code": code })).send().await
}

#[tokio::test]
async fn a_session_has_the_contracts_shape_and_ends_on_logout() {
    let stack = Stack::lab(2).await;
    let user = stack.sign_in(PHONE).await;
    assert!(user.token.len() == 32 && user.token.bytes().all(|b| b.is_ascii_hexdigit()));

    let mut redis = stack.redis.conn().await;
    let key = format!("login:token:{}", user.token);
    let fields: HashMap<String, String> = redis.hgetall(&key).await.unwrap();
    assert_eq!(fields["id"], user.id.to_string());
    assert_eq!(fields["icon"], "");
    let nick = fields["nickName"].strip_prefix("user_").expect("a generated name");
    assert_eq!((nick.len(), fields.len()), (10, 3), "{fields:?}");
    let ttl: i64 = redis.ttl(&key).await.unwrap();
    assert!((36_000 * 60 - 60..=36_000 * 60).contains(&ttl), "{ttl}");

    let [one, two] = [&stack.instances[0].url, &stack.instances[1].url];
    let me = get(two, "/user/me").token(&user.token).send().await;
    assert_eq!(me.data(), &json!({ "id": user.id, "nickName": fields["nickName"], "icon": "" }));
    let bearer = format!("Bearer {}", user.token);
    assert_eq!(get(one, "/user/me").token(&bearer).send().await.data()["id"], user.id);
    let other = get(one, &format!("/user/{}", user.id)).token(&user.token).send().await;
    assert_eq!(other.data()["id"], user.id);
    let unknown = get(one, "/user/999999999").token(&user.token).send().await;
    assert_eq!(unknown.body, json!({ "success": true }));

    post(one, "/user/logout").token(&user.token).send().await.data();
    get(one, "/user/me").token(&user.token).send().await.refused(401, "UNAUTHORIZED");
}

/// The other node gets requests with the token all the time, so that its cached session is as new as it can be.
#[tokio::test]
async fn a_logout_takes_effect_on_every_node_within_a_second() {
    let stack = Stack::lab(2).await;
    let [one, two] = [&stack.instances[0].url, &stack.instances[1].url];
    for (round, user) in stack.users(4).await.iter().enumerate() {
        let busy = Instant::now();
        while busy.elapsed() < Duration::from_millis(250 * round as u64) {
            get(two, "/user/me").token(&user.token).send().await.data();
        }
        post(one, "/user/logout").token(&user.token).send().await.data();
        let ended = Instant::now();
        loop {
            let asked = ended.elapsed();
            let answer = get(two, "/user/me").token(&user.token).send().await;
            if answer.status == 401 {
                break;
            }
            // Whenever it was answered: a slow machine makes none of these late.
            assert!(asked < Duration::from_secs(1), "still signed in {asked:?} after the logout");
        }
    }
}

#[tokio::test]
async fn an_address_over_its_limit_of_codes_or_guesses_is_refused_for_any_phone() {
    let limits = ["--code-sends-per-address", "3", "--code-guesses-per-address", "4"];
    let stack = Stack::start(1, &limits).await;
    let from =
        |call: crate::support::api::Call, address: &str| call.header("x-forwarded-for", address);
    let ask = async |n: u32, address: &str| {
        let path = format!("/user/code?phone=1380000{n:04}");
        from(post(stack.url(), &path), address).send().await
    };
    for n in 0..3 {
        ask(n, "203.0.113.7").await.data();
    }
    let held = ask(3, "203.0.113.7").await;
    held.refused(429, "TOO_MANY_REQUESTS");
    ask(3, "203.0.113.8").await.data();
    // A client on this machine, where load tools run, is not limited.
    for n in 10..20 {
        post(stack.url(), &format!("/user/code?phone=1380000{n:04}")).send().await.data();
    }

    let guess = async |n: u32| {
        let body = json!({ "phone": format!("1390000{n:04}"), "code": "000000" });
        from(post(stack.url(), "/user/login").json(body), "203.0.113.9").send().await
    };
    for n in 0..4 {
        guess(n).await.refused(200, "CODE_INVALID");
    }
    guess(4).await.refused(429, "TOO_MANY_REQUESTS");
}

#[tokio::test]
async fn every_request_renews_the_session_even_on_a_public_route() {
    let stack = Stack::lab(1).await;
    let user = stack.sign_in(PHONE).await;
    let mut redis = stack.redis.conn().await;
    let key = format!("login:token:{}", user.token);
    for path in ["/shop/1", "/user/me"] {
        let _: bool = redis.expire(&key, 60).await.unwrap();
        // The node is told of the change, or looks the session up again soon; otherwise only after minutes.
        eventually("the session is renewed", Duration::from_secs(20), || async {
            get(stack.url(), path).token(&user.token).send().await.data();
            redis.clone().ttl::<_, i64>(&key).await.unwrap() > 60
        })
        .await;
    }
}

#[tokio::test]
async fn missing_forged_and_expired_tokens_are_not_signed_in() {
    let stack = Stack::lab(1).await;
    // Expired before its first request; a session that was in use has been renewed.
    let user = &stack.users(1).await[0];
    let key = format!("login:token:{}", user.token);
    let mut redis = stack.redis.conn().await;
    let _: bool = redis.pexpire(&key, 1).await.unwrap();
    eventually("the session expires", Duration::from_secs(5), || async {
        !redis.clone().exists::<_, bool>(&key).await.unwrap()
    })
    .await;
    get(stack.url(), "/user/me").send().await.refused(401, "UNAUTHORIZED");
    for token in [&user.token, "", "x", "*", &"f".repeat(32), &"a".repeat(5000), "Bearer *"] {
        let answer = get(stack.url(), "/user/me").token(token).send().await;
        answer.refused(401, "UNAUTHORIZED");
        // A bad token does not matter to a public route.
        get(stack.url(), "/shop/1").token(token).send().await.data();
    }
}

#[tokio::test]
async fn a_code_is_six_digits_for_two_minutes_and_works_once() {
    let stack = Stack::lab(1).await;
    let first = code(&stack, PHONE).await;
    assert!(first.len() == 6 && first.bytes().all(|byte| byte.is_ascii_digit()), "{first}");
    let ttl: i64 = stack.redis.conn().await.ttl(format!("login:code:{PHONE}")).await.unwrap();
    assert!((100..=120).contains(&ttl), "{ttl}");
    // The log shows it at debug level.
    let line = stack.instances[0].wait_for_line(&first).await;
    assert!(line.contains("DEBUG") && line.contains("seckill::user::code"), "{line}");

    login(&stack, PHONE, &first).await.data();
    assert_eq!(login(&stack, PHONE, &first).await.refused(200, "CODE_INVALID"), "验证码错误!");
    let users = stack.database.number("SELECT COUNT(*) FROM tb_user").await;
    assert_eq!(users, 1);
}

#[tokio::test]
async fn malformed_phones_and_codes_are_refused() {
    let stack = Stack::lab(1).await;
    for phone in [
        "",
        "123",
        "12000000000",
        "138000000011",
        "1380000000x",
        "%2B13800000000",
        "%00",
        "13800000001%20",
    ] {
        let answer = post(stack.url(), &format!("/user/code?phone={phone}")).send().await;
        assert_eq!(answer.refused(200, "PHONE_INVALID"), "手机号格式错误！");
    }
    login(&stack, "123", "123456").await.refused(200, "PHONE_INVALID");
    for code in ["", "000000", "1", &"9".repeat(1000)] {
        login(&stack, PHONE, code).await.refused(200, "CODE_INVALID");
    }
    post(stack.url(), "/user/code").send().await.refused(400, "INVALID_PARAMETER");
    post(stack.url(), "/user/login").json(json!({})).send().await.refused(200, "PHONE_INVALID");
    let form = post(stack.url(), "/user/code")
        .body("application/x-www-form-urlencoded", format!("phone={PHONE}"));
    form.send().await.data();
}

#[tokio::test]
async fn guesses_and_sends_are_limited() {
    let stack = Stack::lab(1).await;
    let right = code(&stack, PHONE).await;
    let wrong = if right == "000000" { "000001" } else { "000000" };
    for _ in 0..5 {
        login(&stack, PHONE, wrong).await.refused(200, "CODE_INVALID");
    }
    login(&stack, PHONE, &right).await.refused(200, "CODE_INVALID");

    for _ in 0..4 {
        code(&stack, PHONE).await;
    }
    let answer = post(stack.url(), &format!("/user/code?phone={PHONE}")).send().await;
    answer.refused(429, "TOO_MANY_REQUESTS");
    let wait: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=600).contains(&wait), "{wait}");
    // Another phone is not limited.
    code(&stack, "13800000002").await;
}

#[tokio::test]
async fn two_sign_ins_of_a_new_phone_at_once_make_one_user() {
    let stack = Stack::lab(1).await;
    let phone = "13911112222";
    for _ in 0..5 {
        stack.database.run("DELETE FROM tb_user").await;
        let phone = seckill::user::phone::Phone::parse(phone).unwrap();
        let (url, limit) = (stack.database.url(), std::time::Duration::from_secs(10));
        let database = seckill::connection::mysql::connect(&url, 8, limit).await.unwrap();
        let store = seckill::user::store::UserStore::new(database);
        let mut at_once = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (store, phone) = (store.clone(), phone.clone());
            at_once.spawn(async move { store.find_or_register(&phone).await.unwrap().id });
        }
        let ids = at_once.join_all().await;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}
