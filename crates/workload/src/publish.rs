//! Publishing a flash sale through the administrator's API.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use redis::AsyncCommands;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    Access, Error, Target,
    buyers::{LIMIT, insist},
    http::{Call, Connection},
    redis_connection,
};

/// How often it is looked whether a sale is open.
const POLL: Duration = Duration::from_millis(20);

/// The shop that the sales of this tool belong to, so that they are not listed with any other shop; made where it is missing.
const SHOP: &str = "压测 load tests";

#[derive(Deserialize)]
struct Shop {
    id: u64,
    name: String,
}

/// Publishes a [`voucher`], and returns its id.
///
/// # Errors
/// [`Error::Refused`] when the token is wrong or the strategy is not allowed on this server.
pub async fn flash_sale(
    access: &Access,
    target: &Target,
    strategy: &str,
    stock: u32,
) -> Result<u64, Error> {
    let admin_token = access.admin_header("publishing a sale")?;
    let mut connection = Connection::new(target.clone(), LIMIT);
    let call = Call::get("/shop/of/name?name=load%20tests");
    let found: Option<Vec<Shop>> = insist(&mut connection, &call, "looking for a shop").await?;
    let existing_shop = found.into_iter().flatten().find(|shop| shop.name == SHOP);
    let mut make = async |path: &str, body: &Value, what: &'static str| {
        let call = Call::post(path).admin(&admin_token).json(body);
        let id: Option<u64> = insist(&mut connection, &call, what).await?;
        id.ok_or_else(|| Error::Usage(format!("{what}: the service told no id")))
    };
    let new_shop = json!({
        "name": SHOP, "typeId": 10, "images": "", "address": "127.0.0.1", "x": 120.15, "y": 30.32,
        "avgPrice": 80, "openHours": "00:00-24:00",
    });
    let shop = match existing_shop {
        Some(shop) => shop.id,
        None => make("/shop", &new_shop, "making a shop").await?,
    };
    let voucher = voucher(
        access,
        shop,
        &format!("Load test, {strategy}"),
        strategy,
        stock,
    );
    make("/voucher/seckill", &voucher, "publishing a sale").await
}

/// Waits until a sale on the strategy `stream` is open, which it is once it was counted.
///
/// # Errors
/// [`Error::Redis`]; [`Error::Usage`] where it does not open in time.
pub async fn wait_until_open(access: &Access, voucher_id: u64) -> Result<(), Error> {
    let mut redis = redis_connection::connect(&access.redis_url).await?;
    let keys = access.keys();
    let failed = |source| Error::Redis {
        what: "while a sale opened",
        source,
    };
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        let mark: Option<String> = redis.hget(keys.pending(), "mark").await.map_err(failed)?;
        let open: Option<String> = redis.get(keys.open(voucher_id)).await.map_err(failed)?;
        if mark.is_some() && mark == open {
            return Ok(());
        }
        sleep(POLL).await;
    }
    Err(Error::Usage(format!("sale {voucher_id} does not open")))
}

/// What is published: a sale that is [on](set_times). Without the name of a strategy it has the node's own.
pub fn voucher(access: &Access, shop: u64, title: &str, strategy: &str, stock: u32) -> Value {
    let mut voucher = json!({
        "shopId": shop,
        "type": 1,
        "title": title,
        "subTitle": "one per person",
        "rules": "made by the load tool",
        "payValue": 8_000,
        "actualValue": 10_000,
        "stock": stock,
    });
    set_times(&mut voucher, access, "%Y-%m-%dT%H:%M:%S");
    if !strategy.is_empty() {
        voucher["strategy"] = strategy.into();
    }
    voucher
}

/// Makes it a sale that began yesterday and ends tomorrow, in whatever zone a node reads its times.
pub fn set_times(voucher: &mut Value, access: &Access, format: &str) {
    let now = Utc::now().with_timezone(&access.time_zone);
    for (name, days) in [("beginTime", -1), ("endTime", 1)] {
        let time = now + TimeDelta::days(days);
        voucher[name] = time.format(format).to_string().into();
    }
}
