//! The SQL of shops and shop types.

use chrono::{DateTime, Utc};
use sqlx::{MySql, QueryBuilder};

use super::model::{Shop, ShopChange, ShopType};
use crate::connection::mysql::Database;
use crate::connection::row::row;
use crate::error::Error;

row! {
    /// A row of `tb_shop`.
    struct ShopRow {
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

// Casts: databases made by the Java project differ in signedness and width.
const SELECT_SHOP: &str = "SELECT CAST(id AS SIGNED) AS id, name, CAST(type_id AS SIGNED) AS type_id, \
     images, area, address, x, y, CAST(avg_price AS SIGNED) AS avg_price, \
     CAST(sold AS SIGNED) AS sold, CAST(comments AS SIGNED) AS comments, \
     CAST(score AS SIGNED) AS score, open_hours, create_time, update_time FROM tb_shop";

/// Metres between a shop and a point (longitude, latitude), by the haversine formula on the sphere that
/// Redis's GEO commands use. Takes three parameters: y, y, x.
const DISTANCE: &str = "2 * 6372797.560856 * ASIN(SQRT(LEAST(1, POW(SIN(RADIANS(y - ?) / 2), 2) + \
     COS(RADIANS(?)) * COS(RADIANS(y)) * POW(SIN(RADIANS(x - ?) / 2), 2))))";

/// SQL on `tb_shop` and `tb_shop_type`.
#[derive(Clone)]
pub struct ShopStore {
    db: Database,
}

impl ShopStore {
    /// A store on this database.
    pub fn new(db: Database) -> Self {
        ShopStore { db }
    }

    /// One shop.
    pub async fn find(&self, id: i64) -> Result<Option<Shop>, Error> {
        let sql = format!("{SELECT_SHOP} WHERE id = ?");
        let query = sqlx::query_as::<_, ShopRow>(&sql).bind(id);
        let row = self.db.bounded(query.fetch_optional(&self.db.pool)).await?;
        Ok(row.map(Shop::from))
    }

    /// Shops of a type by id, from `offset`, at most `limit`.
    pub async fn list_by_type(
        &self,
        type_id: i64,
        offset: u64,
        limit: u32,
    ) -> Result<Vec<Shop>, Error> {
        let sql = format!("{SELECT_SHOP} WHERE type_id = ? ORDER BY id LIMIT ? OFFSET ?");
        let query = sqlx::query_as::<_, ShopRow>(&sql).bind(type_id).bind(limit).bind(offset);
        let rows = self.db.bounded(query.fetch_all(&self.db.pool)).await?;
        Ok(rows.into_iter().map(Shop::from).collect())
    }

    /// Shops whose name contains `part` (all shops if it is empty), by id, from `offset`, at most
    /// `limit`.
    pub async fn search_by_name(
        &self,
        part: &str,
        offset: u64,
        limit: u32,
    ) -> Result<Vec<Shop>, Error> {
        // `%`, `_` and the escape character stand for themselves in a search.
        let escaped: String = part
            .chars()
            .flat_map(|c| matches!(c, '%' | '_' | '!').then_some('!').into_iter().chain([c]))
            .collect();
        let sql =
            format!("{SELECT_SHOP} WHERE name LIKE ? ESCAPE '!' ORDER BY id LIMIT ? OFFSET ?");
        let query = sqlx::query_as::<_, ShopRow>(&sql)
            .bind(format!("%{escaped}%"))
            .bind(limit)
            .bind(offset);
        let rows = self.db.bounded(query.fetch_all(&self.db.pool)).await?;
        Ok(rows.into_iter().map(Shop::from).collect())
    }

    /// The shops with these ids, in no order; ids that do not exist are skipped.
    pub async fn find_many(&self, ids: &[i64]) -> Result<Vec<Shop>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut query = QueryBuilder::<MySql>::new(SELECT_SHOP);
        query.push(" WHERE id IN (");
        let mut list = query.separated(", ");
        for id in ids {
            list.push_bind(id);
        }
        query.push(")");
        let rows: Vec<ShopRow> =
            self.db.bounded(query.build_query_as().fetch_all(&self.db.pool)).await?;
        Ok(rows.into_iter().map(Shop::from).collect())
    }

    /// Shops of a type within `radius` metres of a point (longitude, latitude), nearest first, as
    /// (id, metres): what the GEO index returns while Redis is available.
    pub async fn nearest(
        &self,
        type_id: i64,
        (x, y): (f64, f64),
        radius: f64,
        offset: u64,
        limit: u32,
    ) -> Result<Vec<(i64, f64)>, Error> {
        let sql = format!(
            "SELECT CAST(id AS SIGNED), {DISTANCE} AS distance FROM tb_shop WHERE type_id = ? \
             HAVING distance <= ? ORDER BY distance, id LIMIT ? OFFSET ?"
        );
        let query = sqlx::query_as(&sql)
            .bind(y)
            .bind(y)
            .bind(x)
            .bind(type_id)
            .bind(radius)
            .bind(limit)
            .bind(offset);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }

    /// Every shop of a type with its position, as (id, longitude, latitude).
    pub async fn positions(&self, type_id: i64) -> Result<Vec<(i64, f64, f64)>, Error> {
        let query =
            sqlx::query_as("SELECT CAST(id AS SIGNED), x, y FROM tb_shop WHERE type_id = ?")
                .bind(type_id);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }

    /// The next ids after `id` in ascending order, at most 5,000: pages through all shops.
    pub async fn ids_after(&self, id: i64) -> Result<Vec<i64>, Error> {
        let query = sqlx::query_scalar::<_, i64>(
            "SELECT CAST(id AS SIGNED) FROM tb_shop WHERE id > ? ORDER BY id LIMIT 5000",
        )
        .bind(id);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }

    /// All shop types, by `sort`.
    pub async fn types(&self) -> Result<Vec<ShopType>, Error> {
        let query = sqlx::query_as::<_, (i64, String, String, i64)>(
            "SELECT CAST(id AS SIGNED), COALESCE(name, ''), COALESCE(icon, ''), \
             CAST(COALESCE(sort, 0) AS SIGNED) FROM tb_shop_type ORDER BY sort, id",
        );
        let rows = self.db.bounded(query.fetch_all(&self.db.pool)).await?;
        let shop_type = |(id, name, icon, sort)| ShopType { id, name, icon, sort };
        Ok(rows.into_iter().map(shop_type).collect())
    }

    /// Inserts a shop that passed [`ShopChange::check_new`], and runs `before_commit` with its id; if
    /// that fails, nothing was inserted. Returns the id.
    pub async fn insert(
        &self,
        shop: &ShopChange,
        before_commit: impl AsyncFnOnce(i64) -> Result<(), Error>,
    ) -> Result<i64, Error> {
        let mut transaction = self.db.bounded(self.db.pool.begin()).await?;
        let query = sqlx::query(
            "INSERT INTO tb_shop (name, type_id, images, area, address, x, y, avg_price, sold, \
             comments, score, open_hours) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&shop.name)
        .bind(shop.type_id)
        .bind(shop.images.as_deref().unwrap_or_default())
        .bind(&shop.area)
        .bind(&shop.address)
        .bind(shop.x)
        .bind(shop.y)
        .bind(shop.avg_price)
        .bind(shop.sold.unwrap_or(0))
        .bind(shop.comments.unwrap_or(0))
        .bind(shop.score.unwrap_or(0))
        .bind(&shop.open_hours);
        let done = self.db.bounded(query.execute(&mut *transaction)).await?;
        let id = done.last_insert_id().cast_signed();
        before_commit(id).await?;
        self.db.bounded(transaction.commit()).await?;
        Ok(id)
    }

    /// Changes the fields that are given; returns whether the shop exists.
    pub async fn update(&self, id: i64, change: &ShopChange) -> Result<bool, Error> {
        let query = sqlx::query(
            "UPDATE tb_shop SET name = COALESCE(?, name), type_id = COALESCE(?, type_id), \
             images = COALESCE(?, images), area = COALESCE(?, area), \
             address = COALESCE(?, address), x = COALESCE(?, x), y = COALESCE(?, y), \
             avg_price = COALESCE(?, avg_price), sold = COALESCE(?, sold), \
             comments = COALESCE(?, comments), score = COALESCE(?, score), \
             open_hours = COALESCE(?, open_hours) WHERE id = ?",
        )
        .bind(&change.name)
        .bind(change.type_id)
        .bind(&change.images)
        .bind(&change.area)
        .bind(&change.address)
        .bind(change.x)
        .bind(change.y)
        .bind(change.avg_price)
        .bind(change.sold)
        .bind(change.comments)
        .bind(change.score)
        .bind(&change.open_hours)
        .bind(id);
        // The driver counts matched rows, so an update that changes nothing still finds its shop.
        Ok(self.db.bounded(query.execute(&self.db.pool)).await?.rows_affected() > 0)
    }

    /// Inserts the shop types if there are none; returns how many were inserted.
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

    /// Inserts sample shops with ids from 1 if there are none; returns how many were inserted.
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

impl From<ShopRow> for Shop {
    fn from(row: ShopRow) -> Self {
        Shop {
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
            create_time: row.create_time,
            update_time: row.update_time,
        }
    }
}
