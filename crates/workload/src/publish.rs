//! Publishing a flash sale through the administrator's API.

use chrono::{TimeDelta, Utc};
use hyper::header::HeaderValue;
use serde::Deserialize;

use crate::{
    Access, Error, Target,
    buyers::{LIMIT, insist},
    http::{Call, Connection},
};

/// The shop that the sales of this tool belong to, so that they are not listed with any other shop; made where it is missing.
const SHOP: &str = "压测 load tests";

/// What to do when publishing is refused.
const WAY_OUT: &str = "ADMIN_TOKEN must be the service's own (`./dev env` prints it); a strategy that is meant \
                       to fail needs a server started with --lab";

#[derive(Deserialize)]
struct Shop {
    id: u64,
    name: String,
}

/// The id of our shop.
async fn shop(
    connection: &mut Connection,
    target: &Target,
    admin_token: &HeaderValue,
) -> Result<u64, Error> {
    let call = Call::get("/shop/of/name?name=load%20tests");
    let found: Option<Vec<Shop>> =
        insist(connection, target, &call, "looking for a shop", WAY_OUT).await?;
    if let Some(shop) = found.into_iter().flatten().find(|shop| shop.name == SHOP) {
        return Ok(shop.id);
    }
    let shop = serde_json::json!({
        "name": SHOP, "typeId": 10, "images": "", "address": "127.0.0.1", "x": 120.15, "y": 30.32,
        "avgPrice": 80, "openHours": "00:00-24:00",
    });
    let call = Call::post("/shop").admin(admin_token).json(&shop);
    let made = insist(connection, target, &call, "making a shop", WAY_OUT).await?;
    made.ok_or_else(|| Error::Usage("the service made a shop without an id".to_owned()))
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
    let shop = shop(&mut connection, target, &admin_token).await?;
    let voucher = voucher(access, shop, &format!("Load test, {strategy}"), strategy, stock);
    let call = Call::post("/voucher/seckill").admin(&admin_token).json(&voucher);
    insist(&mut connection, target, &call, "publishing a sale", WAY_OUT)
        .await?
        .ok_or_else(|| Error::Usage("the service published a sale without an id".to_owned()))
}

/// What is published: a sale that began an hour ago and ends in two.
pub fn voucher(
    access: &Access,
    shop: u64,
    title: &str,
    strategy: &str,
    stock: u32,
) -> serde_json::Value {
    let now = Utc::now().with_timezone(&access.time_zone);
    let local = |time: chrono::DateTime<_>| time.format("%Y-%m-%dT%H:%M:%S").to_string();
    serde_json::json!({
        "shopId": shop,
        "title": title,
        "subTitle": "one per person",
        "rules": "made by the load tool",
        "payValue": 8_000,
        "actualValue": 10_000,
        "stock": stock,
        "beginTime": local(now - TimeDelta::hours(1)),
        "endTime": local(now + TimeDelta::hours(2)),
        "strategy": strategy,
    })
}
