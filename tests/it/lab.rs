//! The lab of the load tool: real runs on real instances, faults that really happen, and the token that they need. And what the
//! service has for the lab with `--lab`.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use serde_json::{Value, json};

use crate::support::api::{Answer, get, post};
use crate::support::eventually;
use crate::support::hold::Hold;
use crate::support::lab::Lab;
use crate::support::read;
use crate::support::stack::Stack;

fn setting(lanes: [&str; 2], further_settings: Value) -> Value {
    let mut setting = json!({
        "lanes": lanes, "buyers": 60, "tries": 4, "stock": 30, "instances": 2, "spreadSeconds": 1,
    });
    setting
        .as_object_mut()
        .unwrap()
        .extend(further_settings.as_object().unwrap().clone());
    setting
}

async fn start(lab: &Lab, setting: Value) -> Answer {
    post(&lab.url, "/lab/runs")
        .admin()
        .json(setting)
        .send()
        .await
}

async fn document(lab: &Lab, id: &str) -> Value {
    get(&lab.url, &format!("/lab/runs/{id}"))
        .send()
        .await
        .data()
        .clone()
}

async fn wait_for_state(lab: &Lab, id: &str, state: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let run = document(lab, id).await;
        if run["state"] == state {
            return run;
        }
        assert!(
            run["state"] != "failed" && Instant::now() < deadline,
            "{run}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_request_that_changes_anything_needs_the_token_and_possible_settings() {
    let stack = Stack::lab(1).await;
    let lab = Lab::start(&stack, Some("true".to_owned())).await;
    let about = get(&lab.url, "/lab/about").send().await;
    let offered = json!(["pause-redis", "empty-redis", "cut-lease"]);
    assert_eq!(
        about.data()["faults"],
        offered,
        "no other instance would be left"
    );
    for (path, body, done) in [
        (
            "/lab/runs",
            setting(["naive", "conditional"], json!({})),
            "",
        ),
        ("/lab/runs/1/stop", json!({}), "RUN_NOT_FOUND"),
        ("/lab/faults", json!({"fault": "empty-redis"}), "NO_RUN"),
        ("/lab/sessions", json!({}), "LAB_FAULT"),
        ("/lab/hot-key", json!({}), ""),
    ] {
        let request = || post(&lab.url, path).json(body.clone());
        request().send().await.refused(403, "FORBIDDEN");
        if !done.is_empty() {
            assert_eq!(request().admin().send().await.body["code"], done, "{path}");
        }
    }
    let runs = get(&lab.url, "/lab/runs").send().await;
    assert_eq!(runs.data(), &json!([]));
    let (status, headers, page) = get(&lab.url, "/lab").raw().await;
    let settings = "data-lab=\"true\" data-zone=\"Asia/Shanghai\"";
    assert!(status == 200 && page.contains(settings), "{status}: {page}");
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
    // The files that the page names are served, and nothing else is.
    for file in page.split("=\"/assets/").skip(1) {
        let (file, _) = file.split_once('"').unwrap();
        get(&lab.url, &format!("/assets/{file}")).text().await;
    }
    for path in ["/assets/lab.html", "/assets/..%2fCargo.toml", "/lab/x"] {
        let answer = get(&lab.url, path).send().await;
        answer.refused(404, "NOT_FOUND");
    }
    let opened = get(&lab.url, "/lab/x").header("accept", "text/html");
    let (status, _, page) = opened.raw().await;
    assert_eq!((status, page), (404, read("web/not-found.html")));

    // Bad settings are refused with what is possible.
    for (lanes, change, says) in [
        (
            ["magic", "naive"],
            json!({"instances": 1}),
            "expected one of `naive`",
        ),
        (["naive", "naive"], json!({}), "instances must be 1 to 1"),
        (
            ["naive", "naive"],
            json!({"instances": 1, "buyers": 0}),
            "buyers must be 1 to 2000",
        ),
        (
            ["naive", "naive"],
            json!({"instances": 1, "stock": 100_000}),
            "stock must be 1 to 1000",
        ),
        (
            ["naive", "naive"],
            json!({"instances": 1, "spreadSeconds": 31}),
            "0 to 30",
        ),
        (
            ["naive", "naive"],
            json!({"instances": 1, "tries": 1, "twoVouchers": true}),
            "twoVouchers needs tries of 2 or more",
        ),
        (
            ["memory-queue", "stream"],
            json!({"instances": 1, "killNode": true}),
            "killNode needs two instances",
        ),
        (["naive", "naive"], json!({"tries": "many"}), "tries"),
    ] {
        let answer = start(&lab, setting(lanes, change)).await;
        let text = answer.body["errorMsg"].as_str().unwrap();
        assert!(
            answer.status == 400 && text.contains(says),
            "{says}: {text}"
        );
    }
    let unknown = get(&lab.url, "/lab/runs/x").send().await;
    assert_eq!(unknown.body["code"], "RUN_NOT_FOUND");

    // The service shows a sign-in code to users who have no phone.
    let shown = async || get(stack.url(), "/lab/code/13800138000").send().await;
    assert_eq!(shown().await.body["code"], "CODE_INVALID");
    post(stack.url(), "/user/code?phone=13800138000")
        .send()
        .await
        .data();
    let code = shown().await.data().as_str().unwrap().to_owned();
    let login = json!({"phone": "13800138000", "code": code});
    post(stack.url(), "/user/login")
        .json(login)
        .send()
        .await
        .data();
    assert_eq!(shown().await.body["code"], "CODE_INVALID");
}

#[tokio::test]
async fn without_a_token_nothing_can_be_changed_and_without_a_command_no_instance_killed() {
    let stack = Stack::lab(2).await;
    let mut access = stack.access();
    access.admin_token.clear();
    let lab = Lab::with_access(&stack, access, None).await;
    let about = get(&lab.url, "/lab/about").send().await;
    let offered = json!(["pause-redis", "empty-redis", "cut-lease"]);
    assert_eq!(about.data()["faults"], offered);
    let run = post(&lab.url, "/lab/runs").json(setting(["naive", "conditional"], json!({})));
    run.send().await.refused(403, "FORBIDDEN");
}

/// Each buyer's first attempt is for another voucher, of which there is one.
#[tokio::test]
async fn attempts_on_another_voucher_are_not_judged() {
    let stack = Stack::lab(1).await;
    let lab = Lab::start(&stack, None).await;
    let few = json!({"instances": 1, "buyers": 5, "tries": 4, "stock": 20, "twoVouchers": true});
    let began = start(&lab, setting(["conditional", "row-lock"], few)).await;
    let run = wait_for_state(&lab, began.data()["id"].as_str().unwrap(), "done").await;
    for lane in 0..2 {
        let report = &run["lanes"][lane]["result"]["report"];
        assert_eq!(report["requests"], 15, "{report}");
        let verdict = &report["verdict"];
        assert_eq!(
            (&verdict["lost"], &verdict["phantom"]),
            (&json!(0), &json!(0))
        );
    }
    let sold_elsewhere = "SELECT COUNT(*) FROM tb_seckill_voucher WHERE issued = 1 AND stock = 0";
    assert_eq!(
        stack.database.number(sold_elsewhere).await,
        2,
        "one in each lane"
    );
}

#[tokio::test]
async fn unsafe_lanes_break_beside_safe_ones_which_hold_under_faults_and_the_stories_tell_why() {
    let stack = Stack::lab(2).await;
    let lab = Lab::start(&stack, None).await;
    // Enough stock for all orders that can be made: one of each buyer on each node.
    let enough = json!({"seed": 7, "buyers": 30, "stock": 60});
    // A lock in the process beside one in Redis.
    let lanes = setting(["process-lock", "reentrant-lock"], enough);
    let first_lane = "NEW.strategy = 'process-lock'";
    let event = "BEFORE UPDATE ON tb_seckill_voucher";
    // The first change of that lane's stock stands still until a buyer has two orders, committed or not.
    let hold = Hold::first(&stack.database, event, first_lane).await;
    let began = start(&lab, lanes).await;
    let two_orders = "SELECT COUNT(*) FROM (SELECT 1 FROM tb_voucher_order GROUP BY voucher_id, user_id \
                      HAVING COUNT(*) > 1) twice";
    eventually("purchases meet", async || {
        stack.database.uncommitted(two_orders).await > 0
    })
    .await;
    hold.release().await;
    let run = wait_for_state(&lab, began.data()["id"].as_str().unwrap(), "done").await;
    assert_eq!(
        (
            &run["setting"]["seed"],
            &run["lanes"][0]["result"]["conformance"]["kind"]
        ),
        (&json!(7), &json!("broken"))
    );
    let verdict = |lane: usize| &run["lanes"][lane]["result"]["report"]["verdict"];
    assert!(
        verdict(0)["duplicates"].as_i64() > Some(0),
        "{}",
        verdict(0)
    );
    assert_eq!(verdict(1)["duplicates"], 0);
    for lane in [0, 1] {
        let laws = ["oversold", "lost", "phantom", "drift"].map(|law| verdict(lane)[law].clone());
        assert_eq!(laws, [0, 0, 0, 0], "lane {lane}");
        let samples = run["lanes"][lane]["samples"].as_array().unwrap();
        let last = samples.last().unwrap();
        let number = |name: &str| last[name].as_i64().unwrap();
        assert_eq!(
            [number("stock") + number("rows"), number("requests")],
            [60, 120]
        );
        assert_eq!(last["duplicates"], verdict(lane)["duplicates"]);
        assert_eq!(number("people") + number("duplicates"), number("rows"));
        let replies = run["lanes"][lane]["replies"].as_object().unwrap();
        assert_eq!(replies.values().filter_map(Value::as_u64).sum::<u64>(), 120);
        assert_eq!(replies["ORDERED"], last["rows"]);
    }
    assert_eq!(run["lanes"][1]["result"]["conformance"]["kind"], "holds");

    // Two nodes each held the lock of the same user at the same time, and neither saw an order.
    let story = &run["lanes"][0]["stories"][0];
    assert_eq!(story["kind"], "two-orders");
    let requests = story["requests"].as_array().unwrap();
    assert_eq!(requests[0]["userId"], requests[1]["userId"]);
    assert_ne!(requests[0]["node"], requests[1]["node"]);
    let time_of_step = |request: &Value, name: &str| {
        let mut steps = request["steps"].as_array().unwrap().iter();
        let step = steps
            .find(|step| step["step"] == name)
            .unwrap_or_else(|| panic!("{request}"));
        step["at"].as_f64().unwrap()
    };
    let locked_at = |n: usize| time_of_step(&requests[n], "locked");
    let unlocked_at = |n: usize| time_of_step(&requests[n], "unlocked");
    assert!(
        locked_at(0) < unlocked_at(1) && locked_at(1) < unlocked_at(0),
        "{story}"
    );
    assert_eq!(run["lanes"][1]["stories"][0]["kind"], "held");

    // Polling gets only what is new.
    let id = run["id"].as_str().unwrap();
    let known_samples = run["lanes"][0]["samples"].as_array().unwrap().len() - 1;
    let new_samples = get(&lab.url, &format!("/lab/runs/{id}?from={known_samples}"))
        .send()
        .await;
    assert_eq!(
        new_samples.data()["lanes"][0]["samples"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let kept = get(&lab.url, "/lab/runs").send().await;
    assert_eq!(kept.data()[0]["conformances"][1]["kind"], "holds");

    // Faults happen, and the safe lanes hold.
    let press = async |fault: &str| {
        post(&lab.url, "/lab/faults")
            .admin()
            .json(json!({ "fault": fault }))
            .send()
            .await
    };
    assert_eq!(press("pause-redis").await.body["code"], "NO_RUN");
    let long = json!({"buyers": 100, "stock": 100, "spreadSeconds": 4});
    let began = start(&lab, setting(["reentrant-lock", "group-commit"], long)).await;
    let id = began.data()["id"].as_str().unwrap().to_owned();
    wait_for_state(&lab, &id, "running").await;
    let second = start(&lab, setting(["naive", "stream"], json!({}))).await;
    assert_eq!(second.body["code"], "RUN_UNDER_WAY");
    press("cut-lease").await.data();
    press("empty-redis").await.data();
    press("pause-redis").await.data();
    assert_eq!(press("melt-the-disk").await.status, 400);
    let run = wait_for_state(&lab, &id, "done").await;
    let events = run["events"].as_array().unwrap();
    let names: Vec<_> = events
        .iter()
        .map(|event| event["what"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["cut-lease", "empty-redis", "pause-redis"]);
    for lane in run["lanes"].as_array().unwrap() {
        let verdict = &lane["result"]["report"]["verdict"];
        let laws = ["oversold", "duplicates", "lost", "phantom"].map(|law| verdict[law].clone());
        assert_eq!(laws, [0, 0, 0, 0], "{verdict}");
        assert!(verdict["orders"].as_i64() > Some(0), "{verdict}");
    }
}

#[tokio::test]
async fn a_hot_key_that_expires_costs_many_queries_without_protection_and_one_under_the_mutex() {
    let stack = Stack::lab(2).await;
    let lab = Lab::start(&stack, None).await;
    let read = || post(&lab.url, "/lab/hot-key").admin().send();
    let sale = || {
        start(
            &lab,
            setting(["naive", "row-lock"], json!({"spreadSeconds": 20})),
        )
    };

    let (run, ()) = tokio::join!(read(), async {
        // One thing at a time.
        eventually("it is being read", async || {
            stack
                .redis
                .conn()
                .await
                .exists("cache:shop:1")
                .await
                .unwrap()
        })
        .await;
        for refused in [read().await, sale().await] {
            assert_eq!(refused.body["code"], "LAB_FAULT", "{:?}", refused.body);
        }
    });
    let lanes = run.data()["lanes"].as_array().unwrap();
    assert_eq!(
        [&lanes[0]["strategy"], &lanes[1]["strategy"]],
        ["cache-aside", "mutex"]
    );
    let queries = |lane: &Value| -> Vec<u64> {
        let samples = lane["samples"].as_array().unwrap().iter();
        samples
            .map(|one| one["queries"].as_u64().unwrap())
            .collect()
    };
    for lane in lanes {
        let samples = lane["samples"].as_array().unwrap();
        let last = samples.last().unwrap();
        assert!(
            last["statements"].as_u64() >= last["queries"].as_u64(),
            "{last}"
        );
        assert!(queries(lane).is_sorted(), "{lane}");
        assert!(samples.len() > 5, "{lane}");
        assert_eq!(lane["reads"], 1800, "{lane}");
    }
    // The cache answers until the expiry; on a busy machine Redis misses its time limit for some reads, which load.
    let [unguarded, guarded] = [0, 1].map(|at| {
        let lane = &lanes[at];
        let expired_at = lane["expiredAt"].as_f64();
        let samples = lane["samples"].as_array().unwrap();
        let before = samples.partition_point(|one| one["at"].as_f64() < expired_at);
        let queries = queries(lane);
        assert!(queries[before - 1] < 80, "of 800 reads: {lane}");
        queries.last().unwrap() - queries[before - 1]
    });
    assert!(unguarded >= 20, "{}", lanes[0]);
    assert!((1..=unguarded / 10).contains(&guarded), "{}", lanes[1]);
    assert_eq!(lanes[1]["failed"], 0, "{}", lanes[1]);

    let began = sale().await;
    let id = began.data()["id"].as_str().unwrap();
    assert_eq!(read().await.body["code"], "RUN_UNDER_WAY");
    let stop = post(&lab.url, &format!("/lab/runs/{id}/stop")).admin();
    stop.send().await;
}

#[tokio::test]
async fn a_session_in_one_nodes_memory_is_unknown_to_the_other_and_a_killed_node_is_reported() {
    let mut stack = Stack::lab(2).await;
    let kill = format!("kill -KILL {}", stack.instances[1].pid());
    let mut lab = Lab::start(&stack, Some(kill)).await;
    let story = post(&lab.url, "/lab/sessions").admin().send().await;
    let outcomes = [0_usize, 1].map(|part| story.data()["parts"][part]["outcome"].clone());
    assert_eq!(outcomes, ["lost", "holds"]);
    let nodes = stack.urls();
    let kept: Vec<String> = stack
        .redis
        .conn()
        .await
        .keys("login:token:*")
        .await
        .unwrap();
    assert_eq!(kept.len(), 1, "the first session is in no Redis");

    // The steps of the story, by hand. The session ends with a logout, and purchases never use it.
    let [first_url, second_url] = [&nodes[0], &nodes[1]];
    post(first_url, "/user/code?phone=13800138000")
        .send()
        .await
        .data();
    let code = get(first_url, "/lab/code/13800138000")
        .send()
        .await
        .data()
        .clone();
    let login = json!({"phone": "13800138000", "code": code});
    let answer = post(first_url, "/lab/login").json(login).send().await;
    let cookie = answer.headers["set-cookie"]
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    let token = answer.data().as_str().unwrap();
    let me = async |url: &str| get(url, "/user/me").header("cookie", cookie).send().await;
    me(first_url).await.data();
    me(second_url).await.refused(401, "UNAUTHORIZED");
    get(first_url, "/user/me")
        .token(token)
        .send()
        .await
        .refused(401, "UNAUTHORIZED");
    let buy = post(first_url, "/voucher-order/seckill/1")
        .header("cookie", cookie)
        .send()
        .await;
    buy.refused(401, "UNAUTHORIZED");
    post(first_url, "/user/logout")
        .header("cookie", cookie)
        .send()
        .await
        .data();
    me(first_url).await.refused(401, "UNAUTHORIZED");

    // A run can be stopped, and a killed instance is reported as killed.
    let long = json!({"buyers": 200, "stock": 200, "spreadSeconds": 20});
    let began = start(&lab, setting(["process-lock", "reentrant-lock"], long)).await;
    let id = began.data()["id"].as_str().unwrap().to_owned();
    wait_for_state(&lab, &id, "running").await;
    let kill = json!({"fault": "kill-instance"});
    post(&lab.url, "/lab/faults")
        .admin()
        .json(kill)
        .send()
        .await
        .data();
    // Nobody starts it again here.
    let killed = &mut stack.instances[1];
    eventually("it is killed", async || !killed.is_running()).await;
    eventually("the event", || async {
        document(&lab, &id).await["events"][0]["what"] == "kill-instance"
    })
    .await;
    post(&lab.url, &format!("/lab/runs/{id}/stop"))
        .admin()
        .send()
        .await
        .data();
    let run = wait_for_state(&lab, &id, "stopped").await;
    for lane in run["lanes"].as_array().unwrap() {
        let report = &lane["result"]["report"];
        assert!(report["requests"].as_u64() < Some(800), "{report}");
        let laws = ["lost", "phantom"].map(|law| report["verdict"][law].clone());
        assert_eq!(laws, [0, 0], "{report}");
    }
    // The story of the sessions is unclear then: the killed instance does not answer.
    let story = post(&lab.url, "/lab/sessions").admin().send().await;
    for part in story.data()["parts"].as_array().unwrap() {
        assert_eq!(part["outcome"], "unclear", "{part}");
        let last = part["requests"].as_array().unwrap().last().unwrap();
        assert!(last["status"].is_null() && last["step"] == "me", "{part}");
    }

    // A run that would go on for long does not hold up a shutdown.
    let long = json!({"buyers": 200, "spreadSeconds": 30, "instances": 1});
    start(&lab, setting(["naive", "row-lock"], long))
        .await
        .data();
    let ended = Instant::now();
    lab.stop().await;
    assert!(
        ended.elapsed() < Duration::from_secs(15),
        "{:?}",
        ended.elapsed()
    );
}
