//! A whole stack of a test's own: a database, a redis-server, and instances of the service.

use redis::AsyncCommands;
use seckill::session::{CurrentUser, SharedSessions};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use workload::{Access, Target};

use super::api::{self, ADMIN_TOKEN, post};
use super::database::TestDatabase;
use super::instance::Instance;
use testkit::proxy::Proxy;
use testkit::redis_server::RedisServer;

/// The parts, in the order in which they must end.
pub struct Stack {
    /// The service.
    pub instances: Vec<Instance>,
    /// Its Redis.
    pub redis: RedisServer,
    /// Its database.
    pub database: TestDatabase,
}

/// A user who is signed in.
#[derive(Clone, Debug)]
pub struct SignedIn {
    /// `tb_user.id`.
    pub id: i64,
    /// The session's token.
    pub token: String,
}

impl Stack {
    /// `count` instances with `--lab`.
    pub async fn lab(count: usize) -> Self {
        Self::start(count, &["--lab"]).await
    }

    /// `count` instances with these further arguments.
    pub async fn start(count: usize, args: &[&str]) -> Self {
        let database = TestDatabase::migrated().await;
        let redis = RedisServer::start_with(true).await;
        let mut stack = Stack { instances: Vec::new(), redis, database };
        for _ in 0..count {
            stack.add_instance(args).await;
        }
        stack
    }

    /// One instance with these arguments, which reaches its database and its Redis through the two proxies.
    pub async fn behind_proxies(args: &[&str]) -> (Self, Proxy, Proxy) {
        let mut stack = Stack::start(0, &[]).await;
        let database = Proxy::start(stack.database.server().to_owned()).await.unwrap();
        let redis = Proxy::start(stack.redis.address()).await.unwrap();
        let mut env = stack.env();
        env[0].1 = stack.database.url_through(database.address);
        env[1].1 = format!("redis://{}/", redis.address);
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        stack.instances.push(Instance::start(&args, &env).await);
        (stack, database, redis)
    }

    /// One more instance.
    pub async fn add_instance(&mut self, args: &[&str]) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.instances.push(Instance::start(&args, &self.env()).await);
    }

    /// The environment an instance or another command of the binary needs.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("DATABASE_URL", self.database.url().expose_secret().to_owned()),
            ("REDIS_URL", self.redis.url()),
            ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
        ]
    }

    /// What the load tool has to know.
    pub fn access(&self) -> Access {
        Access {
            database_url: self.database.url().expose_secret().to_owned(),
            redis_url: self.redis.url(),
            admin_token: ADMIN_TOKEN.to_owned(),
            time_zone: chrono_tz::Asia::Shanghai,
        }
    }

    /// Every instance, as the load tool names them.
    pub fn targets(&self) -> Vec<Target> {
        self.instances.iter().map(|instance| instance.url.parse().expect("an address")).collect()
    }

    /// The first instance's address.
    pub fn url(&self) -> &str {
        &self.instances[0].url
    }

    /// Every instance's address.
    pub fn urls(&self) -> Vec<String> {
        self.instances.iter().map(|instance| instance.url.clone()).collect()
    }

    /// The body of a sale of this stock that is on now.
    pub fn sale(stock: i64, strategy: &str) -> Value {
        json!({
            "shopId": 1, "title": "秒杀", "payValue": 100, "actualValue": 1000, "stock": stock,
            "beginTime": "2022-01-01T00:00:00", "endTime": "2037-01-01T00:00:00",
            "strategy": strategy,
        })
    }

    /// Publishes a sale that is on now; returns the voucher's id.
    pub async fn publish(&self, stock: i64, strategy: &str) -> i64 {
        self.publish_as(Self::sale(stock, strategy)).await
    }

    /// Publishes a sale; returns the voucher's id.
    pub async fn publish_as(&self, body: Value) -> i64 {
        let answer = post(self.url(), "/voucher/seckill").admin().json(body).send().await;
        answer.data().as_i64().expect("a voucher id")
    }

    /// Waits until every entry of the stream of orders is acknowledged.
    pub async fn stream_drained(&self) {
        let redis = self.redis.conn().await;
        testkit::wait::eventually(
            "the stream is empty",
            std::time::Duration::from_secs(30),
            || {
                let mut redis = redis.clone();
                async move {
                    let mut asking = redis::cmd("XLEN");
                    asking.arg("stream.orders");
                    asking.query_async::<u64>(&mut redis).await.expect("the stream's length") == 0
                }
            },
        )
        .await;
    }

    /// Registers and signs in a user through the API, reading the code where it is kept.
    pub async fn sign_in(&self, phone: &str) -> SignedIn {
        post(self.url(), &format!("/user/code?phone={phone}")).send().await.data();
        let mut redis = self.redis.conn().await;
        let code: String = redis.get(format!("login:code:{phone}")).await.expect("a code");
        let login = json!({ "phone": phone, "code": code });
        let answer = post(self.url(), "/user/login").json(login).send().await;
        let token = answer.data().as_str().expect("a token").to_owned();
        let me = api::get(self.url(), "/user/me").token(&token).send().await;
        SignedIn { id: me.data()["id"].as_i64().expect("an id"), token }
    }

    /// Signs in `count` users the short way, for tests that are not about signing in.
    pub async fn users(&self, count: i64) -> Vec<SignedIn> {
        let client =
            seckill::connection::redis::client(&self.redis.url().into()).expect("a client");
        let limit = std::time::Duration::from_secs(10);
        let redis = seckill::connection::redis::connect(&client, limit).await.expect("connect");
        let sessions = SharedSessions::new(redis);
        let mut users = Vec::new();
        for id in 1_000_001..=1_000_000 + count {
            let user = CurrentUser { id, nick_name: format!("user_{id}"), icon: String::new() };
            let token = sessions.create(&user).await.expect("a session");
            users.push(SignedIn { id, token: token.as_str().to_owned() });
        }
        users
    }
}

/// Asks `base` for one voucher.
pub async fn buy(base: &str, user: &SignedIn, voucher: i64) -> api::Answer {
    post(base, &format!("/voucher-order/seckill/{voucher}")).token(&user.token).send().await
}
