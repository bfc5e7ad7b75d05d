//! A stack of a test's own: a database, a redis-server, proxies before both, and instances of the service. It owns all of
//! them, so that each server outlives what uses it.

use std::time::Duration;

use redis::AsyncCommands;
use seckill::keys::{KeyStyle, Keys};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use sqlx::{MySql, Transaction};
use tokio::task::JoinHandle;
use workload::{Access, sessions};

use super::api::{self, ADMIN_TOKEN, get, post};
use super::database::TestDatabase;
use super::eventually;
use super::instance::Instance;
use testkit::proxy::Proxy;
use testkit::raw::command;
use testkit::redis_server::{RedisServer, Role};

/// Instead of half a minute, the default, which is too long for a test. It must be longer than the second for which the entry of
/// a Java node may be unknown.
const UNSURE_SECONDS: u64 = 3;

/// Time limits so long that neither a busy machine nor a row that is locked for long exceeds them. A test of a limit sets its
/// own.
pub const PATIENT: [(&str, &str); 4] = [
    ("DATABASE_TIMEOUT_MS", "12000"),
    ("REDIS_TIMEOUT_MS", "4000"),
    ("REQUEST_TIMEOUT_MS", "120000"),
    ("DRAIN_DEADLINE_MS", "150000"),
];

/// The fields are in the order in which they must be dropped: users before what they use.
pub struct Stack {
    pub instances: Vec<Instance>,
    /// The instances of [`Stack::behind_proxies`] reach their servers through these.
    pub proxies: Proxies,
    pub redis: RedisServer,
    pub database: TestDatabase,
    pub keys: Keys,
}

/// A proxy before each server, for faults and for counting round trips.
pub struct Proxies {
    pub database: Proxy,
    pub redis: Proxy,
}

#[derive(Clone, Debug)]
pub struct SignedIn {
    /// `tb_user.id`.
    pub id: i64,
    pub token: String,
}

impl Stack {
    /// `count` instances with `--lab`.
    pub async fn lab(count: usize) -> Self {
        Self::start(count, &["--lab"]).await
    }

    /// `count` instances with these further arguments.
    pub async fn start(count: usize, args: &[&str]) -> Self {
        Self::start_on(TestDatabase::migrated().await, count, args).await
    }

    /// `count` instances with these arguments, on this database.
    pub async fn start_on(database: TestDatabase, count: usize, args: &[&str]) -> Self {
        let redis = RedisServer::start_as(Role::Durable).await;
        Self::start_with(database, redis, KeyStyle::Default, count, args).await
    }

    /// `count` instances with these arguments, in the key style `cluster`, on a cluster of one redis-server, which
    /// refuses every script and every command whose keys are in two slots.
    pub async fn in_cluster_style(count: usize, args: &[&str]) -> Self {
        let redis = RedisServer::start_as(Role::ClusterNode(60_000)).await;
        let mut raw = redis.conn().await;
        let slots = command("CLUSTER", &["ADDSLOTSRANGE", "0", "16383"]);
        slots.exec_async(&mut raw).await.expect("all slots");
        eventually("it serves", async || {
            raw.set::<_, _, ()>("a", 1).await.is_ok()
        })
        .await;
        Self::start_with(
            TestDatabase::migrated().await,
            redis,
            KeyStyle::Cluster,
            count,
            args,
        )
        .await
    }

    async fn start_with(
        database: TestDatabase,
        redis: RedisServer,
        style: KeyStyle,
        count: usize,
        args: &[&str],
    ) -> Self {
        let keys = Keys::new(style);
        let proxies = Proxies {
            database: Proxy::start(database.server().to_owned())
                .await
                .expect("a proxy"),
            redis: Proxy::start(redis.address()).await.expect("a proxy"),
        };
        let mut stack = Stack {
            instances: Vec::new(),
            proxies,
            redis,
            database,
            keys,
        };
        for _ in 0..count {
            stack.add_instance(args).await;
        }
        stack
    }

    /// One instance with these arguments and the default time limits, for tests of outages. It reaches its database and its
    /// Redis through the stack's proxies.
    pub async fn behind_proxies(args: &[&str]) -> Self {
        let mut stack = Stack::start(0, &[]).await;
        stack.add_proxied(args, false).await;
        stack
    }

    /// The same with generous time limits, for tests that count requests or hold them.
    pub async fn patient_behind_proxies(args: &[&str]) -> Self {
        let mut stack = Stack::start(0, &[]).await;
        stack.add_proxied(args, true).await;
        stack
    }

    /// Adds an instance as in [`Stack::behind_proxies`], or as in [`Stack::patient_behind_proxies`].
    pub async fn add_proxied(&mut self, args: &[&str], is_patient: bool) {
        let mut env = self.env();
        env.retain(|(name, _)| is_patient || PATIENT.iter().all(|(limit, _)| limit != name));
        env[0].1 = self.database.url_through(self.proxies.database.address);
        env[1].1 = format!("redis://{}/", self.proxies.redis.address);
        self.add_instance_with(args, &env).await;
    }

    pub async fn add_instance(&mut self, args: &[&str]) {
        self.add_instance_with(args, &self.env()).await;
    }

    pub async fn add_instance_with(&mut self, args: &[&str], env: &[(&str, String)]) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.instances.push(Instance::start(&args, env).await);
    }

    fn redis_url(&self) -> String {
        match self.keys.style {
            KeyStyle::Default => self.redis.url(),
            KeyStyle::Cluster => format!("redis-cluster://{}", self.redis.address()),
        }
    }

    /// The environment of an instance or of another subcommand.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let mut env = vec![
            (
                "DATABASE_URL",
                self.database.url().expose_secret().to_owned(),
            ),
            ("REDIS_URL", self.redis_url()),
            ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
            ("STREAM_UNSURE_MS", (UNSURE_SECONDS * 1000).to_string()),
            // Requests of this machine are not limited. A test of the rate limits names another address in a header.
            ("UNLIMITED_CLIENTS", "127.0.0.0/8,::1".to_owned()),
        ];
        env.extend(PATIENT.map(|(name, value)| (name, value.to_owned())));
        env
    }

    pub fn access(&self) -> Access {
        Access {
            database_url: self.database.url().expose_secret().to_owned(),
            redis_url: self.redis_url(),
            admin_token: ADMIN_TOKEN.to_owned(),
            time_zone: chrono_tz::Asia::Shanghai,
            key_style: None,
        }
    }

    pub fn url(&self) -> &str {
        &self.instances[0].url
    }

    pub fn urls(&self) -> Vec<String> {
        self.instances
            .iter()
            .map(|instance| instance.url.clone())
            .collect()
    }

    /// The request body that publishes a sale with this stock, which is on now.
    pub fn sale(stock: i64, strategy: &str) -> Value {
        json!({
            "shopId": 1, "title": "秒杀", "payValue": 100, "actualValue": 1000, "stock": stock,
            "beginTime": "2022-01-01T00:00:00", "endTime": "2037-01-01T00:00:00",
            "strategy": strategy,
        })
    }

    pub async fn publish(&self, stock: i64, strategy: &str) -> i64 {
        self.publish_as(Self::sale(stock, strategy)).await
    }

    pub async fn publish_as(&self, body: Value) -> i64 {
        let is_open_on_stream =
            body["strategy"] == "stream" && body["endTime"].as_str() > Some("2037");
        let mut last_answer = None;
        // On a busy machine the database may exceed the time limit of a test. Then nothing was published, and it is tried again.
        eventually("it is published", async || {
            let publish = post(self.url(), "/voucher/seckill")
                .admin()
                .json(body.clone());
            let answer = publish.send().await;
            let is_unavailable = answer.body["code"] == "UNAVAILABLE";
            last_answer = Some(answer);
            !is_unavailable
        })
        .await;
        let sale = last_answer
            .expect("an answer")
            .data()
            .as_i64()
            .expect("a voucher id");
        if is_open_on_stream {
            self.opened(sale).await;
        }
        sale
    }

    /// Waits until a sale of the stream is counted and open.
    pub async fn opened(&self, sale: i64) {
        let mut redis = self.redis.conn().await;
        let open = self.keys.open(sale);
        let pending = self.keys.pending.to_string();
        eventually("the sale is open", async || {
            let open: Option<String> = redis.get(&open).await.expect("an answer");
            let mark: Option<String> = redis.hget(&pending, "mark").await.expect("an answer");
            mark.is_some() && open == mark
        })
        .await;
    }

    pub async fn ready(&self) {
        eventually("it is ready", async || {
            get(self.url(), "/health/ready").send().await.status == 200
        })
        .await;
    }

    pub async fn publish_each<'a>(
        &self,
        stock: i64,
        strategies: impl IntoIterator<Item = &'a str>,
    ) -> Vec<i64> {
        let mut sales = Vec::new();
        for strategy in strategies {
            sales.push(self.publish(stock, strategy).await);
        }
        sales
    }

    pub async fn buy(&self, user: &SignedIn, sale: i64) -> api::Answer {
        self.purchase(user, sale).send().await
    }

    /// A purchase at the first instance, to be sent.
    pub fn purchase(&self, user: &SignedIn, sale: i64) -> api::Call {
        purchase(self.url(), user, sale)
    }

    /// Buys at the first instance, and waits until the order is committed; returns its id.
    pub async fn buy_committed(&self, user: &SignedIn, sale: i64) -> i64 {
        let order = self.buy(user, sale).await.bought();
        let row = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE id = {order}");
        eventually("the order is committed", async || {
            self.database.number(&row).await == 1
        })
        .await;
        self.stream_drained().await;
        order
    }

    pub async fn buy_eventually(&self, user: &SignedIn, sale: i64) {
        buy_eventually(self.url(), user, sale).await;
    }

    /// Buys at the first instance, in a task of its own.
    pub fn start_buying(&self, user: &SignedIn, sale: i64) -> JoinHandle<api::Answer> {
        let url = self.url().to_owned();
        let user = user.clone();
        tokio::spawn(async move { buy(&url, &user, sale).await })
    }

    /// Locks a sale's row until the transaction ends.
    pub async fn lock_sale(&self, sale: i64) -> Transaction<'static, MySql> {
        let lock = "SELECT stock FROM tb_seckill_voucher WHERE voucher_id";
        self.database
            .hold(&format!("{lock} = {sale} FOR UPDATE"))
            .await
    }

    pub async fn wait_for_purchase_lock(&self, user: &SignedIn) {
        let key = format!("lock:order:{}", user.id);
        let mut redis = self.redis.conn().await;
        eventually("the purchase holds its lock", async || {
            redis.exists(&key).await.expect("an answer")
        })
        .await;
    }

    pub async fn wait_for_insert(&self, user: &SignedIn) {
        let orders = format!(
            "SELECT COUNT(*) FROM tb_voucher_order WHERE user_id = {}",
            user.id
        );
        eventually("the order is inserted", async || {
            self.database.uncommitted(&orders).await == 1
        })
        .await;
    }

    /// The number of orders of a sale, and the stock that is left.
    pub async fn tables(&self, sale: i64) -> (i64, i64) {
        (self.orders(sale).await, self.stock(sale).await)
    }

    /// The number of orders of a sale, cancelled ones included.
    pub async fn orders(&self, sale: i64) -> i64 {
        let orders = "SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id =";
        self.database.number(&format!("{orders} {sale}")).await
    }

    /// The number of order rows of all sales, the refusals included.
    pub async fn all_orders(&self) -> i64 {
        self.database
            .number("SELECT COUNT(*) FROM tb_voucher_order")
            .await
    }

    pub async fn stock(&self, sale: i64) -> i64 {
        self.database.of_sale(sale, "stock").await
    }

    /// The number of the stream's dead letters.
    pub async fn dead_letters(&self) -> u64 {
        self.redis
            .conn()
            .await
            .xlen("stream.orders.dead")
            .await
            .expect("a length")
    }

    pub async fn counter(&self, sale: i64) -> Option<i64> {
        self.redis
            .conn()
            .await
            .get(self.keys.stock(sale))
            .await
            .expect("a counter")
    }

    /// The users who have a claim on a sale of the stream, in order.
    pub async fn claims(&self, sale: i64) -> Vec<i64> {
        let claims = self
            .redis
            .conn()
            .await
            .smembers(self.keys.claims(sale))
            .await;
        let claims: Vec<String> = claims.expect("claims");
        // The set also has the mark under which the claims are complete, which is no number.
        let mut claims: Vec<i64> = claims
            .iter()
            .filter_map(|claim| claim.parse().ok())
            .collect();
        claims.sort_unstable();
        claims
    }

    /// Adds to a sale's stock; returns what is left then.
    pub async fn add_stock(&self, sale: i64, add: i64) -> i64 {
        let path = format!("/voucher/seckill/{sale}/stock");
        let answer = post(self.url(), &path)
            .admin()
            .json(json!({ "add": add }))
            .send()
            .await;
        answer.data().as_i64().expect("a number")
    }

    pub async fn look_up(&self, user: &SignedIn, order: i64) -> api::Answer {
        get(self.url(), &format!("/voucher-order/{order}"))
            .token(&user.token)
            .send()
            .await
    }

    /// Waits until the user's look-up of the order is answered with this code.
    pub async fn wait_for_code(&self, user: &SignedIn, order: i64, code: &str) {
        eventually(&format!("order {order} is told as {code}"), async || {
            self.look_up(user, order).await.body["code"] == code
        })
        .await;
    }

    /// Waits until the user's look-up of the order says that it is committed, or that there is none.
    pub async fn decided(&self, user: &SignedIn, order: i64) -> api::Answer {
        let mut answer = self.look_up(user, order).await;
        eventually(&format!("order {order} is decided"), async || {
            answer = self.look_up(user, order).await;
            answer.status == 200
        })
        .await;
        answer
    }

    /// All users buy at the same time, at the instances in turn, while the sale's row is locked. Returns the users who have a
    /// pending order, with its id. Such a sale closes after some seconds, so on a slow machine the last purchases are refused.
    pub async fn pending_orders<'a>(
        &self,
        users: &'a [SignedIn],
        sale: i64,
    ) -> Vec<(&'a SignedIn, i64)> {
        let urls = self.urls();
        let purchases = users.iter().zip(urls.iter().cycle());
        let purchases = purchases.map(|(user, url)| buy(url, user, sale));
        let answers = futures_util::future::join_all(purchases).await;
        let admitted = users.iter().zip(answers);
        let admitted = admitted.filter(|(_, answer)| answer.body["code"] != "UNAVAILABLE");
        let pending: Vec<_> = admitted
            .map(|(user, answer)| (user, answer.bought()))
            .collect();
        assert!(!pending.is_empty(), "nobody was admitted");
        pending
    }

    /// Waits until this number of entries is delivered and not acknowledged.
    pub async fn delivered(&self, entries: usize) {
        let mut redis = self.redis.conn().await;
        eventually(&format!("{entries} entries are delivered"), async || {
            let pending: redis::streams::StreamPendingCountReply = redis
                .xpending_count(&*self.keys.stream, "g1", "-", "+", 100)
                .await
                .expect("an answer");
            pending.ids.len() == entries
        })
        .await;
    }

    /// Waits until every entry is resolved; returns the orders, the stock and the stock counter of a sale.
    pub async fn drained(&self, sale: i64) -> (i64, i64, Option<i64>) {
        self.stream_drained().await;
        let (orders, stock) = self.tables(sale).await;
        (orders, stock, self.counter(sale).await)
    }

    /// Waits until the sale's stock counter has this value.
    pub async fn counted(&self, sale: i64, expected: i64) {
        eventually("the sale is counted", async || {
            self.counter(sale).await == Some(expected)
        })
        .await;
    }

    pub async fn stream_drained(&self) {
        let mut redis = self.redis.conn().await;
        let keys = &self.keys;
        let limit = Duration::from_secs(60);
        testkit::wait::eventually("no order is pending", limit, async || {
            let mark: Option<String> = redis.hget(&*keys.pending, "mark").await.expect("an answer");
            // What a Java node had acknowledged before we joined stays in the stream.
            let join = mark.and_then(|mark| Some(mark.split(' ').nth(2)?.to_owned()));
            let mut all = redis::pipe();
            all.cmd("XRANGE").arg(&*keys.stream);
            all.arg(format!("({}", join.as_deref().unwrap_or("0-0")))
                .arg("+")
                .arg("COUNT")
                .arg(1);
            all.cmd("XPENDING")
                .arg(&*keys.stream)
                .arg("g1")
                .arg("-")
                .arg("+")
                .arg(1);
            all.hlen(&*keys.pending);
            let found: redis::RedisResult<(Vec<redis::Value>, Vec<redis::Value>, u64)> =
                all.query_async(&mut redis).await;
            found.is_ok_and(|(entries, pending, fields)| {
                entries.is_empty() && pending.is_empty() && fields <= 2
            })
        })
        .await;
    }

    /// Waits until every order so far is so old that a look-up may say that there is no such order.
    pub async fn settled(&self) {
        let mut redis = self.redis.conn().await;
        let mut seconds = async || {
            let time = redis::cmd("TIME")
                .query_async::<(u64, u64)>(&mut redis)
                .await;
            time.expect("a time").0
        };
        let began = seconds().await;
        eventually("it is settled", async || {
            seconds().await > began + UNSURE_SECONDS + 1
        })
        .await;
    }

    /// Signs in `count` users by writing their sessions, for tests that are not about sign-in.
    pub async fn users(&self, count: i64) -> Vec<SignedIn> {
        let count = usize::try_from(count).expect("a number");
        let buyers = sessions::buyers(1_000_001, count);
        sessions::open(&self.access(), &buyers)
            .await
            .expect("sessions");
        buyers
            .into_iter()
            .map(|buyer| SignedIn {
                id: buyer.user_id.cast_signed(),
                token: buyer.token.to_str().expect("a token").to_owned(),
            })
            .collect()
    }
}

/// Registers and signs in a user through the API of the instance `base`, with the code from its Redis.
pub async fn sign_in(base: &str, redis: &mut impl AsyncCommands, phone: &str) -> SignedIn {
    post(base, &format!("/user/code?phone={phone}"))
        .send()
        .await
        .data();
    let code: String = redis
        .get(format!("login:code:{phone}"))
        .await
        .expect("a code");
    let login = json!({ "phone": phone, "code": code });
    let answer = post(base, "/user/login").json(login).send().await;
    let token = answer.data().as_str().expect("a token").to_owned();
    let me = get(base, "/user/me").token(&token).send().await;
    SignedIn {
        id: me.data()["id"].as_i64().expect("an id"),
        token,
    }
}

pub async fn buy(base: &str, user: &SignedIn, voucher: i64) -> api::Answer {
    purchase(base, user, voucher).send().await
}

fn purchase(base: &str, user: &SignedIn, voucher: i64) -> api::Call {
    post(base, &format!("/voucher-order/seckill/{voucher}")).token(&user.token)
}

pub async fn buy_eventually(base: &str, user: &SignedIn, voucher: i64) {
    eventually(&format!("sale {voucher} sells"), async || {
        buy(base, user, voucher).await.body["success"] == true
    })
    .await;
}
