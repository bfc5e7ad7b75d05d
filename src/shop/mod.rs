//! Shops and their types: reading one through the cache, listing them by type, name and distance, and
//! writing them (admin). How each read is cached is one line each in [`reads`]; what a write must
//! make everybody forget is in [`writes`].

use axum::extract::{FromRequestParts, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::cache::Kind;
use crate::error::Error;
use crate::http::extract::{Json, Params, Path};
use crate::http::reply::{self, Reply};

pub mod geo;
pub mod model;
pub mod reads;
pub mod store;
pub mod writes;

use model::{ShopChange, ShopView};
pub use reads::Shops;

/// Shops on a page of `GET /shop/of/type`.
const TYPE_PAGE: u32 = 5;

/// Shops on a page of `GET /shop/of/name`.
const NAME_PAGE: u32 = 10;

/// For learners: picks the cache policy of one read, on a server with `--lab`.
pub struct LabChoice(Option<Kind>);

impl<S: Sync> FromRequestParts<S> for LabChoice {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let Some(value) = parts.headers.get("x-lab-cache") else { return Ok(LabChoice(None)) };
        let name = value.to_str().unwrap_or_default();
        let kind = name.parse::<Kind>().map_err(|f| Error::InvalidParameter(f.to_string()))?;
        Ok(LabChoice(Some(kind)))
    }
}

/// `GET /shop/{id}`: one shop.
pub async fn get(
    State(shops): State<Shops>,
    LabChoice(choice): LabChoice,
    Path(id): Path<i64>,
) -> Result<Response, Error> {
    let shop = shops.get(id, choice).await?.ok_or(Error::ShopNotFound)?;
    // Rendered once for as long as the value is remembered.
    let body = shop.body(|shop| reply::data(shop.view(shops.zone(), None)).to_bytes());
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// Parameters of `GET /shop/of/type`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfType {
    type_id: i64,
    #[serde(default = "first_page")]
    current: u32,
    x: Option<f64>,
    y: Option<f64>,
}

/// Parameters of `GET /shop/of/name`.
#[derive(Deserialize)]
pub struct OfName {
    #[serde(default)]
    name: String,
    #[serde(default = "first_page")]
    current: u32,
}

fn first_page() -> u32 {
    1
}

/// Rows to pass over for page `current`, which counts from 1.
fn offset(current: u32, page: u32) -> Result<u64, Error> {
    let before = current
        .checked_sub(1)
        .ok_or_else(|| Error::InvalidParameter("current must be 1 or more".to_owned()))?;
    Ok(u64::from(before) * u64::from(page))
}

/// `GET /shop/of/type`: a page of a type's shops; with a point, the nearest within 5 km.
pub async fn of_type(
    State(shops): State<Shops>,
    Params(query): Params<OfType>,
) -> Reply<Vec<ShopView>> {
    let offset = offset(query.current, TYPE_PAGE)?;
    let page = match (query.x, query.y) {
        (None, None) => shops.of_type(query.type_id, offset, TYPE_PAGE).await?,
        (Some(x), Some(y)) if x.abs() <= 180.0 && y.abs() <= 85.051_128_78 => {
            shops.near(query.type_id, (x, y), offset, TYPE_PAGE).await?
        }
        (Some(_), Some(_)) => {
            let text = "x must be -180 to 180 degrees, and y -85.05 to 85.05 degrees";
            return Err(Error::InvalidParameter(text.to_owned()));
        }
        _ => return Err(Error::InvalidParameter("x and y go together".to_owned())),
    };
    Ok(reply::data(page))
}

/// `GET /shop/of/name`: a page of the shops whose name contains `name`.
pub async fn of_name(
    State(shops): State<Shops>,
    Params(query): Params<OfName>,
) -> Reply<Vec<ShopView>> {
    let offset = offset(query.current, NAME_PAGE)?;
    Ok(reply::data(shops.of_name(&query.name, offset, NAME_PAGE).await?))
}

/// `GET /shop-type/list`: all shop types, by `sort`.
pub async fn types(
    State(shops): State<Shops>,
    LabChoice(choice): LabChoice,
) -> Result<Response, Error> {
    let types = shops.types(choice).await?;
    let body = types.body(|types| reply::data(types).to_bytes());
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// `POST /shop` (admin): a new shop.
pub async fn create(State(shops): State<Shops>, Json(shop): Json<ShopChange>) -> Reply<i64> {
    shop.check_new()?;
    Ok(reply::data(shops.create(shop).await?))
}

/// `PUT /shop` (admin): changes the fields that are given.
pub async fn update(State(shops): State<Shops>, Json(change): Json<ShopChange>) -> Reply<()> {
    let id = change.id.ok_or(Error::ShopIdMissing)?;
    change.check()?;
    shops.update(id, change).await?;
    Ok(reply::done())
}
