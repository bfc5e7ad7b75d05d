//! The SQL of shops and shop types.

use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{MySql, MySqlConnection, QueryBuilder};

use super::model::{Paging, Shop, ShopChange, ShopType};
use crate::connection::mysql::Database;
use crate::connection::row::{from_row, readable};
use crate::error::Error;
use crate::idempotency::{RecordedWrite, write_once};

from_row! { Shop:
    id, name, type_id, images, area, address, x, y, avg_price, sold, comments, score, open_hours,
    create_time, update_time, distance
}
from_row! { ShopType: id, name, icon, sort }

/// The sample shop types and shops of `seed`: table and text.
const SAMPLES: [(&str, &str); 2] = [
    ("tb_shop_type", include_str!("sample_types.sql")),
    ("tb_shop", include_str!("sample_shops.sql")),
];

// Casts: databases made by the Java project differ in signedness, width and what may be NULL. A decimal becomes a double.
const SELECT_SHOP: &str = "SELECT CAST(id AS SIGNED) AS id, COALESCE(name, '') AS name, \
     CAST(COALESCE(type_id, 0) AS SIGNED) AS type_id, COALESCE(images, '') AS images, area, \
     COALESCE(address, '') AS address, x + 0E0 AS x, y + 0E0 AS y, CAST(avg_price AS SIGNED) AS avg_price, \
     CAST(COALESCE(sold, 0) AS SIGNED) AS sold, CAST(COALESCE(comments, 0) AS SIGNED) AS comments, \
     CAST(COALESCE(score, 0) AS SIGNED) AS score, open_hours, create_time, update_time, NULL AS distance FROM tb_shop";

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
        let query = sqlx::query_as(&sql).bind(id);
        Ok(self
            .db
            .read(async |c| query.fetch_optional(c).await)
            .await?)
    }

    /// A page of a type's shops, by id.
    pub async fn list_by_type(&self, type_id: i64, page: Paging) -> Result<Vec<Shop>, Error> {
        let sql = format!("{SELECT_SHOP} WHERE type_id = ? ORDER BY tb_shop.id LIMIT ? OFFSET ?");
        let query = sqlx::query(&sql)
            .bind(type_id)
            .bind(page.limit)
            .bind(page.offset);
        self.shops(query).await
    }

    /// A page of the shops whose name contains `part` (all shops if it is empty), by id.
    pub async fn search_by_name(&self, part: &str, page: Paging) -> Result<Vec<Shop>, Error> {
        // `%`, `_` and the escape character stand for themselves in a search.
        let mut escaped = String::new();
        for c in part.chars() {
            if matches!(c, '%' | '_' | '!') {
                escaped.push('!');
            }
            escaped.push(c);
        }
        let sql = format!(
            "{SELECT_SHOP} WHERE name LIKE ? ESCAPE '!' ORDER BY tb_shop.id LIMIT ? OFFSET ?"
        );
        let name = format!("%{escaped}%");
        let query = sqlx::query(&sql)
            .bind(name)
            .bind(page.limit)
            .bind(page.offset);
        self.shops(query).await
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
        self.shops(query.build()).await
    }

    /// The shops that a query finds; a row that cannot be read is left out.
    async fn shops(&self, query: Query<'_, MySql, MySqlArguments>) -> Result<Vec<Shop>, Error> {
        let rows = self.db.read(async |c| query.fetch_all(c).await).await?;
        Ok(readable("tb_shop", &rows))
    }

    /// A page of a type's shops within `radius` metres of a point (longitude, latitude), nearest first, as
    /// (id, metres): what the GEO index returns while Redis is available.
    pub async fn nearest(
        &self,
        type_id: i64,
        (x, y): (f64, f64),
        radius: f64,
        page: Paging,
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
            .bind(page.limit)
            .bind(page.offset);
        Ok(self.db.read(async |c| query.fetch_all(c).await).await?)
    }

    /// Every shop of a type with its position, as (id, longitude, latitude). Shops whose position a GEO index cannot hold are
    /// left out: one of them would fail the whole index.
    pub async fn positions(&self, type_id: i64) -> Result<Vec<(i64, f64, f64)>, Error> {
        let query = sqlx::query_as(
            "SELECT CAST(id AS SIGNED), x + 0E0, y + 0E0 FROM tb_shop WHERE type_id = ? \
                 AND x BETWEEN -180 AND 180 AND y BETWEEN -85.05112878 AND 85.05112878",
        )
        .bind(type_id);
        Ok(self.db.read(async |c| query.fetch_all(c).await).await?)
    }

    /// The next ids after `id` in ascending order, at most 5,000: pages through all shops.
    pub async fn ids_after(&self, id: i64) -> Result<Vec<i64>, Error> {
        let query = sqlx::query_scalar::<_, i64>(
            "SELECT CAST(id AS SIGNED) FROM tb_shop WHERE id > ? ORDER BY id LIMIT 5000",
        )
        .bind(id);
        Ok(self.db.read(async |c| query.fetch_all(c).await).await?)
    }

    /// All shop types, by `sort`.
    pub async fn types(&self) -> Result<Vec<ShopType>, Error> {
        let query = sqlx::query_as(
            "SELECT CAST(id AS SIGNED) AS id, COALESCE(name, '') AS name, COALESCE(icon, '') AS icon, \
             CAST(COALESCE(tb_shop_type.sort, 0) AS SIGNED) AS sort FROM tb_shop_type \
             ORDER BY tb_shop_type.sort, id",
        );
        Ok(self.db.read(async |c| query.fetch_all(c).await).await?)
    }

    /// Inserts a shop that passed [`ShopChange::check_new`], and runs `before_commit` with its id; if
    /// that fails, nothing was inserted. Returns the id, or that of the request with the same key.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] where the write may have been committed and could not be looked up; after every other error
    /// nothing was done.
    pub async fn insert(
        &self,
        write: RecordedWrite,
        shop: &ShopChange,
        before_commit: impl AsyncFnOnce(i64) -> Result<(), Error>,
    ) -> Result<i64, Error> {
        let query = with_fields(
            "INSERT INTO tb_shop (name, type_id, images, area, address, x, y, avg_price, sold, comments, score, open_hours) \
             VALUES (?, ?, COALESCE(?, ''), ?, ?, ?, ?, ?, COALESCE(?, 0), COALESCE(?, 0), COALESCE(?, 0), ?)",
            shop,
        );
        let work = async |connection: &mut MySqlConnection| {
            let done = self.db.bounded(query.execute(connection)).await?;
            let id = done.last_insert_id().cast_signed();
            before_commit(id).await.map(|()| id)
        };
        write_once(&self.db, write, work).await
    }

    /// Changes the fields that are given.
    ///
    /// # Errors
    /// [`Error::ShopNotFound`]; those of [`ShopStore::insert`].
    pub async fn update(&self, id: i64, change: &ShopChange) -> Result<(), Error> {
        // A client may repeat this change without a key. The record only serves to find out what became of a lost reply.
        let write = RecordedWrite::new("shop-change", None, change);
        let query = with_fields(
            "UPDATE tb_shop SET name = COALESCE(?, name), type_id = COALESCE(?, type_id), \
             images = COALESCE(?, images), area = COALESCE(?, area), \
             address = COALESCE(?, address), x = COALESCE(?, x), y = COALESCE(?, y), \
             avg_price = COALESCE(?, avg_price), sold = COALESCE(?, sold), \
             comments = COALESCE(?, comments), score = COALESCE(?, score), \
             open_hours = COALESCE(?, open_hours) WHERE id = ?",
            change,
        )
        .bind(id);
        let work = async |connection: &mut MySqlConnection| {
            let done = self.db.bounded(query.execute(connection)).await?;
            // The driver counts matched rows, so an update that changes nothing still finds its shop.
            match done.rows_affected() {
                0 => Err(Error::ShopNotFound),
                _ => Ok(id),
            }
        };
        write_once(&self.db, write, work).await.map(drop)
    }

    /// Inserts the sample shop types and shops, with ids from 1, each into an empty table only; returns how many were
    /// inserted.
    pub async fn seed(&self) -> Result<[u64; 2], Error> {
        let mut inserted = [0; 2];
        let mut connection = self.db.pool.acquire(self.db.pool.deadline()).await?;
        for (inserted, (table, sample)) in inserted.iter_mut().zip(SAMPLES) {
            let count = format!("SELECT COUNT(*) FROM {table}");
            let existing = sqlx::query_scalar::<_, i64>(&count)
                .fetch_one(&mut *connection)
                .await?;
            if existing == 0 {
                *inserted = sqlx::raw_sql(sample)
                    .execute(&mut *connection)
                    .await?
                    .rows_affected();
            }
        }
        Ok(inserted)
    }
}

/// A statement with the fields that a client may give.
fn with_fields<'q>(sql: &'q str, shop: &'q ShopChange) -> Query<'q, MySql, MySqlArguments> {
    let query = sqlx::query(sql)
        .bind(&shop.name)
        .bind(shop.type_id)
        .bind(&shop.images);
    let query = query
        .bind(&shop.area)
        .bind(&shop.address)
        .bind(shop.x)
        .bind(shop.y);
    let query = query
        .bind(shop.avg_price)
        .bind(shop.sold)
        .bind(shop.comments);
    query.bind(shop.score).bind(&shop.open_hours)
}
