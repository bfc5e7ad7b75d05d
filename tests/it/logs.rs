//! What is never in the log, at whatever level: tokens, passwords, bodies and query strings; and neither codes nor phones unless
//! `seckill::user::code` is at debug. Shown by whole runs at level trace, one in each format, with malformed requests and with
//! servers that are away.

use std::collections::HashSet;

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::proxy::Mode;
use testkit::raw;

use crate::support::api::{ADMIN_TOKEN, Call, get, post};
use crate::support::instance::Instance;
use crate::support::receiver::Receiver;
use crate::support::stack::{SignedIn, Stack, sign_in};

const PHONES: [&str; 2] = ["13877766655", "13877766656"];

const REDIS_PASSWORD: &str = "passwordOfRedis";

/// The token of no session.
const UNKNOWN_TOKEN: &str = "5e9b0f7c4d1a4b6e8f30c2d7a9b1e4f6";

/// The secret that signs what is posted to a webhook.
const WEBHOOK_SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

// Texts in requests, each in one kind of place.
const IN_QUERY: &str = "textInAQuery";
const IN_BODY: &str = "textInABody";
const IN_FORM: &str = "textInAForm";
const IN_SECRET_HEADER: &str = "textInAHeader";

const FORM: &str = "application/x-www-form-urlencoded";

/// Requests of all kinds, malformed ones included.
fn requests(url: &str, user: &SignedIn, sale: i64) -> Vec<Call> {
    let query = format!("phone={IN_QUERY}&name={IN_QUERY}&typeId={IN_QUERY}&current=1");
    let bearer = format!("Bearer {}", user.token);
    let purchase = json!({ "voucherId": sale });
    let mut calls = Vec::new();
    for token in [&user.token, &bearer, UNKNOWN_TOKEN, IN_SECRET_HEADER] {
        for path in [
            "/user/me",
            "/voucher-order/of/me",
            "/voucher-order/1",
            "/shop/1",
        ] {
            calls.push(get(url, &format!("{path}?{query}")).token(token));
        }
        let path = format!("/voucher-order/seckill/{sale}?{query}");
        calls.push(post(url, &path).token(token));
        let by_body = post(url, "/voucher-order/seckill").token(token);
        calls.push(by_body.json(purchase.clone()));
    }
    for path in [
        "/user/code",
        "/shop/of/name",
        "/shop/of/type",
        "/no/such/route",
    ] {
        calls.push(get(url, &format!("{path}?{query}")));
        calls.push(post(url, &format!("{path}?{query}")));
    }
    for form in [
        format!("phone={IN_FORM}"),
        format!("phone={}&x={IN_FORM}", PHONES[0]),
    ] {
        calls.push(post(url, "/user/code").body(FORM, form));
    }
    for body in [
        json!({ "phone": PHONES[0], "code": IN_BODY }).to_string(),
        json!({ "phone": { IN_BODY: 1 }, "voucherId": IN_BODY, "name": [IN_BODY] }).to_string(),
        format!("{{\"phone\": \"{IN_BODY}\""),
        format!("\"{}\"", IN_BODY.repeat(10_000)),
    ] {
        for path in [
            "/user/login",
            "/voucher-order/seckill",
            "/voucher/seckill",
            "/shop",
        ] {
            let call = post(url, path).token(&user.token).admin();
            calls.push(call.body("application/json", body.clone()));
        }
    }
    let mut titled = Stack::sale(5, "reentrant-lock");
    titled["title"] = IN_BODY.into();
    titled["rules"] = IN_BODY.into();
    let publish = || post(url, "/voucher/seckill");
    calls.push(
        publish()
            .header("x-admin-token", IN_SECRET_HEADER)
            .json(titled.clone()),
    );
    calls.push(publish().admin().body("text/plain", titled.to_string()));
    calls.push(publish().admin().json(titled));
    let shop = json!({ "name": IN_BODY, "typeId": 1, "address": IN_BODY, "x": 120.1, "y": 30.3 });
    calls.push(post(url, "/shop").admin().json(shop));
    calls
}

/// Sends them all; their answers do not matter.
async fn send(url: &str, user: &SignedIn, sale: i64) {
    let calls = requests(url, user, sale).into_iter();
    join_all(calls.map(Call::raw)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_line_of_any_level_has_a_token_a_password_a_body_or_a_query() {
    let receiver = Receiver::start().await;
    let mut stack = Stack::start(0, &[]).await;
    let redis = stack.redis.conn().await;
    let rights = async |rights: &str| {
        let words = format!("SETUSER app on >{REDIS_PASSWORD} resetkeys {rights} &* +@all");
        let words: Vec<&str> = words.split(' ').collect();
        let mut redis = redis.clone();
        raw::command("ACL", &words)
            .exec_async(&mut redis)
            .await
            .unwrap();
    };
    rights("~*").await;
    let mut env = stack.env();
    env[0].1 = stack.database.url_through(stack.proxies.database.address);
    env[1].1 = format!(
        "redis://app:{REDIS_PASSWORD}@{}/",
        stack.proxies.redis.address
    );
    let (_, password) = env[0].1.split_once("seckill:").unwrap();
    let database_password = password.split('@').next().unwrap().to_owned();
    env.push(("RUST_LOG", "trace,seckill::user::code=info".to_owned()));
    env.push(("CODE_WEBHOOK_URL", receiver.url()));
    env.push(("CODE_WEBHOOK_SECRET", format!("whsec_{WEBHOOK_SECRET}")));

    let mut secrets = vec![
        REDIS_PASSWORD.to_owned(),
        WEBHOOK_SECRET.to_owned(),
        UNKNOWN_TOKEN.to_owned(),
        ADMIN_TOKEN.to_owned(),
        database_password,
    ];
    secrets.extend(PHONES.map(str::to_owned));
    secrets.extend([IN_QUERY, IN_BODY, IN_FORM, IN_SECRET_HEADER].map(str::to_owned));
    for format in ["text", "json"] {
        stack
            .add_instance_with(&["--log-format", format, "--code-sends", "100"], &env)
            .await;
        let url = stack.instances[0].url.clone();
        let mut codes = Vec::new();
        let mut users = Vec::new();
        for phone in PHONES {
            users.push(sign_in(&url, &mut redis.clone(), phone).await);
            let (_, body) = receiver.since(0).pop().unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            codes.push(body["code"].as_str().unwrap().to_owned());
        }
        secrets.extend(users.iter().map(|user| user.token.clone()));
        let user = &users[0];
        let sale = stack.publish(5, "reentrant-lock").await;
        send(&url, user, sale).await;
        // The service's Redis user may no longer read sessions.
        rights("~[a-km-z]* ~lock:* ~login:code:* ~{*").await;
        send(&url, user, sale).await;
        rights("~*").await;
        stack.proxies.redis.set(Mode::Cut);
        send(&url, user, sale).await;
        stack.proxies.redis.set(Mode::Forward);
        stack.proxies.database.set(Mode::Cut);
        send(&url, user, sale).await;
        // Another instance is started while the database hangs.
        stack.proxies.database.set(Mode::Hang);
        let mut hasty = env.clone();
        hasty.push(("DATABASE_TIMEOUT_MS", "500".to_owned()));
        let arguments = ["--log-format", format].map(str::to_owned);
        let starting = Instance::launch(&arguments, &hasty);
        starting.wait_for_line("a server does not answer").await;
        stack.proxies.database.set(Mode::Forward);

        let mut instance = stack.instances.remove(0);
        instance.stop().await;
        let log = instance.log();
        for expected in [
            "TRACE",
            "answered",
            "/voucher-order/of/me",
            "sale published",
            "redis unavailable",
            "database unavailable",
        ] {
            assert!(
                log.iter().any(|line| line.contains(expected)),
                "no {expected} in it"
            );
        }
        let log = [log, starting.log()].concat();
        for line in &log {
            for secret in &secrets {
                assert!(!line.contains(secret), "{secret} in: {line}");
            }
        }
        // Six digits may be there by chance, but not those of every code.
        let words = log.iter().flat_map(|line| {
            line.split(|character: char| !character.is_ascii_alphanumeric() && character != '.')
        });
        let words: HashSet<&str> = words.collect();
        let logged = codes.iter().filter(|code| words.contains(code.as_str()));
        assert!(logged.count() < codes.len(), "the codes {codes:?}");
    }
}
