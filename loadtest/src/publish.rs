//! Publishing a flash sale through the administrator's API.

use chrono::{TimeDelta, Utc};
use hyper::{Method, body::Bytes, header::HeaderValue};

use crate::{
    Access, Fault, Target,
    buyers::{LIMIT, insist},
    http::{Call, Connection},
};

/// The shop that `seckill seed` makes; the sales of this tool belong to it.
const SHOP_ID: u64 = 1;

/// Publishes a sale that began an hour ago and ends in two, and returns its voucher's id.
///
/// # Errors
/// [`Fault::Refused`] when the token is wrong or the strategy is not allowed on this server.
pub async fn flash_sale(
    access: &Access,
    target: &Target,
    strategy: &str,
    stock: u32,
) -> Result<u64, Fault> {
    if access.admin_token.is_empty() {
        return Err(Fault::Usage(
            "publishing a sale needs the administrator's token: set ADMIN_TOKEN to the service's \
             own (`eval \"$(./dev env)\"`) or give --admin-token"
                .to_owned(),
        ));
    }
    let now = Utc::now().with_timezone(&access.time_zone);
    let local = |time: chrono::DateTime<_>| time.format("%Y-%m-%dT%H:%M:%S").to_string();
    let voucher = serde_json::json!({
        "shopId": SHOP_ID,
        "title": format!("Load test, {strategy}"),
        "subTitle": "one per person",
        "rules": "made by the load tool",
        "payValue": 8_000,
        "actualValue": 10_000,
        "stock": stock,
        "beginTime": local(now - TimeDelta::hours(1)),
        "endTime": local(now + TimeDelta::hours(2)),
        "strategy": strategy,
    });
    let mut call = Call::new(Method::POST, "/voucher/seckill");
    call.json = Some(Bytes::from(voucher.to_string()));
    call.admin_token = Some(HeaderValue::from_str(&access.admin_token).map_err(|_| {
        Fault::Usage("the administrator's token cannot be sent in a header".to_owned())
    })?);
    let way_out = "ADMIN_TOKEN must be the service's own (`./dev env` prints it); a strategy that \
                   is meant to fail needs a server started with --lab; shop 1 comes from \
                   `seckill seed`.";
    let mut connection = Connection::new(target.clone(), LIMIT);
    insist(&mut connection, target, &call, "publishing a sale", way_out)
        .await?
        .ok_or_else(|| Fault::Usage("the service published a sale without an id".to_owned()))
}
