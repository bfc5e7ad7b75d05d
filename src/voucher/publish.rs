//! Validation of vouchers and sales to publish. Nothing is stored here.

use chrono::{DateTime, NaiveDateTime, SubsecRound, Timelike, Utc};
use serde::{Deserialize, Serialize};
use strategies::Strategy;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};

use crate::clock::Zone;
use crate::error::Error;

/// Largest stock of one voucher; more is refused as a mistake.
pub const MAX_STOCK: i64 = 10_000_000;

/// Largest stock of a sale on the strategy `unit-rows`, each unit of which is a row.
pub const MOST_UNITS: i64 = 10_000;

/// Largest value, cents (ten million yuan); more is refused as a mistake.
const MAX_VALUE: i64 = 1_000_000_000;

/// The last second a TIMESTAMP column can hold, seconds since 1970.
const TIMESTAMP_MAX: i64 = i32::MAX as i64;

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// The body of `POST /voucher`. Fields this service does not know are ignored.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct NewVoucher {
    /// The shop it is for.
    #[schema(example = 1)]
    pub shop_id: i64,
    /// Not only spaces.
    #[schema(min_length = 1, max_length = 255, example = "100 元代金券")]
    pub title: String,
    #[schema(max_length = 255, example = "周一至周日均可使用")]
    pub sub_title: Option<String>,
    #[schema(max_length = 1024, example = "全场通用；无需预约")]
    pub rules: Option<String>,
    /// What it costs, cents.
    #[schema(minimum = 0, maximum = 1_000_000_000, example = 8000)]
    pub pay_value: i64,
    /// What it is worth, cents.
    #[schema(minimum = 0, maximum = 1_000_000_000, example = 10000)]
    pub actual_value: i64,
    /// 1 on the shelf (also where absent), 2 off, 3 expired.
    #[schema(minimum = 1, maximum = 3, example = 1)]
    pub status: Option<u8>,
}

/// The body of `POST /voucher/seckill`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct NewSeckillVoucher {
    #[serde(flatten)]
    pub voucher: NewVoucher,
    /// How many are put on sale.
    #[schema(minimum = 1, maximum = 10_000_000, example = 100)]
    pub stock: i64,
    /// The sale's first second, in the server's zone; up to January 2038.
    #[schema(
        value_type = String, example = "2024-01-01T00:00:00",
        pattern = r"^(19[7-9]\d|20[0-3]\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d$"
    )]
    pub begin_time: NaiveDateTime,
    /// The first second after the sale, in the server's zone; up to January 2038.
    #[schema(
        value_type = String, example = "2037-12-31T00:00:00",
        pattern = r"^(19[7-9]\d|20[0-3]\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d$"
    )]
    pub end_time: NaiveDateTime,
    #[schema(schema_with = strategy_schema)]
    pub strategy: Option<String>,
}

/// The names of the ladder, for the API's document.
fn strategy_schema() -> Schema {
    let says = "How it sells; `reentrant-lock` where absent. Those that fail on purpose need a server with `--lab`.";
    let names = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(says));
    let names = names.enum_values(Some(Strategy::ALL.map(Strategy::name)));
    let none = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new().item(none).item(names).build().into()
}

/// The body of `POST /voucher/seckill/{id}/stock`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MoreStock {
    /// How many more are put on sale.
    #[schema(minimum = 1, maximum = 10_000_000, example = 10)]
    pub add: i64,
}

/// A sale that passed validation.
#[derive(Debug)]
pub struct NewSale {
    /// Put on sale in all; at least 1.
    pub stock: i64,
    /// First instant of the window.
    pub begin: DateTime<Utc>,
    /// First instant after the window.
    pub end: DateTime<Utc>,
    /// How it sells.
    pub strategy: Strategy,
}

impl NewSale {
    /// How many are put on sale as rows of `tb_stock_unit`; the others are the sale's stock.
    pub fn units(&self) -> i64 {
        if self.strategy == Strategy::UnitRows {
            self.stock
        } else {
            0
        }
    }
}

impl NewVoucher {
    /// Refuses values that the tables cannot hold or that are out of range.
    pub fn check(&self) -> Result<(), Error> {
        Error::require(!self.title.trim().is_empty(), "title must not be empty")?;
        Error::require_length("title", Some(&self.title), 255)?;
        Error::require_length("subTitle", self.sub_title.as_deref(), 255)?;
        Error::require_length("rules", self.rules.as_deref(), 1024)?;
        for (name, value) in [
            ("payValue", self.pay_value),
            ("actualValue", self.actual_value),
        ] {
            let is_in_range = (0..=MAX_VALUE).contains(&value);
            Error::require(is_in_range, &format!("{name} must be 0 to 10^9 cents"))?;
        }
        Error::require(
            self.status.is_none_or(|status| (1..=3).contains(&status)),
            "status must be 1 (on the shelf), 2 (off) or 3 (expired)",
        )
    }
}

impl NewSeckillVoucher {
    /// Refuses values out of range, and unsafe strategies outside the lab.
    pub fn check(&self, zone: Zone, lab: bool) -> Result<NewSale, Error> {
        self.voucher.check()?;
        Error::require(
            (1..=MAX_STOCK).contains(&self.stock),
            "stock must be 1 to 10000000",
        )?;
        let begin = instant(zone, self.begin_time, "beginTime")?;
        let end = instant(zone, self.end_time, "endTime")?;
        Error::require(begin < end, "endTime must be after beginTime")?;
        let strategy = match self.strategy.as_deref() {
            None => Strategy::default(),
            Some(name) => name.parse().map_err(|_| {
                let names = Strategy::ALL.map(Strategy::name).join(", ");
                Error::InvalidParameter(format!("strategy must be one of {names}"))
            })?,
        };
        if strategy.is_unsafe() && !lab {
            return Err(Error::LabOnly(strategy.name()));
        }
        let sale = NewSale {
            stock: self.stock,
            begin,
            end,
            strategy,
        };
        Error::require(
            sale.units() <= MOST_UNITS,
            "a sale on unit-rows has a row for each unit, so its stock must be 1 to 10000",
        )?;
        Ok(sale)
    }
}

/// The instant, as the column holds it: in whole seconds.
fn instant(zone: Zone, local: NaiveDateTime, name: &str) -> Result<DateTime<Utc>, Error> {
    let otherwise = format!(
        "{name} must be a time that exists in the server's zone, from 1970 to January 2038"
    );
    // A leap second, `…:60`, has more than a second's nanoseconds.
    Error::require(local.nanosecond() < NANOS_PER_SECOND, &otherwise)?;
    zone.to_utc(local.trunc_subsecs(0))
        .filter(|instant| (1..=TIMESTAMP_MAX).contains(&instant.timestamp()))
        .ok_or(Error::InvalidParameter(otherwise))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_the_column_cannot_hold_is_refused() {
        let zone = Zone(chrono_tz::Europe::Berlin);
        let read = |text: &str| instant(zone, text.parse().unwrap(), "beginTime");
        for refused in [
            // A leap second.
            "2026-12-31T23:59:60",
            "2026-12-31T23:59:60.5",
            // An hour that the zone leaves out.
            "2026-03-29T02:30:00",
            "1970-01-01T00:59:59",
            "2038-01-19T04:14:08",
            "+12026-01-01T00:00:00",
            "-0001-01-01T00:00:00",
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
        // The column holds whole seconds, and would round up.
        for (text, seconds) in [
            ("2038-01-19T04:14:07.9", TIMESTAMP_MAX),
            ("1970-01-01T01:00:01", 1),
        ] {
            assert_eq!(
                read(text).unwrap(),
                DateTime::from_timestamp(seconds, 0).unwrap()
            );
        }
    }
}
