//! Which client a request counts for, in the limits per address: only trusted proxies can name their client, and the clients
//! without a limit are configured. How the header is read has a unit test.

use serde_json::json;

use crate::support::api::{Call, post};
use crate::support::nginx::Nginx;
use crate::support::stack::Stack;

/// Far more requests than the limit of three allows, whatever the machine's speed: the limit counts over ten minutes.
const REQUESTS: u32 = 12;

/// Codes that an address may be sent, and guesses that it may make.
const LIMIT: &[&str] = &[
    "--code-sends-per-address",
    "3",
    "--code-guesses-per-address",
    "4",
];

/// Asks for a code in [`REQUESTS`] requests, each for another phone of this area and changed by `change`; returns how many codes
/// were sent.
async fn codes_sent(base: &str, area: u32, change: impl Fn(u32, Call) -> Call) -> u32 {
    let mut sent = 0;
    for n in 0..REQUESTS {
        let call = post(base, &format!("/user/code?phone=138{area:04}{n:04}"));
        let answer = change(n, call).send().await;
        if answer.status == 200 {
            answer.data();
            sent += 1;
        } else {
            answer.refused(429, "TOO_MANY_REQUESTS");
        }
    }
    sent
}

const FORWARDED: &str = "x-forwarded-for";

#[tokio::test]
async fn only_configured_proxies_name_their_client_and_only_configured_clients_have_no_limit() {
    let mut stack = Stack::start(0, &[]).await;
    let default = ["--unlimited-clients", ""];
    let limited = [LIMIT, &default].concat();
    stack.add_instance(&limited).await;
    for proxies in ["127.0.0.0/8,10.0.0.0/8", "192.0.2.1", ""] {
        stack
            .add_instance(&[&limited[..], &["--trusted-proxies", proxies]].concat())
            .await;
    }
    stack
        .add_instance(&[LIMIT, &["--unlimited-clients", "127.0.0.0/8"]].concat())
        .await;
    let urls = stack.urls();
    // The client 203.0.113.17 behind two trusted proxies, of which one has changing addresses. It made up what stands before its
    // own address.
    let sent = codes_sent(&urls[1], 41, |n, call| {
        call.header(
            FORWARDED,
            &format!("198.51.100.{n}, 203.0.113.17, 10.1.2.{n}"),
        )
    })
    .await;
    assert_eq!(sent, 3);
    // The peer itself is not trusted: its header is ignored.
    let many = |n: u32, call: Call| call.header(FORWARDED, &format!("198.51.101.{n}"));
    assert_eq!(codes_sent(&urls[2], 43, many).await, 3);
    // The instances share the counts, and this is the same address.
    assert_eq!(codes_sent(&urls[3], 44, many).await, 0);

    // The shipped nginx, on this machine: visitors are told apart, whatever they send.
    let nginx = Nginx::before([urls[0].as_str(); 2]).await;
    // The first visitor's address has used its limit up already.
    for (area, visitor, allowed) in [
        (51, "127.0.0.1", 0),
        (52, "127.0.0.2", 3),
        (53, "127.0.0.3", 3),
    ] {
        let mut sent = 0;
        for n in 0..REQUESTS {
            let path = format!("/api/user/code?phone=138{area:04}{n:04}");
            let forged = format!("x-forwarded-for: 198.51.100.{n}\r\n");
            let reply = nginx.request_from(visitor, "POST", &path, &forged).await;
            if reply.status == 200 {
                sent += 1;
            } else {
                reply.refused(429, "TOO_MANY_REQUESTS");
            }
        }
        assert_eq!(sent, allowed, "for {visitor}");
    }
    // Load tools on this machine reach ./dev's stack through its nginx: a flag lifts the limits for them.
    let nginx = Nginx::before([urls[4].as_str(); 2]).await;
    assert_eq!(codes_sent(&nginx.url(), 54, |_, call| call).await, REQUESTS);

    assert_eq!(codes_sent(&urls[4], 1, |_, call| call).await, REQUESTS);

    // Without the flag, requests from this machine are limited: behind a balancer on it that names no clients, a stranger's
    // requests come from here, too. Forged headers do not lift the limit.
    let direct = codes_sent(stack.url(), 2, |_, call| call).await;
    assert_eq!(direct, 0, "it has had what the first visitor may");
    for (area, forged) in ["127.0.0.1", "::1", "::ffff:127.0.0.1"]
        .into_iter()
        .enumerate()
    {
        let area = 10 + u32::try_from(area).unwrap();
        let sent = codes_sent(stack.url(), area, |_, call| call.header(FORWARDED, forged)).await;
        assert!(sent <= 3, "{sent} codes for `{forged}`");
    }
    // The client made up one line of the header, and the trusted proxy appended another: the two are one list.
    let sent = codes_sent(stack.url(), 32, |n, call| {
        call.header(FORWARDED, &format!("198.51.100.{n}"))
            .header(FORWARDED, "203.0.113.8")
    })
    .await;
    assert_eq!(sent, 3);

    // Guesses have a limit of their own.
    for n in 0..5 {
        let guess = json!({ "phone": format!("1390000{n:04}"), "code": "000000" });
        let guess = post(stack.url(), "/user/login")
            .json(guess)
            .header(FORWARDED, "203.0.113.9");
        let (status, code) = if n < 4 {
            (200, "CODE_INVALID")
        } else {
            (429, "TOO_MANY_REQUESTS")
        };
        guess.send().await.refused(status, code);
    }
}
