//! Vouchers: publishing ordinary and flash-sale vouchers and adding to their stock (admin), and listing
//! a shop's. What a purchase needs to know of a sale is in [`sales`].

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;

use crate::clock::Zone;
use crate::connection::fresh_cache::FreshCache;
use crate::connection::redis::RoutedConnection;
use crate::error::Error;
use crate::http::docs::Success;
use crate::http::extract::{ADMIN_BODY, Idempotent, Json, Path};
use crate::http::reply::{self, Reply};
use crate::idempotency::RecordedWrite;
use crate::keys::Keys;
use crate::shop::Shops;

pub mod publish;
pub mod recounts;
pub mod sales;
pub mod store;

use publish::{MAX_STOCK, MoreStock, NewSeckillVoucher, NewVoucher};
use sales::SaleCache;
use store::{ListedVoucher, VoucherStore};

/// How long the list of a shop's vouchers is valid: the page of a shop asks for it each second, in every browser. Writes
/// on this instance are seen at once.
pub const LIST_FRESH_FOR: Duration = Duration::from_millis(300);

/// State of the voucher routes.
#[derive(Clone)]
#[allow(missing_docs)] // a field without a comment is what its name says
pub struct Vouchers {
    pub store: VoucherStore,
    /// On the connections of reads.
    pub reads: VoucherStore,
    /// Replies of the list, by shop.
    pub lists: FreshCache<i64, Bytes, Error>,
    /// For the stock counter, by which the stream and Java nodes admit.
    pub redis: RoutedConnection,
    pub keys: Keys,
    /// Learns of added stock.
    pub sales: Arc<SaleCache>,
    pub shops: Shops,
    pub zone: Zone,
    /// Whether sales on unsafe strategies may be published.
    pub lab: bool,
}

/// Publishes an ordinary voucher (admin).
#[utoipa::path(
    post, path = "/voucher", tag = "voucher", security(("x-admin-token" = [])),
    request_body = NewVoucher, params(Idempotent),
    responses((status = 200, description = "The voucher's id.", body = Success<i64>, example = json!({"success": true, "data": 3}))),
    extensions(("x-codes" = json!(["SHOP_NOT_FOUND", "OUTCOME_UNKNOWN"]))),
)]
pub async fn publish(
    State(vouchers): State<Vouchers>,
    Idempotent { key }: Idempotent,
    Json(new): Json<NewVoucher, ADMIN_BODY>,
) -> Reply<i64> {
    new.check()?;
    vouchers.require_shop(new.shop_id).await?;
    let write = RecordedWrite::new("voucher", key, &new);
    let id = vouchers.store.insert(write, &new).await;
    vouchers.lists.invalidate_all();
    Ok(reply::data(id?))
}

/// Publishes a voucher and its flash sale (admin).
#[utoipa::path(
    post, path = "/voucher/seckill", tag = "voucher", security(("x-admin-token" = [])),
    request_body = NewSeckillVoucher, params(Idempotent),
    responses((status = 200, description = "The voucher's id.", body = Success<i64>, example = json!({"success": true, "data": 3}))),
    extensions(("x-codes" = json!(["SHOP_NOT_FOUND", "LAB_ONLY", "OUTCOME_UNKNOWN"]))),
)]
pub async fn publish_seckill(
    State(vouchers): State<Vouchers>,
    Idempotent { key }: Idempotent,
    Json(new): Json<NewSeckillVoucher, ADMIN_BODY>,
) -> Reply<i64> {
    let sale = new.check(vouchers.zone, vouchers.lab)?;
    vouchers.require_shop(new.voucher.shop_id).await?;
    let mut redis = vouchers.redis.clone();
    let write = RecordedWrite::new("sale", key, &new);
    let id = vouchers
        .store
        .insert_sale(write, &new.voucher, &sale, async |id| {
            // Before the commit: a sale is either in both places or in neither. A commit that fails
            // leaves a key under an id that no sale has. Units that are rows of `tb_stock_unit` are not in the counter.
            let stock = sale.stock - sale.units();
            let ends = sale.end.timestamp();
            Ok(vouchers
                .keys
                .set_stock(id, stock, ends)
                .query_async(&mut redis)
                .await?)
        })
        .await;
    vouchers.lists.invalidate_all();
    let id = id?;
    tracing::info!(voucher_id = id, stock = sale.stock, strategy = %sale.strategy, "sale published");
    Ok(reply::data(id))
}

/// Puts more of a flash sale on sale (admin).
///
/// The instance that adds it sells it at once, all others within a second.
#[utoipa::path(
    post, path = "/voucher/seckill/{id}/stock", tag = "voucher", security(("x-admin-token" = [])),
    params(("id" = i64, Path, description = "The voucher's id.", example = 2), Idempotent),
    request_body = MoreStock,
    responses((status = 200, description = "The new stock.", body = Success<i64>, example = json!({"success": true, "data": 110}))),
    extensions(("x-codes" = json!(["VOUCHER_NOT_FOUND", "OUTCOME_UNKNOWN"]))),
)]
pub async fn add_stock(
    State(vouchers): State<Vouchers>,
    Idempotent { key }: Idempotent,
    Path(voucher_id): Path<i64>,
    Json(more): Json<MoreStock, ADMIN_BODY>,
) -> Reply<i64> {
    Error::require(
        (1..=MAX_STOCK).contains(&more.add),
        "add must be 1 to 10000000",
    )?;
    let write = RecordedWrite::new("stock", key, &(voucher_id, more.add));
    let stock = vouchers.store.add_stock(write, voucher_id, more.add).await;
    vouchers.lists.invalidate_all();
    let stock = stock?;
    tracing::info!(voucher_id, added = more.add, stock, "stock added");
    vouchers.sales.stock_changed(voucher_id);
    Ok(reply::data(stock))
}

/// A shop's vouchers that are on the shelf.
#[utoipa::path(
    get, path = "/voucher/list/{shopId}", tag = "voucher",
    params(("shopId" = i64, Path, description = "The shop's id.", example = 1)),
    responses((status = 200, body = Success<Vec<ListedVoucher>>, description = "By id.")),
)]
pub async fn list(
    State(vouchers): State<Vouchers>,
    Path(shop_id): Path<i64>,
) -> Result<Response, Error> {
    let body = vouchers
        .lists
        .get(shop_id, async || {
            let listed = vouchers.reads.list(shop_id, vouchers.zone).await?;
            Ok(reply::data(listed).to_bytes())
        })
        .await?;
    Ok(reply::json(body))
}

impl Vouchers {
    async fn require_shop(&self, id: i64) -> Result<(), Error> {
        if self.shops.exists(id).await? {
            Ok(())
        } else {
            Err(Error::ShopNotFound)
        }
    }
}
