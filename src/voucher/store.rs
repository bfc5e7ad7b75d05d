//! The SQL of vouchers and of publishing sales. The statements that lower the stock are in `order/store/`.

use std::sync::LazyLock;

use chrono::{DateTime, NaiveDateTime, Utc};
use serde::Serialize;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use utoipa::ToSchema;

use super::publish::{MAX_STOCK, NewSale, NewVoucher};
use crate::clock::Zone;
use crate::connection::mysql::Database;
use crate::connection::row::{from_row, read_each, readable};
use crate::error::Error;
use crate::idempotency::{RecordedWrite, write_once};
use strategies::Strategy;

/// A voucher in the reply of `GET /voucher/list/{shopId}`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Voucher)]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct ListedVoucher {
    #[schema(example = 2)]
    pub id: i64,
    /// The shop it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 1)]
    pub shop_id: Option<i64>,
    #[schema(example = "100 元秒杀代金券")]
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub sub_title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rules: Option<String>,
    /// What it costs, cents.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 8000)]
    pub pay_value: Option<i64>,
    /// What it is worth, cents.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 10000)]
    pub actual_value: Option<i64>,
    /// 0 an ordinary voucher, 1 a flash sale.
    #[serde(rename = "type")]
    #[schema(example = 1)]
    pub kind: i64,
    /// What is left of a flash sale.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 100)]
    pub stock: Option<i64>,
    /// The flash sale's first second: local, without an offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2024-01-01T00:00:00")]
    pub begin_time: Option<NaiveDateTime>,
    /// The first second after the flash sale: local, without an offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2037-12-31T00:00:00")]
    pub end_time: Option<NaiveDateTime>,
}

from_row! { ListedVoucher:
    id, shop_id, title, sub_title, rules, pay_value, actual_value, kind, stock; begin_time, end_time
}

/// A sale as stored, with the database's clock at the moment of reading.
#[allow(missing_docs)] // columns under their names
pub struct SaleRow {
    pub voucher_id: i64,
    pub status: i64,
    pub begin_time: DateTime<Utc>,
    pub end_time: DateTime<Utc>,
    pub strategy: String,
    pub issued: Option<i64>,
    /// What is left, including the units that are rows.
    pub stock: i64,
    pub now: NaiveDateTime,
}

from_row! { SaleRow: voucher_id, status, begin_time, end_time, strategy, issued, stock, now }

/// SQL: the number of units of the sale `s` that are rows. They are left to sell, as its stock is; see `order/store/units.rs`.
/// Counted only on the strategy that has them: a purchase on any other never looks into that table.
static UNITS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "IF(s.strategy = '{}', \
         (SELECT COUNT(*) FROM tb_stock_unit u WHERE u.voucher_id = s.voucher_id), 0)",
        Strategy::UnitRows.name()
    )
});

/// Vouchers in the database.
#[derive(Clone)]
pub struct VoucherStore {
    db: Database,
}

impl VoucherStore {
    /// A store on this database.
    pub fn new(db: Database) -> Self {
        VoucherStore { db }
    }

    /// Inserts an ordinary voucher; returns its id, or that of the request with the same key.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] where the write may have been committed and could not be looked up; after every other error
    /// nothing was done. This holds for the other writes as well.
    pub async fn insert(&self, write: RecordedWrite, voucher: &NewVoucher) -> Result<i64, Error> {
        let work = async |connection: &mut MySqlConnection| {
            Ok::<_, Error>(self.db.bounded(insert(connection, voucher, 0)).await?)
        };
        write_once(&self.db, write, work).await
    }

    /// Inserts a voucher and its sale in one transaction, and runs `before_commit` with the new id; if that fails,
    /// nothing was inserted. Returns the id, or that of the request with the same key.
    pub async fn insert_sale(
        &self,
        write: RecordedWrite,
        voucher: &NewVoucher,
        sale: &NewSale,
        before_commit: impl AsyncFnOnce(i64) -> Result<(), Error>,
    ) -> Result<i64, Error> {
        let work = async |connection: &mut MySqlConnection| {
            let id = self
                .db
                .bounded(insert(&mut *connection, voucher, 1))
                .await?;
            let query = sqlx::query(
                "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, begin_time, end_time, strategy) \
                 VALUES (?, ?, ?, ?, ?, ?)",
            )
            .bind(id)
            .bind(sale.stock - sale.units())
            .bind(sale.stock)
            .bind(sale.begin)
            .bind(sale.end)
            .bind(sale.strategy.name());
            self.db.bounded(query.execute(&mut *connection)).await?;
            if sale.units() > 0 {
                let rows = vec![format!("({id})"); sale.units().unsigned_abs() as usize].join(",");
                let insert = format!("INSERT INTO tb_stock_unit (voucher_id) VALUES {rows}");
                let insert = sqlx::query(&insert).persistent(false);
                self.db.bounded(insert.execute(&mut *connection)).await?;
            }
            before_commit(id).await.map(|()| id)
        };
        write_once(&self.db, write, work).await
    }

    /// Adds `count` to the stock of a sale; the result is the stock when it was added.
    ///
    /// # Errors
    /// [`Error::VoucherNotFound`] where there is no such sale; [`Error::InvalidParameter`] where more than [`MAX_STOCK`]
    /// would be on sale in all; those of [`VoucherStore::insert`].
    pub async fn add_stock(
        &self,
        write: RecordedWrite,
        voucher_id: i64,
        count: i64,
    ) -> Result<i64, Error> {
        let add = sqlx::query(
            "UPDATE tb_seckill_voucher SET stock = stock + ?, issued = issued + ? WHERE voucher_id = ? \
             AND GREATEST(stock, COALESCE(issued, 0)) + ? <= ?",
        );
        let add = add
            .bind(count)
            .bind(count)
            .bind(voucher_id)
            .bind(count)
            .bind(MAX_STOCK);
        let select = format!(
            "SELECT CAST(stock + {} AS SIGNED) FROM tb_seckill_voucher s WHERE voucher_id = ?",
            *UNITS
        );
        let select = sqlx::query_scalar(&select).bind(voucher_id);
        let work = async |connection: &mut MySqlConnection| {
            let added = self.db.bounded(add.execute(&mut *connection)).await?;
            let stock = self.db.bounded(select.fetch_optional(connection)).await?;
            match stock {
                None => Err(Error::VoucherNotFound),
                Some(stock) if added.rows_affected() > 0 => Ok(stock),
                Some(_) => Err(Error::InvalidParameter(format!(
                    "add would put more than {MAX_STOCK} on sale in all"
                ))),
            }
        };
        write_once(&self.db, write, work).await
    }

    /// Inserts the sample vouchers of `seed`.
    pub async fn seed(&self) -> Result<(), Error> {
        let sample = include_str!("sample_vouchers.sql");
        self.db
            .write(async |c| sqlx::raw_sql(sample).execute(c).await)
            .await?;
        Ok(())
    }

    /// A shop's vouchers on the shelf, by id.
    pub async fn list(&self, shop_id: i64, zone: Zone) -> Result<Vec<ListedVoucher>, Error> {
        let sql = format!(
            "SELECT CAST(v.id AS SIGNED) AS id, CAST(v.shop_id AS SIGNED) AS shop_id, COALESCE(v.title, '') AS title, \
             v.sub_title, v.rules, CAST(v.pay_value AS SIGNED) AS pay_value, \
             CAST(v.actual_value AS SIGNED) AS actual_value, CAST(COALESCE(v.type, 0) AS SIGNED) AS kind, \
             CAST(s.stock + {} AS SIGNED) AS stock, s.begin_time, s.end_time \
             FROM tb_voucher v LEFT JOIN tb_seckill_voucher s ON s.voucher_id = v.id \
             WHERE v.shop_id = ? AND v.status = 1 ORDER BY v.id",
            *UNITS
        );
        let query = sqlx::query(&sql).bind(shop_id);
        let rows = self.db.read(async |c| query.fetch_all(c).await).await?;
        let mut vouchers: Vec<ListedVoucher> = readable("tb_voucher", &rows);
        for ListedVoucher {
            begin_time,
            end_time,
            ..
        } in &mut vouchers
        {
            // The columns are in UTC.
            for time in [begin_time, end_time].into_iter().flatten() {
                *time = zone.to_local(time.and_utc());
            }
        }
        Ok(vouchers)
    }

    /// The sales of these vouchers, by id, in no order; those that do not exist are left out, and a row that cannot be read is
    /// `None`. Each row has the time by the database's clock.
    pub async fn sales(&self, ids: &[i64]) -> Result<Vec<(i64, Option<SaleRow>)>, Error> {
        let mut query = QueryBuilder::<MySql>::new(format!(
            "SELECT CAST(v.id AS SIGNED) AS voucher_id, CAST(COALESCE(v.status, 0) AS SIGNED) AS status, \
             s.begin_time, s.end_time, s.strategy, \
             CAST(s.issued AS SIGNED) AS issued, CAST(s.stock + {} AS SIGNED) AS stock, \
             UTC_TIMESTAMP(6) AS now FROM tb_seckill_voucher s JOIN tb_voucher v ON v.id = s.voucher_id \
             WHERE s.voucher_id IN (",
            *UNITS
        ));
        let mut list = query.separated(",");
        for id in ids {
            list.push_bind(id);
        }
        query.push(")");
        let query = query.build().persistent(ids.len() == 1);
        let rows = self.db.read(async |c| query.fetch_all(c).await).await?;
        let sales: Vec<(i64, Option<SaleRow>)> = read_each("tb_seckill_voucher", &rows);
        if let Some(sale) = sales.iter().find_map(|(_, sale)| sale.as_ref()) {
            self.db.clock().set(sale.now.and_utc());
        }
        Ok(sales)
    }
}

async fn insert<'c>(
    executor: impl sqlx::MySqlExecutor<'c>,
    voucher: &NewVoucher,
    kind: u8,
) -> sqlx::Result<i64> {
    let result = sqlx::query(
        "INSERT INTO tb_voucher (shop_id, title, sub_title, rules, pay_value, actual_value, type, status) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(voucher.shop_id)
    .bind(&voucher.title)
    .bind(&voucher.sub_title)
    .bind(&voucher.rules)
    .bind(voucher.pay_value)
    .bind(voucher.actual_value)
    .bind(kind)
    .bind(voucher.status.unwrap_or(1))
    .execute(executor)
    .await?;
    Ok(result.last_insert_id().cast_signed())
}
