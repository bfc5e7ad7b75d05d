//! Data types of shops: cached form, reply, and request body. No I/O.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::clock::Zone;
use crate::error::Error;

// The serde form of `Shop` is the cached one, under `cache:shop:{id}`: nulls omitted, dates as milliseconds since 1970, as a
// Java node writes it.
/// A shop in a reply: dates local, and, in a search around a point, the distance to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct Shop {
    #[schema(example = 1)]
    pub id: i64,
    #[schema(example = "桥头茶餐厅")]
    pub name: String,
    /// The id of its shop type.
    #[schema(example = 1)]
    pub type_id: i64,
    /// Addresses of pictures, between commas.
    #[serde(default)]
    #[schema(required = true)]
    pub images: String,
    /// The district.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false, example = "大关")]
    pub area: Option<String>,
    #[serde(default)]
    #[schema(required = true, example = "金华路 29 号")]
    pub address: String,
    /// Longitude, degrees.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false, example = 120.149)]
    pub x: Option<f64>,
    /// Latitude, degrees.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false, example = 30.316)]
    pub y: Option<f64>,
    /// Average price of a visit, yuan.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false, example = 80)]
    pub avg_price: Option<i64>,
    /// Vouchers sold so far.
    #[serde(default)]
    #[schema(required = true)]
    pub sold: i64,
    /// Number of comments.
    #[serde(default)]
    #[schema(required = true)]
    pub comments: i64,
    /// 0 to 50: the stars, times ten.
    #[serde(default)]
    #[schema(required = true, example = 45)]
    pub score: i64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false, example = "10:00-22:00")]
    pub open_hours: Option<String>,
    /// Local, without an offset.
    #[serde(
        with = "chrono::serde::ts_milliseconds_option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2022-01-04T09:42:39")]
    pub create_time: Option<DateTime<Utc>>,
    /// Local, without an offset.
    #[serde(
        with = "chrono::serde::ts_milliseconds_option",
        skip_serializing_if = "Option::is_none",
        default
    )]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2022-01-04T09:42:39")]
    pub update_time: Option<DateTime<Utc>>,
    /// Metres to the point of the search; only with one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false)]
    pub distance: Option<f64>,
}

impl Shop {
    /// The form in a reply.
    pub fn view(&self, zone: Zone) -> Value {
        // Our own types always have a JSON form: no map with keys that are not text.
        let mut view = serde_json::to_value(self).unwrap_or_default();
        for (name, time) in [
            ("createTime", self.create_time),
            ("updateTime", self.update_time),
        ] {
            if let Some(time) = time {
                view[name] = json!(zone.to_local(time));
            }
        }
        view
    }
}

/// A shop type. Its serde form is the one in replies and under `cache:shop:type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct ShopType {
    #[schema(example = 1)]
    pub id: i64,
    #[serde(default)]
    #[schema(required = true, example = "美食")]
    pub name: String,
    /// Where its picture is.
    #[serde(default)]
    #[schema(required = true)]
    pub icon: String,
    /// Its position in the list.
    #[serde(default)]
    #[schema(required = true, example = 1)]
    pub sort: i64,
}

/// The body of `POST /shop` and `PUT /shop`. Absent fields stay as they are; the id and the times are
/// never taken from a new shop's body.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct ShopChange {
    /// Which shop to change; ignored for a new one.
    #[schema(example = 1)]
    pub id: Option<i64>,
    /// At most 128 characters, not only spaces.
    #[schema(max_length = 128, example = "桥头茶餐厅")]
    pub name: Option<String>,
    /// The id of a shop type.
    #[schema(minimum = 1, example = 1)]
    pub type_id: Option<i64>,
    /// Addresses of pictures, between commas; at most 1024 characters.
    #[schema(max_length = 1024)]
    pub images: Option<String>,
    /// The district.
    #[schema(max_length = 128, example = "大关")]
    pub area: Option<String>,
    #[schema(max_length = 255, example = "金华路 29 号")]
    pub address: Option<String>,
    /// Longitude, degrees.
    #[schema(minimum = -180, maximum = 180, example = 120.149)]
    pub x: Option<f64>,
    /// Latitude, degrees.
    #[schema(minimum = -85.05112878, maximum = 85.05112878, example = 30.316)]
    pub y: Option<f64>,
    /// Average price of a visit, yuan.
    #[schema(minimum = 0, maximum = 2147483647, example = 80)]
    pub avg_price: Option<i64>,
    /// Vouchers sold so far.
    #[schema(minimum = 0, maximum = 2147483647, example = 0)]
    pub sold: Option<i64>,
    /// Number of comments.
    #[schema(minimum = 0, maximum = 2147483647, example = 0)]
    pub comments: Option<i64>,
    /// The stars, times ten.
    #[schema(minimum = 0, maximum = 2147483647, example = 45)]
    pub score: Option<i64>,
    #[schema(max_length = 32, example = "10:00-22:00")]
    pub open_hours: Option<String>,
}

impl ShopChange {
    /// Checks that the table and the GEO index can hold the values.
    pub fn check(&self) -> Result<(), Error> {
        Error::require_length("name", self.name.as_deref(), 128)?;
        Error::require_length("images", self.images.as_deref(), 1024)?;
        Error::require_length("area", self.area.as_deref(), 128)?;
        Error::require_length("address", self.address.as_deref(), 255)?;
        Error::require_length("openHours", self.open_hours.as_deref(), 32)?;
        Error::require(
            self.name
                .as_ref()
                .is_none_or(|name| !name.trim().is_empty()),
            "name must not be empty",
        )?;
        // The limits of Redis's GEO index (EPSG:3857).
        let within = |value: Option<f64>, limit: f64| value.is_none_or(|v| v.abs() <= limit);
        Error::require(
            within(self.x, 180.0),
            "x must be a longitude, -180 to 180 degrees",
        )?;
        Error::require(
            within(self.y, 85.05112878),
            "y must be a latitude, -85.05 to 85.05 degrees",
        )?;
        for (name, value) in [
            ("avgPrice", self.avg_price),
            ("sold", self.sold),
            ("comments", self.comments),
            ("score", self.score),
        ] {
            let is_in_range = value.is_none_or(|value| (0..=i64::from(i32::MAX)).contains(&value));
            Error::require(is_in_range, &format!("{name} must be 0 to 2147483647"))?;
        }
        Error::require(
            self.type_id.is_none_or(|id| id > 0),
            "typeId must be positive",
        )
    }

    /// As [`ShopChange::check`], and checks that the fields a new shop requires are there.
    pub fn check_new(&self) -> Result<(), Error> {
        self.check()?;
        Error::require(self.name.is_some(), "name is missing")?;
        Error::require(self.type_id.is_some(), "typeId is missing")?;
        Error::require(self.address.is_some(), "address is missing")?;
        Error::require(self.x.is_some() && self.y.is_some(), "x and y are missing")
    }
}

/// A page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Paging {
    /// Rows before it.
    pub offset: u64,
    /// Rows on it at most.
    pub limit: u32,
}

impl Paging {
    /// Page `current`, which counts from 1, of `size` rows each.
    pub fn new(current: u32, size: u32) -> Result<Self, Error> {
        Error::require(current >= 1, "current must be 1 or more")?;
        Ok(Paging {
            offset: u64::from(current - 1) * u64::from(size),
            limit: size,
        })
    }
}
