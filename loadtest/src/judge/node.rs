//! A node of the course, by its API: signing in, publishing, and shops. A failure is one sentence that says what to do.

use std::fmt;

use hyper::{Method, header::HeaderValue};
use redis::{AsyncCommands, RedisError};
use redis_link::RoutedConnection;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use workload::{
    Access, Error, Target,
    buyers::{Buyer, LIMIT, insist},
    http::{Call, Connection},
    publish,
    reply::Envelope,
};

use super::{keys, traces::redis_error};

#[derive(Deserialize)]
struct User {
    id: u64,
}

/// Sends one request, and insists on success; a failure says what to do.
async fn ask<T: DeserializeOwned>(node: &Target, call: Call) -> Result<Option<T>, Error> {
    let path = call.path.split('?').next().unwrap_or_default();
    let asked = format!("{} {path}", call.method);
    let mut connection = Connection::new(node.clone(), LIMIT);
    let answer = insist(&mut connection, &call, "judging").await;
    answer.map_err(|error| {
        Error::Usage(match error {
            Error::Refused { code, message, .. } => {
                let why = if message.is_empty() { code } else { message };
                format!(
                    "{node} refused {asked} ({why}): look into your node's log, mend that, and judge again"
                )
            }
            Error::Unreachable { reason, .. } => format!(
                "{node} gives no Result of the course (success, errorMsg, data) to {asked}: {reason}. Start your node, and name \
                 its own address in --targets, and no page or proxy before it"
            ),
            other => other.to_string(),
        })
    })
}

/// Signs in with the code that the node wrote into Redis.
pub async fn sign_in(
    node: &Target,
    redis_url: &str,
    redis: RoutedConnection,
    phone: &str,
) -> Result<Buyer, Error> {
    ask::<Value>(node, Call::post(format!("/user/code?phone={phone}"))).await?;
    let Some(code) = find_code(redis_url, redis, phone).await? else {
        return Err(Error::Usage(format!(
            "{node} sent a code, and login:code:{phone} is not in this Redis: name your node's own Redis in --redis-url, with \
             its database as in redis://127.0.0.1:6379/0 (a stage that keeps codes in the HTTP session cannot be judged)"
        )));
    };
    let login = json!({ "phone": phone, "code": code });
    let token: Option<String> = ask(node, Call::post("/user/login").json(&login)).await?;
    let header = |scheme: &str| {
        let token = token.as_ref()?;
        HeaderValue::try_from(format!("{scheme}{token}")).ok()
    };
    let (Some(token), Some(bearer)) = (header(""), header("Bearer ")) else {
        return Err(Error::Usage(format!(
            "{node} signed {phone} in without a token in `data`: return Result.ok(token), as the course does"
        )));
    };
    match user_id(node, &token).await {
        Ok(user_id) => Ok(Buyer { user_id, token }),
        // Some nodes take the token as RFC 6750 writes it.
        Err(error) => match user_id(node, &bearer).await {
            Ok(user_id) => Ok(Buyer {
                user_id,
                token: bearer,
            }),
            Err(_) => Err(error),
        },
    }
}

/// The code for this phone: under the course's key, or under one of its author's that has the phone in its name.
async fn find_code(
    redis_url: &str,
    mut redis: RoutedConnection,
    phone: &str,
) -> Result<Option<String>, Error> {
    let course = format!("login:code:{phone}");
    let others = keys::find_matching(redis_url, &format!("*{phone}")).await?;
    for key in [course].into_iter().chain(others) {
        if keys::kind(&mut redis, &key).await? != "string" {
            continue;
        }
        let code: Result<Option<String>, RedisError> = redis.get(&key).await;
        let code = code.map_err(|source| redis_error(&source))?;
        // Some serializers write text with its quotes.
        let code = code.unwrap_or_default().trim_matches('"').to_owned();
        if code.len() >= 4 && code.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Some(code));
        }
    }
    Ok(None)
}

/// Whose session the token is at this node.
pub async fn user_id(node: &Target, token: &HeaderValue) -> Result<u64, Error> {
    let user: Option<User> = ask(node, Call::get("/user/me").token(token)).await?;
    user.map(|user| user.id).ok_or_else(|| {
        Error::Usage(format!(
            "{node} answered GET /user/me without the user: return Result.ok(UserHolder.getUser())"
        ))
    })
}

/// How nodes read times that do not read Java's `2026-11-30T06:24:34`: as an `ObjectMapper` of their own does, or Go.
const OTHER_TIMES: [&str; 3] = [
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M:%S%:z",
];

/// Publishes a sale of this shop, with its times as the node reads them; returns its voucher's id.
pub async fn publish(
    node: &Target,
    access: &Access,
    shop: u64,
    strategy: &str,
    stock: u32,
) -> Result<u64, Error> {
    let mut voucher = publish::voucher(access, shop, "judge", strategy, stock);
    // On the shelf, for nodes that do not say so by themselves.
    voucher["status"] = 1.into();
    let send = async |voucher: &Value| {
        let call = Call::post("/voucher/seckill").json(voucher);
        ask(node, as_administrator(call, access)?).await
    };
    let mut answer: Result<Option<u64>, Error> = send(&voucher).await;
    for format in OTHER_TIMES {
        if answer.is_ok() {
            break;
        }
        publish::set_times(&mut voucher, access, format);
        answer = send(&voucher).await.or(answer);
    }
    answer?.ok_or_else(|| {
        Error::Usage(format!(
            "{node} published a sale without its id in `data`: return Result.ok(voucher.getId()), as the course does"
        ))
    })
}

/// With the administrator's token, where there is one: only nodes of this project ask for it.
fn as_administrator(call: Call, access: &Access) -> Result<Call, Error> {
    if access.admin_token.is_empty() {
        return Ok(call);
    }
    Ok(call.admin(&access.admin_header("publishing")?))
}

/// What a node says of a shop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShopReply {
    /// The shop, by its name.
    Shop(String),
    /// A refusal: there is no such shop.
    Refused(String),
    /// No reply of the course at all.
    Other(String),
}

impl fmt::Display for ShopReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shop(name) => write!(f, "\"{name}\""),
            Self::Refused(text) | Self::Other(text) => f.write_str(text),
        }
    }
}

/// Reads a shop, signed in as this user: some nodes show shops to users only.
pub async fn read_shop(node: Target, token: HeaderValue, shop: u64) -> ShopReply {
    let mut connection = Connection::new(node, LIMIT);
    let call = Call::get(format!("/shop/{shop}")).token(&token);
    let response = match connection.send(&call).await {
        Ok(response) => response,
        Err(failure) => return ShopReply::Other(failure.to_string()),
    };
    let Ok(envelope) = serde_json::from_slice::<Envelope<Value>>(&response.body) else {
        return ShopReply::Other(format!("HTTP {}", response.status));
    };
    let data = envelope.data.unwrap_or_default();
    match data["name"].as_str() {
        Some(name) if envelope.success && data["id"].as_u64() == Some(shop) => {
            ShopReply::Shop(name.to_owned())
        }
        _ => ShopReply::Refused(
            envelope
                .error_msg
                .unwrap_or_else(|| format!("HTTP {}, without the shop", response.status)),
        ),
    }
}

/// Makes a shop with this name.
pub async fn make_shop(node: &Target, access: &Access, name: &str) -> Result<(), Error> {
    let shop = json!({
        "name": name, "typeId": 1, "images": "", "address": "to be removed", "x": 120.15, "y": 30.32, "avgPrice": 80,
        "sold": 0, "comments": 0, "score": 37, "openHours": "00:00-24:00",
    });
    let call = as_administrator(Call::post("/shop").json(&shop), access)?;
    ask::<Value>(node, call).await.map(drop)
}

/// Gives a shop another name.
pub async fn rename_shop(
    node: &Target,
    access: &Access,
    shop: u64,
    name: &str,
) -> Result<(), Error> {
    let change = json!({ "id": shop, "name": name });
    let call = Call::new(Method::PUT, "/shop").json(&change);
    let call = as_administrator(call, access)?;
    ask::<Value>(node, call).await.map(drop)
}

#[cfg(test)]
mod tests {
    use chrono::{TimeZone, Utc};

    use super::*;

    #[test]
    fn times_are_written_as_mappers_and_go_read_them() {
        let time = Utc.with_ymd_and_hms(2026, 11, 30, 6, 24, 34).unwrap();
        let written = OTHER_TIMES.map(|format| time.format(format).to_string());
        let expected = [
            "2026-11-30 06:24:34",
            "2026-11-30 06:24",
            "2026-11-30T06:24:34+00:00",
        ];
        assert_eq!(written, expected);
    }
}
