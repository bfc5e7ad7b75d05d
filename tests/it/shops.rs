//! The shop endpoints: paging, search by name and by distance, visibility of writes, and outages of
//! Redis and of the database.

use futures_util::future::join_all;
use redis::AsyncCommands;
use serde_json::{Value, json};

use crate::support::api::{Answer, call, get, metric, metric_is, post};
use crate::support::eventually;
use crate::support::stack::Stack;
use testkit::proxy::Mode;

fn shop(name: &str, type_id: i64, x: f64, y: f64) -> Value {
    json!({ "name": name, "typeId": type_id, "address": "路", "x": x, "y": y, "score": 40 })
}

async fn create(stack: &Stack, shop: Value) -> i64 {
    post(stack.url(), "/shop")
        .admin()
        .json(shop)
        .send()
        .await
        .data()
        .as_i64()
        .unwrap()
}

async fn put(base: &str, change: Value) -> Answer {
    call(hyper::Method::PUT, base, "/shop")
        .admin()
        .json(change)
        .send()
        .await
}

fn ids(answer: &Answer) -> Vec<i64> {
    answer
        .data()
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["id"].as_i64().unwrap())
        .collect()
}

async fn listed(stack: &Stack, path: &str) -> Vec<i64> {
    ids(&get(stack.url(), path).send().await)
}

#[tokio::test]
async fn shops_are_found_by_id_type_and_name() {
    let stack = Stack::start(1, &[]).await;
    let shop_1 = get(stack.url(), "/shop/1").send().await;
    assert_eq!(
        (&shop_1.data()["id"], &shop_1.data()["name"]),
        (&json!(1), &json!("测试小店"))
    );
    assert!(
        shop_1.data().get("avgPrice").is_none(),
        "absent values are omitted: {shop_1:?}"
    );
    for id in ["999", "0", "-1"] {
        let answer = get(stack.url(), &format!("/shop/{id}")).send().await;
        assert_eq!(answer.refused(200, "SHOP_NOT_FOUND"), "店铺不存在");
    }

    let mut created = Vec::new();
    for n in 0..11 {
        created.push(create(&stack, shop(&format!("面馆{n}"), 7, 120.0, 30.0)).await);
    }
    // By type and by name. Characters that are special in LIKE match only themselves.
    for (query, found) in [
        ("type?typeId=7", &created[..5]),
        ("type?typeId=7&current=2", &created[5..10]),
        ("type?typeId=7&current=3", &created[10..]),
        ("type?typeId=7&current=4", &[]),
        ("type?typeId=7&current=4294967295", &[]),
        ("name?name=%E9%9D%A2%E9%A6%86", &created[..10]),
        ("name?name=%E9%9D%A2%E9%A6%86&current=2", &created[10..]),
        ("name?name=%E9%A6%861", &[created[1], created[10]]),
        ("name?name=%25", &[]),
        ("name?name=_", &[]),
        ("name?name=!", &[]),
        ("name?name=%5C", &[]),
    ] {
        assert_eq!(
            listed(&stack, &format!("/shop/of/{query}")).await,
            found,
            "{query}"
        );
    }
    assert_eq!(listed(&stack, "/shop/of/name").await.len(), 10);
    for bad in [
        "abc",
        "of/name?current=0",
        "of/name?current=-1",
        "of/name?current=x",
        "of/type",
        "of/type?typeId=7&current=0",
        // An incomplete or invalid point.
        "of/type?typeId=1&x=120",
        "of/type?typeId=1&y=30",
        "of/type?typeId=1&x=181&y=0",
        "of/type?typeId=1&x=0&y=86",
        "of/type?typeId=1&x=NaN&y=0",
        "of/type?typeId=1&x=a&y=b",
    ] {
        let answer = get(stack.url(), &format!("/shop/{bad}")).send().await;
        answer.refused(400, "INVALID_PARAMETER");
    }
}

#[tokio::test]
async fn shops_are_found_by_their_distance_also_after_a_write_and_without_redis() {
    let mut stack = Stack::start(1, &[]).await;
    // Seven shops eastwards, about 960 m apart; the last is beyond 5 km.
    let mut created = Vec::new();
    for n in 0..7 {
        created.push(create(&stack, shop("店", 8, 120.0 + 0.01 * f64::from(n), 30.0)).await);
    }
    let url = stack.url().to_owned();
    let near = async |current: u32| {
        let path = format!("/shop/of/type?typeId=8&x=120&y=30&current={current}");
        get(&url, &path).send().await
    };
    let distances = |answer: &Answer| -> Vec<f64> {
        let shops = answer.data().as_array().unwrap().iter();
        shops
            .map(|shop| shop["distance"].as_f64().unwrap())
            .collect()
    };
    let first = near(1).await;
    assert_eq!(ids(&first), created[..5]);
    let distances_of_first = distances(&first);
    for (n, distance) in (0..5).zip(&distances_of_first) {
        let expected = f64::from(n) * 963.0;
        assert!((distance - expected).abs() < 5.0, "{distances_of_first:?}");
    }
    // The sixth lies 4.8 km away, the seventh beyond the radius.
    assert_eq!(ids(&near(2).await), [created[5]]);
    assert!(ids(&near(3).await).is_empty());

    // One shop moves next to the point, a new one is still nearer, and a third, of another type, is at the point.
    put(stack.url(), json!({ "id": created[6], "x": 120.0001 }))
        .await
        .data();
    let new = create(&stack, shop("新", 8, 120.00005, 30.0)).await;
    create(&stack, shop("别", 9, 120.0, 30.0)).await;
    assert_eq!(ids(&near(1).await)[..3], [created[0], new, created[6]]);
    put(stack.url(), json!({ "id": new, "typeId": 9 }))
        .await
        .data();
    assert_eq!(ids(&near(1).await)[..2], [created[0], created[6]]);

    // A lost index is built again; without Redis the database returns the same.
    let _: i64 = stack.redis.conn().await.del("shop:geo:8").await.unwrap();
    let with_index = near(1).await;
    assert_eq!(ids(&with_index)[..2], [created[0], created[6]]);
    assert!(
        listed(&stack, "/shop/of/type?typeId=99&x=120&y=30")
            .await
            .is_empty()
    );
    stack.redis.kill();
    let without = near(1).await;
    assert_eq!(ids(&without), ids(&with_index));
    for (a, b) in distances(&without).into_iter().zip(distances(&with_index)) {
        assert!((a - b).abs() < 1.0, "{a} {b}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_visible_on_every_node_and_a_bad_one_changes_nothing() {
    let stack = Stack::start(2, &[]).await;
    let urls = stack.urls();
    let [first_url, second_url] = [&urls[0], &urls[1]];
    let id = create(&stack, shop("旧", 1, 120.0, 30.0)).await;
    let path = format!("/shop/{id}");
    let received = "seckill_cache_invalidations_received_total";
    for round in 0..5 {
        for base in [first_url, second_url] {
            get(base, &path).send().await.data();
        }
        let before = metric(second_url, received).await;
        let name = format!("新{round}");
        put(first_url, json!({ "id": id, "name": name }))
            .await
            .data();
        // At once on this node, and on the other when the message arrives that every write sends.
        assert_eq!(
            get(first_url, &path).send().await.data()["name"],
            name.as_str()
        );
        eventually("the message", async || {
            metric(second_url, received).await > before
        })
        .await;
        eventually("the other node serves the change", || async {
            get(second_url, &path).send().await.data()["name"] == name.as_str()
        })
        .await;
    }
    let changed = get(second_url, &path).send().await;
    assert_eq!(
        (&changed.data()["score"], &changed.data()["address"]),
        (&json!(40), &json!("路"))
    );

    let text = "店铺id不能为空";
    assert_eq!(
        put(first_url, json!({ "name": "x" }))
            .await
            .refused(200, "SHOP_ID_MISSING"),
        text
    );
    put(first_url, json!({ "id": 999_999, "name": "x" }))
        .await
        .refused(200, "SHOP_NOT_FOUND");
    for bad in [
        json!({ "id": id, "x": 181 }),
        json!({ "id": id, "y": -86 }),
        json!({ "id": id, "name": " " }),
        json!({ "id": id, "score": -1 }),
        json!({ "id": id, "typeId": 0 }),
    ] {
        put(first_url, bad).await.refused(400, "INVALID_PARAMETER");
    }
    let bare = post(first_url, "/shop")
        .admin()
        .json(json!({ "name": "x" }))
        .send()
        .await;
    bare.refused(400, "INVALID_PARAMETER");

    // A new shop is found although its id was read before.
    let path = format!("/shop/{}", id + 1);
    for base in [first_url, second_url] {
        get(base, &path).send().await.refused(200, "SHOP_NOT_FOUND");
    }
    assert_eq!(create(&stack, shop("二", 1, 120.0, 30.0)).await, id + 1);
    for base in [first_url, second_url] {
        eventually("it is found", async || {
            get(base, &path).send().await.body["success"] == true
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_reads_go_on_and_a_write_is_visible_later() {
    let mut stack = Stack::start(2, &[]).await;
    let urls = stack.urls();
    let id = create(&stack, shop("旧", 1, 120.0, 30.0)).await;
    let path = format!("/shop/{id}");
    for base in &urls {
        get(base, &path).send().await.data();
    }
    stack.redis.kill();
    for base in &urls {
        eventually("reads do without Redis", async || {
            get(base, &path).send().await.data();
            metric(base, "seckill_cache_bypassed_total{cache=\"shop\"}").await > 3
        })
        .await;
    }
    get(&urls[0], "/shop-type/list").send().await.data();
    get(&urls[0], "/shop/of/name").send().await.data();
    // An update succeeds: its invalidation is delivered later.
    put(&urls[0], json!({ "id": id, "name": "新" }))
        .await
        .data();
    assert_eq!(get(&urls[0], &path).send().await.data()["name"], "新");
    let refused = post(&urls[0], "/shop")
        .admin()
        .json(shop("x", 1, 1.0, 1.0))
        .send()
        .await;
    refused.refused(503, "UNAVAILABLE");

    stack.redis.restart().await;
    for base in &urls {
        eventually("the change is visible", || async {
            get(base, &path).send().await.data()["name"] == "新"
        })
        .await;
    }
    metric_is(&urls[0], "seckill_cache_pending_invalidations", 0).await;
}

#[tokio::test]
async fn cached_shops_have_the_contracts_format_and_absent_ids_are_filtered() {
    let stack = Stack::lab(1).await;
    let id = create(&stack, shop("形", 1, 120.0, 30.0)).await;
    let mut redis = stack.redis.conn().await;
    let key = format!("cache:shop:{id}");
    // What each strategy stores is tested in the cache's crate.
    for strategy in ["layered", "logical-expiry"] {
        put(stack.url(), json!({ "id": id, "name": strategy }))
            .await
            .data();
        let read = get(stack.url(), &format!("/shop/{id}")).header("x-lab-cache", strategy);
        let answer = read.send().await;
        assert_eq!(answer.data()["name"], strategy);
        let created = answer.data()["createTime"].as_str().unwrap();
        assert!(
            created.parse::<chrono::NaiveDateTime>().is_ok(),
            "{created}"
        );
        let text: String = redis.get(&key).await.unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let ttl = redis.pttl::<_, i64>(&key).await.unwrap();
        let is_wrapped = strategy == "logical-expiry";
        let expected = if is_wrapped {
            -1..=-1
        } else {
            26 * 60_000..=33 * 60_000
        };
        assert!(expected.contains(&ttl), "{strategy}: {ttl} ms");
        let shop = if is_wrapped { &value["data"] } else { &value };
        assert!(
            shop["createTime"].as_i64().unwrap() > 1_700_000_000_000,
            "{text}"
        );
        assert!(shop.get("area").is_none(), "nulls are omitted: {text}");
    }
    let unknown = get(stack.url(), "/shop/1")
        .header("x-lab-cache", "unknown")
        .send()
        .await;
    unknown.refused(400, "INVALID_PARAMETER");

    let types = get(stack.url(), "/shop-type/list").send().await;
    assert_eq!(types.data(), &json!([]));
    let insert = "INSERT INTO tb_shop_type (id, name, icon, sort) VALUES";
    stack
        .database
        .run(&format!("{insert} (5, '二', 'b', 2), (6, '一', 'a', 1)"))
        .await;
    let _: i64 = redis.del("cache:shop:type").await.unwrap();
    let expected = json!([
        { "id": 6, "name": "一", "icon": "a", "sort": 1 },
        { "id": 5, "name": "二", "icon": "b", "sort": 2 },
    ]);
    eventually("the list is read again", || async {
        get(stack.url(), "/shop-type/list").send().await.data() == &expected
    })
    .await;
    let cached: String = redis.get("cache:shop:type").await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&cached).unwrap(), expected);

    // What a Java node has cached is read.
    let java = json!({
        "id": 77, "name": "爪哇", "typeId": 1, "images": "", "address": "路", "x": 1.0, "y": 2.0,
        "avgPrice": 80, "sold": 1, "comments": 2, "score": 37, "openHours": "10:00-22:00",
        "createTime": 1_640_167_839_000_i64, "updateTime": 1_640_167_839_000_i64,
    });
    let _: () = redis
        .set_ex("cache:shop:77", java.to_string(), 60)
        .await
        .unwrap();
    let shop = get(stack.url(), "/shop/77").send().await;
    assert_eq!(
        (&shop.data()["name"], &shop.data()["score"]),
        (&json!("爪哇"), &json!(37))
    );
    assert_eq!(shop.data()["createTime"], "2021-12-22T18:10:39");
    let _: () = redis.set_ex("cache:shop:78", "", 60).await.unwrap();
    get(stack.url(), "/shop/78")
        .send()
        .await
        .refused(200, "SHOP_NOT_FOUND");

    // Another id each time: one that was read before the filter was filled has a cached null.
    let mut absent = 5_000_000;
    eventually("the filter is filled", async || {
        absent += 1;
        get(stack.url(), "/shop/1").send().await.data();
        get(stack.url(), &format!("/shop/{absent}"))
            .send()
            .await
            .refused(200, "SHOP_NOT_FOUND");
        let filtered = metric(
            stack.url(),
            "seckill_cache_hits_total{cache=\"shop\",layer=\"filter\"}",
        )
        .await;
        filtered > 0
    })
    .await;
    let loads = "seckill_cache_loads_total{cache=\"shop\"}";
    let before = metric(stack.url(), loads).await;
    for absent in 6_000_000..6_000_050 {
        get(stack.url(), &format!("/shop/{absent}"))
            .send()
            .await
            .refused(200, "SHOP_NOT_FOUND");
    }
    assert!(
        metric(stack.url(), loads).await <= before + 5,
        "the filter lets most of them pass"
    );
}

#[tokio::test]
async fn cached_reads_go_on_without_the_database() {
    let stack = Stack::behind_proxies(&["--database-timeout-ms", "1000"]).await;
    let proxy = &stack.proxies.database;
    let mut redis = stack.redis.conn().await;
    // If Redis was too slow to store it, a later read stores it.
    eventually("the shop is in Redis", async || {
        get(stack.url(), "/shop/1").send().await.data();
        redis.exists("cache:shop:1").await.unwrap()
    })
    .await;
    proxy.set(Mode::Cut);
    // From memory, and later from Redis, if it answers in time.
    let by_redis = "seckill_cache_hits_total{cache=\"shop\",layer=\"redis\"}";
    let before = metric(stack.url(), by_redis).await;
    eventually("Redis answers", async || {
        let is_read = get(stack.url(), "/shop/1").send().await.status == 200;
        is_read && metric(stack.url(), by_redis).await > before + 1
    })
    .await;
    // What is not cached is a 503, not a false "does not exist".
    let columns = "(id, name, type_id, images, address, x, y)";
    stack
        .database
        .run(&format!(
            "INSERT INTO tb_shop {columns} VALUES (2, '二', 1, '', '', 1, 1)"
        ))
        .await;
    let filters: Vec<String> = redis.keys("bloom:*").await.unwrap();
    let _: i64 = redis.del(filters).await.unwrap();
    get(stack.url(), "/shop/2")
        .send()
        .await
        .refused(503, "UNAVAILABLE");
    proxy.set(Mode::Forward);
    eventually("it is found again", || async {
        get(stack.url(), "/shop/2").send().await.status == 200
    })
    .await;
}

#[tokio::test]
async fn outside_the_lab_the_labs_header_is_ignored_and_one_hot_shop_is_limited() {
    let stack = Stack::start(1, &["--per-shop-per-second", "5"]).await;
    let mut redis = stack.redis.conn().await;
    // If Redis was too slow to store it, a later read stores it.
    eventually("the shop is in Redis", async || {
        let shop = get(stack.url(), "/shop/1").header("x-lab-cache", "logical-expiry");
        shop.send().await;
        redis.exists("cache:shop:1").await.unwrap()
    })
    .await;
    let ttl: i64 = redis.pttl("cache:shop:1").await.unwrap();
    assert!(ttl > 0, "stored with a time to live: {ttl}");
    let answers = join_all((0..30).map(|_| get(stack.url(), "/shop/1").send())).await;
    let refused: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 429)
        .collect();
    assert!(!refused.is_empty());
    for answer in refused {
        answer.refused(429, "TOO_MANY_REQUESTS");
    }
    get(stack.url(), "/shop/2")
        .send()
        .await
        .refused(200, "SHOP_NOT_FOUND");
}
