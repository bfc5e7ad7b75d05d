//! Vouchers: publishing ordinary and flash-sale vouchers (admin), and listing a shop's. What a
//! purchase needs to know of a sale is in [`sales`].

use axum::extract::State;
use redis::AsyncCommands;
use redis::aio::ConnectionManager;

use crate::clock::Zone;
use crate::error::Error;
use crate::http::extract::{Json, Path};
use crate::http::reply::{self, Reply};
use crate::shop::Shops;

pub mod publish;
pub mod sales;
pub mod store;
pub mod strategy;

use publish::{NewSeckillVoucher, NewVoucher};
use store::{Listed, VoucherStore};

/// The vouchers, as the routes see them.
#[derive(Clone)]
pub struct Vouchers {
    /// The SQL.
    pub store: VoucherStore,
    /// For the stock that the Lua gate of a Java node reads.
    pub redis: ConnectionManager,
    /// A voucher is published for a shop that exists.
    pub shops: Shops,
    /// In which date-times are read and written.
    pub zone: Zone,
    /// Whether sales on unsafe strategies may be published.
    pub lab: bool,
}

/// `POST /voucher` (admin): publishes an ordinary voucher.
pub async fn publish(State(vouchers): State<Vouchers>, Json(new): Json<NewVoucher>) -> Reply<i64> {
    new.check()?;
    vouchers.require_shop(new.shop_id).await?;
    Ok(reply::data(vouchers.store.insert(&new).await?))
}

/// `POST /voucher/seckill` (admin): publishes a voucher and its flash sale.
pub async fn publish_seckill(
    State(vouchers): State<Vouchers>,
    Json(new): Json<NewSeckillVoucher>,
) -> Reply<i64> {
    let sale = new.check(vouchers.zone, vouchers.lab)?;
    vouchers.require_shop(new.voucher.shop_id).await?;
    let mut redis = vouchers.redis.clone();
    let id = vouchers
        .store
        .insert_sale(&new.voucher, &sale, async |id| {
            // Before the commit: a sale is either in both places or in neither. A commit that fails
            // leaves a key under an id that no sale has.
            Ok(redis.set::<_, _, ()>(format!("seckill:stock:{id}"), sale.stock).await?)
        })
        .await?;
    tracing::info!(voucher_id = id, stock = sale.stock, strategy = %sale.strategy, "sale published");
    Ok(reply::data(id))
}

/// `GET /voucher/list/{shopId}`: a shop's vouchers that are on the shelf.
pub async fn list(
    State(vouchers): State<Vouchers>,
    Path(shop_id): Path<i64>,
) -> Reply<Vec<Listed>> {
    Ok(reply::data(vouchers.store.list(shop_id, vouchers.zone).await?))
}

impl Vouchers {
    async fn require_shop(&self, id: i64) -> Result<(), Error> {
        if self.shops.exists(id).await? { Ok(()) } else { Err(Error::ShopNotFound) }
    }
}
