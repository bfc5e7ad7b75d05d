//! Sign-in: codes, tokens, the authentication layers, and what Redis holds of them. Limits per address are in
//! `client_address`.

use std::collections::HashMap;
use std::time::Duration;

use redis::AsyncCommands;
use serde_json::json;

use crate::support::api::{Answer, get, post};
use crate::support::database::TestDatabase;
use crate::support::eventually;
use crate::support::stack::{Stack, sign_in};

const PHONE: &str = "13800000001";

async fn code(stack: &Stack, phone: &str) -> String {
    post(stack.url(), &format!("/user/code?phone={phone}"))
        .send()
        .await
        .data();
    sent_code(stack, phone).await
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
async fn a_code_works_once_and_its_session_is_renewed_by_every_request_until_logout() {
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

    let [one, two] = [&stack.instances[0].url, &stack.instances[1].url];
    let me = get(two, "/user/me").token(&user.token).send().await;
    assert_eq!(
        me.data(),
        &json!({ "id": user.id, "nickName": fields["nickName"], "icon": "" })
    );
    let bearer = format!("Bearer {}", user.token);
    assert_eq!(
        get(one, "/user/me").token(&bearer).send().await.data()["id"],
        user.id
    );
    let other = get(one, &format!("/user/{}", user.id))
        .token(&user.token)
        .send()
        .await;
    assert_eq!(other.data()["id"], user.id);
    let unknown = get(one, "/user/999999999").token(&user.token).send().await;
    assert_eq!(unknown.body, json!({ "success": true }));

    // Also by one on a public route.
    for path in ["/shop/1", "/user/me"] {
        let _: bool = redis.expire(&key, 60).await.unwrap();
        // The node is told of the change, or looks the session up again soon; otherwise only after minutes.
        eventually("the session is renewed", async || {
            get(one, path).token(&user.token).send().await.data();
            redis.ttl::<_, i64>(&key).await.unwrap() > 60
        })
        .await;
    }

    post(one, "/user/logout")
        .token(&user.token)
        .send()
        .await
        .data();
    get(one, "/user/me")
        .token(&user.token)
        .send()
        .await
        .refused(401, "UNAUTHORIZED");

    // Missing, forged and expired ones: before its first request, as a session that was in use has been renewed.
    let user = &stack.users(1).await[0];
    let key = format!("login:token:{}", user.token);
    let _: bool = redis.pexpire(&key, 1).await.unwrap();
    let is_gone = async || !redis.exists::<_, bool>(&key).await.unwrap();
    eventually("the session expires", is_gone).await;
    get(one, "/user/me")
        .send()
        .await
        .refused(401, "UNAUTHORIZED");
    for token in [
        &user.token,
        "",
        "x",
        "*",
        &"f".repeat(32),
        &"a".repeat(5000),
        "Bearer *",
    ] {
        let answer = get(one, "/user/me").token(token).send().await;
        answer.refused(401, "UNAUTHORIZED");
        // A bad token does not matter to a public route.
        get(one, "/shop/1").token(token).send().await.data();
    }

    // A code is six digits for two minutes, works once, and cannot be guessed.
    let first = code(&stack, PHONE).await;
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

    login(&stack, PHONE, &first).await.data();
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
    let form = post(stack.url(), "/user/code").body(
        "application/x-www-form-urlencoded",
        format!("phone={phone}"),
    );
    form.send().await.data();
}

/// Asserts a refusal that ends with the code's two minutes at the latest.
fn refused_for_two_minutes(answer: &Answer) {
    answer.refused(429, "TOO_MANY_REQUESTS");
    let wait: u64 = answer.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=120).contains(&wait), "{wait}");
}

/// A stranger who guesses at somebody's code is refused himself, long before the code is worth nothing; and who has codes sent
/// to a phone keeps its owner out for no longer than the last of them works.
#[tokio::test]
async fn a_stranger_locks_a_phone_for_two_minutes_at_most_and_not_by_guesses_from_one_address() {
    let stack = Stack::start(1, &[]).await;
    let login_from = async |address: &str, phone: &str, code: &str| {
        let login = json!({ "phone": phone, "code": code });
        let call = post(stack.url(), "/user/login").json(login);
        call.header("x-forwarded-for", address).send().await
    };
    let wrong_for = |right: &str| {
        if right == "000000" {
            "000001"
        } else {
            "000000"
        }
    };
    let phone = "13800000003";
    let right = code(&stack, phone).await;
    let wrong = wrong_for(&right);
    for _ in 0..5 {
        let guess = login_from("203.0.113.1", phone, wrong).await;
        guess.refused(200, "CODE_INVALID");
    }
    // Not even the right one.
    for guess in [wrong, &right] {
        refused_for_two_minutes(&login_from("203.0.113.1", phone, guess).await);
    }
    // Another phone's code is not concerned.
    login_from("203.0.113.1", "13800000009", "123456")
        .await
        .refused(200, "CODE_INVALID");
    login_from("203.0.113.2", phone, &right).await.data();

    // Many addresses do make a code worthless: it cannot be found by guessing. A new one works.
    let right = code(&stack, phone).await;
    let wrong = wrong_for(&right);
    for guess in 0..10 {
        let address = format!("203.0.113.{}", 10 + guess / 4);
        let guess = login_from(&address, phone, wrong).await;
        guess.refused(200, "CODE_INVALID");
    }
    let late = login_from("203.0.113.2", phone, &right).await;
    late.refused(200, "CODE_INVALID");
    let right = code(&stack, phone).await;
    login_from("203.0.113.2", phone, &right).await.data();

    // Codes that are sent are limited, each phone by itself; the last one works for as long as no other is sent.
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
    code(&stack, "13800000005").await;
}

#[tokio::test]
async fn two_sign_ins_of_a_new_phone_at_once_make_one_user() {
    let database = TestDatabase::migrated().await;
    let phone = seckill::user::phone::Phone::parse("13911112222").unwrap();
    let limit = Duration::from_secs(10);
    let connection = seckill::connection::mysql::connect(&database.url(), 8, limit)
        .await
        .unwrap();
    let store = seckill::user::store::UserStore::new(connection);
    for _ in 0..5 {
        database.run("DELETE FROM tb_user").await;
        let mut at_once = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (store, phone) = (store.clone(), phone.clone());
            at_once.spawn(async move { store.find_or_register(&phone).await.unwrap().id });
        }
        let ids = at_once.join_all().await;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}
