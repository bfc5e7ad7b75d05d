//! Handlers of shops and shop types: one shop through the cache, lists by type, name and distance, and
//! writes (admin). Caching is in [`reads`], invalidation in [`writes`].

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::error::Error;
use crate::http::docs::{Done, Success};
use crate::http::extract::{ADMIN_BODY, Idempotent, Json, Params, Path};
use crate::http::reply::{self, Reply};
use crate::idempotency::RecordedWrite;
use cache::ReadStrategy;

pub mod filter;
pub mod geo;
pub mod keys;
pub mod model;
pub mod reads;
pub mod store;
pub mod writes;

use model::{Paging, Shop, ShopChange, ShopType};
use reads::ListQuery;
pub use reads::Shops;

/// Shops on a page of `GET /shop/of/type`.
const TYPE_PAGE: u32 = 5;

/// Shops on a page of `GET /shop/of/name`.
const NAME_PAGE: u32 = 10;

/// The read strategy that a request chose.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct LabReadStrategy {
    /// Chooses the cache's read strategy for this request; takes effect on a server with `--lab` only.
    #[param(
        rename = "x-lab-cache", value_type = Option<String>, nullable = false,
        pattern = "^(cache-aside|null-caching|mutex|logical-expiry|layered)$"
    )]
    choice: Option<ReadStrategy>,
}

impl<S: Sync> FromRequestParts<S> for LabReadStrategy {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let Some(value) = parts.headers.get("x-lab-cache") else {
            return Ok(Self { choice: None });
        };
        let name = value.to_str().unwrap_or_default();
        let strategy = name
            .parse::<ReadStrategy>()
            .map_err(|error| Error::InvalidParameter(error.to_string()))?;
        Ok(Self {
            choice: Some(strategy),
        })
    }
}

/// One shop.
///
/// The requests per second for one shop are limited, so that a hot one does not crowd out the others.
#[utoipa::path(
    get, path = "/shop/{id}", tag = "shop",
    params(("id" = i64, Path, description = "The shop's id.", example = 1), LabReadStrategy),
    responses((status = 200, body = Success<Shop>, description = "The shop.")),
    extensions(("x-codes" = json!(["SHOP_NOT_FOUND", "TOO_MANY_REQUESTS"]))),
)]
pub async fn get(
    State(shops): State<Shops>,
    LabReadStrategy { choice }: LabReadStrategy,
    Path(id): Path<i64>,
) -> Result<Response, Error> {
    let shop = shops.get(id, choice).await?.ok_or(Error::ShopNotFound)?;
    // Rendered once for as long as the value is in memory.
    Ok(reply::json(shop.rendered(|shop| {
        reply::data(shop.view(shops.0.zone)).to_bytes()
    })))
}

/// Parameters of `GET /shop/of/type`.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct ByTypeQuery {
    /// The id of a shop type.
    #[param(example = 1)]
    type_id: i64,
    /// The page; pages count from 1.
    #[serde(default = "first_page")]
    #[param(value_type = Option<i64>, minimum = 1, maximum = 4_294_967_295_i64, example = 1)]
    current: u32,
    /// The point's longitude, degrees. With `y`, or not at all.
    #[param(minimum = -180, maximum = 180, example = 120.149)]
    x: Option<f64>,
    /// The point's latitude, degrees.
    #[param(minimum = -85.05112878, maximum = 85.05112878, example = 30.316)]
    y: Option<f64>,
}

/// Parameters of `GET /shop/of/name`.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ByNameQuery {
    /// A part of the name; all shops where it is empty.
    #[serde(default)]
    #[param(example = "KTV")]
    name: String,
    /// The page; pages count from 1.
    #[serde(default = "first_page")]
    #[param(value_type = Option<i64>, minimum = 1, maximum = 4_294_967_295_i64, example = 1)]
    current: u32,
}

fn first_page() -> u32 {
    1
}

/// A page of a type's shops, five of them; with a point, the nearest within 5 km.
#[utoipa::path(
    get, path = "/shop/of/type", tag = "shop", params(ByTypeQuery),
    responses((
        status = 200, body = Success<Vec<Shop>>,
        description = "By id; with a point, by distance, and each with its `distance` in metres."
    )),
)]
pub async fn of_type(
    State(shops): State<Shops>,
    Params(query): Params<ByTypeQuery>,
) -> Result<Response, Error> {
    let type_id = query.type_id;
    let page = Paging::new(query.current, TYPE_PAGE)?;
    match (query.x, query.y) {
        (None, None) => list(&shops, ListQuery::Type(type_id, page)).await,
        (Some(x), Some(y)) if x.abs() <= 180.0 && y.abs() <= 85.051_128_78 => {
            list(
                &shops,
                ListQuery::Near(type_id, (x.to_bits(), y.to_bits()), page),
            )
            .await
        }
        (Some(_), Some(_)) => {
            let text = "x must be -180 to 180 degrees, and y -85.05 to 85.05 degrees";
            Err(Error::InvalidParameter(text.to_owned()))
        }
        _ => Err(Error::InvalidParameter("x and y go together".to_owned())),
    }
}

/// The reply of a list, which is read once, however many ask at the same time.
async fn list(shops: &Shops, query: ListQuery) -> Result<Response, Error> {
    let body = shops.0.lists.get(query.clone(), async || {
        Ok(reply::data(shops.list(&query).await?).to_bytes())
    });
    Ok(reply::json(body.await?))
}

/// A page of the shops whose name contains a text, ten of them.
#[utoipa::path(
    get, path = "/shop/of/name", tag = "shop", params(ByNameQuery),
    responses((status = 200, body = Success<Vec<Shop>>, description = "By id.")),
)]
pub async fn of_name(
    State(shops): State<Shops>,
    Params(query): Params<ByNameQuery>,
) -> Result<Response, Error> {
    let page = Paging::new(query.current, NAME_PAGE)?;
    list(&shops, ListQuery::Name(query.name, page)).await
}

/// All shop types, in their order.
#[utoipa::path(
    get, path = "/shop-type/list", tag = "shop", params(LabReadStrategy),
    responses((status = 200, body = Success<Vec<ShopType>>, description = "By `sort`.")),
)]
pub async fn types(
    State(shops): State<Shops>,
    LabReadStrategy { choice }: LabReadStrategy,
) -> Result<Response, Error> {
    let types = shops.types(choice).await?;
    Ok(reply::json(
        types.rendered(|types| reply::data(types).to_bytes()),
    ))
}

/// A new shop (admin).
///
/// `name`, `typeId`, `address`, `x` and `y` are needed; `id` is ignored.
#[utoipa::path(
    post, path = "/shop", tag = "shop", security(("x-admin-token" = [])), request_body = ShopChange,
    params(Idempotent), extensions(("x-codes" = json!(["OUTCOME_UNKNOWN"]))),
    responses((status = 200, description = "The shop's id.", body = Success<i64>, example = json!({"success": true, "data": 4}))),
)]
pub async fn create(
    State(shops): State<Shops>,
    Idempotent { key }: Idempotent,
    Json(shop): Json<ShopChange, ADMIN_BODY>,
) -> Reply<i64> {
    shop.check_new()?;
    Ok(reply::data(
        shops
            .create(RecordedWrite::new("shop", key, &shop), shop)
            .await?,
    ))
}

/// Changes those fields of a shop that are given (admin).
#[utoipa::path(
    put, path = "/shop", tag = "shop", security(("x-admin-token" = [])), request_body = ShopChange,
    responses((status = 200, body = Done, description = "Changed, and invalidated in every cache.")),
    extensions(("x-codes" = json!(["SHOP_ID_MISSING", "SHOP_NOT_FOUND", "OUTCOME_UNKNOWN"]))),
)]
pub async fn update(
    State(shops): State<Shops>,
    Json(change): Json<ShopChange, ADMIN_BODY>,
) -> Reply<()> {
    let id = change.id.ok_or(Error::ShopIdMissing)?;
    change.check()?;
    shops.update(id, change).await?;
    Ok(reply::done())
}
