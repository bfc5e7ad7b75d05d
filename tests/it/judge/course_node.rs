//! A stand-in for a learner's node: the course's API, tables and keys, and nothing of ours. What it does wrongly depends on
//! how far its author has come.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Html;
use axum::routing::{get, post};
use axum::{Json, Router};
use chrono::NaiveDateTime;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use testkit::redis_server::RedisServer;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::java_node::{JavaNode, Reply};
use crate::support::database::TestDatabase;
use crate::support::eventually;

/// How far the author has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    /// `synchronized` per user around the transaction: sound on one node.
    LockInMemory,
    /// The same without the lock.
    NoLock,
    /// SET NX with a short lease in Redis, and a plain DEL.
    UnownedLock,
    /// SET NX with a long lease, released by its owner only.
    OwnedLock,
    /// The same in its author's own way: other keys of codes and locks, `Bearer` before the token, times without seconds, and a
    /// yes without an id.
    OwnWay,
    /// A script admits, and a queue in memory has what is to be committed.
    Queue,
    /// The last stage: a script admits, a consumer commits.
    Stream,
    /// Every fifth order is rolled back, and told.
    YesWithoutRow,
    /// Every fifth order is committed, and refused.
    NoWithRow,
    /// Every fifth buyer is told the id of the order before.
    RepeatedId,
}

/// A running node; it ends with the handle.
pub struct CourseNode {
    pub url: String,
    _tasks: JoinSet<()>,
}

struct Node {
    stage: Stage,
    pool: MySqlPool,
    redis: MultiplexedConnection,
    java: JavaNode,
    /// User, voucher and id of each order that is admitted.
    queue: UnboundedSender<[i64; 3]>,
    locks: Mutex<HashMap<i64, Arc<tokio::sync::Mutex<()>>>>,
    /// How many orders it has made, and the id of the last one.
    made: Mutex<(u64, i64)>,
}

pub type Answer = (StatusCode, Json<Value>);

pub fn ok(data: impl Into<Value>) -> Answer {
    let body = json!({ "success": true, "data": data.into() });
    (StatusCode::OK, Json(body))
}

pub fn fail(why: &str) -> Answer {
    let body = json!({ "success": false, "errorMsg": why });
    (StatusCode::OK, Json(body))
}

impl CourseNode {
    pub async fn start(stage: Stage, database: &TestDatabase, redis: &RedisServer) -> Self {
        let database_url = database.url().expose_secret().to_owned();
        let routes = Router::new();
        Self::start_with("127.0.0.1:0", stage, routes, &database_url, &redis.url()).await
    }

    /// A node that serves these routes as well.
    pub async fn start_with(
        address: &str,
        stage: Stage,
        further: Router,
        database_url: &str,
        redis: &str,
    ) -> Self {
        // As many as a Java node's pool has by default.
        let options = MySqlPoolOptions::new().max_connections(10);
        let pool = options.connect(database_url).await.unwrap();
        let mut tasks = JoinSet::new();
        let consumer = java_node(&pool, redis).await;
        let (queue, mut queued) = unbounded_channel::<[i64; 3]>();
        if stage == Stage::Stream {
            tasks.spawn(async move {
                // What it had read before a crash comes first.
                let mut is_new = false;
                loop {
                    match consumer.read(is_new).await {
                        Some(delivered) => consumer.handle(&delivered).await,
                        None => is_new = true,
                    }
                }
            });
        } else {
            tasks.spawn(async move {
                while let Some([user, voucher, id]) = queued.recv().await {
                    consumer.insert(user, voucher, id).await.unwrap();
                }
            });
        }
        let node = Arc::new(Node {
            stage,
            redis: connect(redis).await,
            java: java_node(&pool, redis).await,
            queue,
            pool,
            locks: Mutex::default(),
            made: Mutex::default(),
        });
        let routes = Router::new()
            .route("/user/code", post(code))
            .route("/user/login", post(login))
            .route("/user/me", get(me))
            .route("/voucher/seckill", post(publish))
            .route("/voucher-order/seckill/{id}", post(buy));
        let routes = routes.with_state(node).merge(further);
        let url = serve(address, routes, &mut tasks).await;
        Self { url, _tasks: tasks }
    }

    /// A server of pages.
    pub async fn html() -> Self {
        let mut tasks = JoinSet::new();
        let page = || async { Html("<html><title>hmdp</title></html>") };
        let url = serve("127.0.0.1:0", Router::new().fallback(page), &mut tasks).await;
        Self { url, _tasks: tasks }
    }
}

async fn serve(address: &str, routes: Router, tasks: &mut JoinSet<()>) -> String {
    // A process that was killed keeps its port until it is gone.
    let mut listener = None;
    eventually("the port is free", async || {
        listener = TcpListener::bind(address).await.ok();
        listener.is_some()
    })
    .await;
    let listener = listener.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
    url
}

pub async fn connect(redis: &str) -> MultiplexedConnection {
    let limit = std::time::Duration::from_secs(10);
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(limit));
    let client = redis::Client::open(redis).unwrap();
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.unwrap()
}

async fn java_node(pool: &MySqlPool, redis: &str) -> JavaNode {
    let mut connection = connect(redis).await;
    // Fails where the group is there already.
    let _: Result<(), _> = connection
        .xgroup_create_mkstream("stream.orders", "g1", "0")
        .await;
    JavaNode {
        redis: connection,
        pool: pool.clone(),
    }
}

async fn code(
    State(node): State<Arc<Node>>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    let key = node.code_key(&query["phone"]);
    let _: () = node.redis.clone().set_ex(key, "123456", 120).await.unwrap();
    ok(Value::Null)
}

async fn login(State(node): State<Arc<Node>>, Json(form): Json<Value>) -> Answer {
    let phone = form["phone"].as_str().unwrap();
    let mut redis = node.redis.clone();
    let code: Option<String> = redis.get(node.code_key(phone)).await.unwrap();
    if code.as_deref() != form["code"].as_str() {
        return fail("验证码错误");
    }
    let insert = sqlx::query("INSERT INTO tb_user (phone, nick_name) VALUES (?, 'user')");
    let user = insert.bind(phone).execute(&node.pool).await.unwrap();
    let token = format!("{:032x}", rand::random::<u128>());
    let id = user.last_insert_id();
    let key = format!("login:token:{token}");
    let _: () = redis.hset(key, "id", id).await.unwrap();
    ok(token)
}

impl Node {
    fn code_key(&self, phone: &str) -> String {
        match self.stage {
            Stage::OwnWay => format!("hmdp:sms:{phone}"),
            _ => format!("login:code:{phone}"),
        }
    }

    async fn user(&self, headers: &HeaderMap) -> Option<i64> {
        let mut token = headers.get("authorization")?.to_str().ok()?;
        if self.stage == Stage::OwnWay {
            token = token.strip_prefix("Bearer ")?;
        }
        let mut redis = self.redis.clone();
        redis.hget(format!("login:token:{token}"), "id").await.ok()
    }

    /// Check, stock and order in one transaction, at READ COMMITTED as far as the check is concerned.
    async fn sell(&self, user: i64, voucher: i64) -> Answer {
        let orders = sqlx::query_scalar(
            "SELECT COUNT(*) FROM tb_voucher_order WHERE user_id = ? AND voucher_id = ?",
        );
        let orders: i64 = orders
            .bind(user)
            .bind(voucher)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        if orders > 0 {
            return fail("用户已经购买过一次！");
        }
        let mut transaction = self.pool.begin().await.unwrap();
        let take =
            "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock > 0";
        let taken = sqlx::query(take).bind(voucher);
        if taken
            .execute(&mut *transaction)
            .await
            .unwrap()
            .rows_affected()
            == 0
        {
            return fail("库存不足！");
        }
        let id = i64::from(rand::random::<u32>()) << 16 | i64::from(rand::random::<u16>());
        let row =
            sqlx::query("INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (?, ?, ?)");
        let row = row.bind(id).bind(user).bind(voucher);
        row.execute(&mut *transaction).await.unwrap();
        let (is_fifth, id_before) = {
            let mut made = self.made.lock().unwrap();
            let (count, id_before) = *made;
            *made = (count + 1, id);
            (count % 5 == 4, id_before)
        };
        if is_fifth && self.stage == Stage::YesWithoutRow {
            transaction.rollback().await.unwrap();
            return ok(id);
        }
        transaction.commit().await.unwrap();
        match self.stage {
            Stage::NoWithRow if is_fifth => fail("网络繁忙"),
            Stage::RepeatedId if is_fifth => ok(id_before),
            Stage::OwnWay => ok(Value::Null),
            _ => ok(id),
        }
    }
}

impl Node {
    async fn sell_under_redis_lock(&self, user: i64, voucher: i64) -> Answer {
        let is_owned = self.stage != Stage::UnownedLock;
        let mut redis = self.redis.clone();
        let key = match self.stage {
            Stage::OwnWay => format!("order:{user}"),
            _ => format!("lock:order:{user}"),
        };
        let owner = rand::random::<u64>();
        let lease = if is_owned { 60 } else { 8 };
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(owner).arg("NX").arg("EX").arg(lease);
        let taken: Option<String> = set.query_async(&mut redis).await.unwrap();
        if taken.is_none() {
            return fail("不允许重复下单！");
        }
        let answer = self.sell(user, voucher).await;
        let script = if is_owned {
            "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
        } else {
            "redis.call('DEL', KEYS[1])"
        };
        let script = redis::Script::new(script);
        let release = script.key(&key).arg(owner).invoke_async(&mut redis).await;
        let () = release.unwrap();
        answer
    }
}

async fn me(State(node): State<Arc<Node>>, headers: HeaderMap) -> Answer {
    match node.user(&headers).await {
        Some(id) => ok(json!({ "id": id, "nickName": "user", "icon": "" })),
        None => (StatusCode::UNAUTHORIZED, Json(Value::Null)),
    }
}

async fn publish(State(node): State<Arc<Node>>, Json(voucher): Json<Value>) -> Answer {
    let begins = voucher["beginTime"].as_str().unwrap();
    let format = match node.stage {
        Stage::OwnWay => "%Y-%m-%d %H:%M",
        _ => "%Y-%m-%dT%H:%M:%S",
    };
    let is_on_the_shelf = node.stage != Stage::OwnWay || voucher["status"] == 1;
    if !is_on_the_shelf || NaiveDateTime::parse_from_str(begins, format).is_err() {
        return fail("服务器异常");
    }
    let insert = "INSERT INTO tb_voucher (shop_id, title, pay_value, actual_value, type) VALUES (?, ?, 1, 2, 1)";
    let inserted = sqlx::query(insert)
        .bind(voucher["shopId"].as_u64())
        .bind(voucher["title"].as_str())
        .execute(&node.pool)
        .await
        .unwrap();
    let id = inserted.last_insert_id();
    let time = |name: &str| voucher[name].as_str().unwrap().replace('T', " ");
    let sale = "INSERT INTO tb_seckill_voucher (voucher_id, stock, begin_time, end_time) VALUES (?, ?, ?, ?)";
    sqlx::query(sale)
        .bind(id)
        .bind(voucher["stock"].as_i64())
        .bind(time("beginTime"))
        .bind(time("endTime"))
        .execute(&node.pool)
        .await
        .unwrap();
    let key = format!("seckill:stock:{id}");
    let stock = voucher["stock"].as_i64().unwrap();
    let _: () = node.redis.clone().set(key, stock).await.unwrap();
    ok(id)
}

async fn buy(
    State(node): State<Arc<Node>>,
    headers: HeaderMap,
    Path(voucher): Path<i64>,
) -> Answer {
    let Some(user) = node.user(&headers).await else {
        return (StatusCode::UNAUTHORIZED, Json(Value::Null));
    };
    if matches!(node.stage, Stage::Queue | Stage::Stream) {
        return match node.java.buy(user, voucher).await {
            Reply::Admitted(id) => {
                node.queue.send([user, voucher, id]).ok();
                ok(id)
            }
            Reply::SoldOut => fail("库存不足！"),
            Reply::AlreadyOrdered => fail("不能重复下单！"),
            Reply::Error(_) => fail("服务器异常"),
        };
    }
    if node.stage == Stage::NoLock {
        return node.sell(user, voucher).await;
    }
    if matches!(
        node.stage,
        Stage::UnownedLock | Stage::OwnedLock | Stage::OwnWay
    ) {
        return node.sell_under_redis_lock(user, voucher).await;
    }
    let lock = node.locks.lock().unwrap().entry(user).or_default().clone();
    let _guard = lock.lock().await;
    node.sell(user, voucher).await
}
