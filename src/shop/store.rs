//! The SQL of shops and shop types.

use chrono::{DateTime, NaiveDateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;

use crate::clock::Zone;
use crate::conn::mysql::Database;
use crate::error::Error;

/// A shop, as the contract's JSON has it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct Shop {
    pub id: i64,
    pub name: String,
    pub type_id: i64,
    pub images: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub area: Option<String>,
    pub address: String,
    pub x: f64,
    pub y: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avg_price: Option<i64>,
    pub sold: i64,
    pub comments: i64,
    pub score: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_hours: Option<String>,
    pub create_time: NaiveDateTime,
    pub update_time: NaiveDateTime,
}

#[derive(FromRow)]
struct Row {
    id: i64,
    name: String,
    type_id: i64,
    images: String,
    area: Option<String>,
    address: String,
    x: f64,
    y: f64,
    avg_price: Option<i64>,
    sold: i64,
    comments: i64,
    score: i64,
    open_hours: Option<String>,
    create_time: DateTime<Utc>,
    update_time: DateTime<Utc>,
}

/// A sample shop for `seed`.
pub struct SampleShop {
    /// Shown name.
    pub name: &'static str,
    /// `tb_shop_type.id`.
    pub type_id: i64,
    /// District.
    pub area: &'static str,
    /// Street address.
    pub address: &'static str,
    /// Longitude and latitude, degrees.
    pub at: (f64, f64),
    /// Yuan.
    pub avg_price: i64,
    /// Such as `10:00-22:00`.
    pub open_hours: &'static str,
}

/// Shops in the database.
#[derive(Clone)]
pub struct ShopStore {
    db: Database,
    zone: Zone,
}

impl ShopStore {
    /// A store on this database, giving times in this zone.
    pub fn new(db: Database, zone: Zone) -> Self {
        ShopStore { db, zone }
    }

    /// One shop.
    pub async fn find(&self, id: i64) -> Result<Option<Shop>, Error> {
        // Casts: databases made by the Java project differ in signedness and width.
        let query = sqlx::query_as(
            "SELECT CAST(id AS SIGNED) AS id, name, CAST(type_id AS SIGNED) AS type_id, images, area, \
             address, x, y, CAST(avg_price AS SIGNED) AS avg_price, CAST(sold AS SIGNED) AS sold, \
             CAST(comments AS SIGNED) AS comments, CAST(score AS SIGNED) AS score, open_hours, \
             create_time, update_time FROM tb_shop WHERE id = ?",
        )
        .bind(id);
        let row: Option<Row> = self.db.bounded(query.fetch_optional(&self.db.pool)).await?;
        Ok(row.map(|row| Shop {
            id: row.id,
            name: row.name,
            type_id: row.type_id,
            images: row.images,
            area: row.area,
            address: row.address,
            x: row.x,
            y: row.y,
            avg_price: row.avg_price,
            sold: row.sold,
            comments: row.comments,
            score: row.score,
            open_hours: row.open_hours,
            create_time: self.zone.to_local(row.create_time),
            update_time: self.zone.to_local(row.update_time),
        }))
    }

    /// Inserts the shop types, where there are none; returns how many were inserted.
    pub async fn seed_types(&self, names: &[&str]) -> Result<u64, Error> {
        if self.count("tb_shop_type").await? > 0 {
            return Ok(0);
        }
        for (sort, name) in (1_i64..).zip(names) {
            sqlx::query("INSERT INTO tb_shop_type (id, name, icon, sort) VALUES (?, ?, '', ?)")
                .bind(sort)
                .bind(name)
                .bind(sort)
                .execute(&self.db.pool)
                .await?;
        }
        Ok(names.len() as u64)
    }

    /// Inserts sample shops with ids from 1, where there are none; returns how many were inserted.
    pub async fn seed_shops(&self, shops: &[SampleShop]) -> Result<u64, Error> {
        if self.count("tb_shop").await? > 0 {
            return Ok(0);
        }
        for (id, shop) in (1_i64..).zip(shops) {
            sqlx::query(
                "INSERT INTO tb_shop (id, name, type_id, images, area, address, x, y, avg_price, \
                 open_hours) VALUES (?, ?, ?, '', ?, ?, ?, ?, ?, ?)",
            )
            .bind(id)
            .bind(shop.name)
            .bind(shop.type_id)
            .bind(shop.area)
            .bind(shop.address)
            .bind(shop.at.0)
            .bind(shop.at.1)
            .bind(shop.avg_price)
            .bind(shop.open_hours)
            .execute(&self.db.pool)
            .await?;
        }
        Ok(shops.len() as u64)
    }

    async fn count(&self, table: &'static str) -> Result<i64, Error> {
        let query = format!("SELECT COUNT(*) FROM {table}");
        Ok(sqlx::query_scalar(&query).fetch_one(&self.db.pool).await?)
    }
}
