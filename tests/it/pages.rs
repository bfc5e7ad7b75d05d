//! The web pages: what is cached, and what is there without the lab. Their security policy, and that they are zipped, is
//! tested in [`crate::docs`].

use serde_json::json;

use crate::support::api::{get, post};
use crate::support::stack::Stack;

#[tokio::test]
async fn pages_are_cached_and_without_lab_nothing_of_it_exists() {
    let stack = Stack::start(1, &[]).await;
    let (_, headers, page) = get(stack.url(), "/").raw().await;
    let settings = "data-lab=\"false\" data-zone=\"Asia/Shanghai\"";
    assert!(page.contains(settings) && page.contains("/assets/shop.js"), "{page}");
    let tag = headers["etag"].to_str().unwrap().to_owned();
    let (status, headers, body) = get(stack.url(), "/").header("if-none-match", &tag).raw().await;
    assert_eq!((status, headers["etag"].to_str().unwrap(), body.as_str()), (304, &*tag, ""));
    get(stack.url(), "/assets/no.js").send().await.refused(404, "NOT_FOUND");
    get(stack.url(), "/assets/..%2fCargo.toml").send().await.refused(404, "NOT_FOUND");

    // The model of the strategies is served without lab.
    let (status, _, page) = get(stack.url(), "/learn").raw().await;
    let has = |text: &str| page.contains(text);
    assert!(status == 200 && has("\"/assets/learn.js\"") && has("data-zone="), "{status}: {page}");
    let (status, ..) = get(stack.url(), "/assets/learn-model.js").raw().await;
    assert_eq!(status, 200);

    // Nothing of the lab is there without `--lab`.
    for path in ["/lab", "/lab/about", "/lab/runs", "/lab/runs/1", "/lab/code/13800138000"] {
        let answer = get(stack.url(), path).send().await;
        assert_eq!((answer.status, &answer.body["code"]), (404, &json!("NOT_FOUND")), "{path}");
    }
    for path in ["/lab/runs", "/lab/faults", "/lab/instance/kill", "/lab/login", "/lab/sessions"] {
        let answer = post(stack.url(), path).admin().json(json!({})).send().await;
        assert_eq!(answer.status, 404, "{path}");
    }
    // Nor does a purchase tell its steps.
    let voucher = stack.publish(1, "reentrant-lock").await;
    let user = &stack.users(1).await[0];
    let path = format!("/voucher-order/seckill/{voucher}");
    let bought =
        post(stack.url(), &path).token(&user.token).header("x-lab-trace", "1").send().await;
    assert!(bought.bought() > 0 && !bought.headers.contains_key("x-lab-trace"));
}
