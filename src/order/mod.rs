//! Orders: purchases, look-ups, payment and cancellation. **The path of a purchase**, in the order of the code:
//!
//! 1. `http/admission.rs` sheds load, limits rates, and finds the session.
//! 2. [`buy`] (below) hands the purchase to [`purchase::PurchaseService`]; the sale is looked up and must be open
//!    (`voucher/sales.rs`).
//! 3. A client that hangs up does not stop the purchase half-way (`http/listen.rs`).
//! 4. The sale's [`strategy`] takes over: one file or folder each. All of them read and write through
//!    [`store`]; what a transaction can do is a method of [`store::OrderTransaction`].
//! 5. The order row and the lowered stock are committed together, and only then is the id returned.
//! 6. Conflicts are retried in [`purchase`]; a commit without a reply is decided by
//!    a row under the order's id ([`store::commit`], [`store::decide`]).
//!
//! On the strategy `group-commit`, a queue replaces steps 5 and 6 ([`strategy::group_commit`]). On `stream`, the id is
//! returned before step 5, as pending ([`strategy::stream`]); on `memory-queue`, as if it were committed.
//!
//! After the purchase, an order is looked up ([`lookup`]), paid or cancelled by its owner ([`lifetime`]), or cancelled because it was not paid in
//! time ([`expiry`]). [`audit`] checks the invariants of every sale at any time.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::error::Error;
use crate::http::admission::{Admitted, SignedIn};
use crate::http::docs::{CommittedOrder, PendingOrder, Success};
use crate::http::extract::{Json, Params, Path};
use crate::http::reply::{self, Reply};

pub mod audit;
pub mod batch;
mod deadline;
pub mod expiry;
pub mod lifetime;
pub mod lookup;
pub mod model;
pub mod process_locks;
pub mod purchase;
mod recent_buyers;
mod retry;
pub mod stats;
pub mod steps;
pub mod store;
pub mod strategy;

use lifetime::Lifetime;
use lookup::OrderLookup;
use model::{Buyer, Order, Purchased};
use purchase::PurchaseService;

/// Body of `POST /voucher-order/seckill`.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PurchaseRequest {
    /// The voucher of a flash sale.
    #[schema(example = 2)]
    voucher_id: i64,
}

/// Parameters of `GET /voucher-order/of/me`.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageRequest {
    /// The page; pages count from 1.
    #[serde(default = "first_page")]
    #[param(value_type = Option<i64>, minimum = 1, maximum = 4_294_967_295_i64, example = 1)]
    current: u32,
}

fn first_page() -> u32 {
    1
}

/// Failures of both purchase routes, by code.
const PURCHASE_CODES: [&str; 9] = [
    "SOLD_OUT",
    "STOCK_CHANGED",
    "ALREADY_ORDERED",
    "LOCK_BUSY",
    "SALE_NOT_BEGUN",
    "SALE_ENDED",
    "VOUCHER_NOT_FOUND",
    "LAB_ONLY",
    "OUTCOME_UNKNOWN",
];

/// Buys one voucher of a flash sale.
///
/// 200 means that the order is committed, but on strategies that are meant to fail. A refusal means that this request made no order; `ALREADY_ORDERED`
/// has the id of the existing order, once it is known. After `OUTCOME_UNKNOWN` an order may exist: look it up by its id.
#[utoipa::path(
    post, path = "/voucher-order/seckill/{id}", tag = "order", security(("authorization" = [])),
    params(("id" = i64, Path, description = "The voucher's id.", example = 2)),
    responses(
        (status = 200, body = CommittedOrder, description = "Bought: the order is committed (but on strategies that are meant to fail, with `--lab` only)."),
        (status = 202, body = PendingOrder, description = "Pending: stock is reserved, and the order is committed in a \
            moment (sales on `stream`). Look it up by its id."),
    ),
    extensions(("x-codes" = json!(PURCHASE_CODES))),
)]
pub async fn buy(
    State(purchases): State<PurchaseService>,
    admitted: Admitted<Path<i64>>,
) -> Reply<i64> {
    let Path(voucher_id) = admitted.input;
    let buyer = Buyer {
        user_id: admitted.user_id,
        voucher_id,
    };
    reply_of(purchases.buy(buyer, admitted.permit).await?)
}

fn reply_of(purchased: Purchased) -> Reply<i64> {
    Ok(match purchased {
        Purchased::Committed(id) => reply::order_id(id),
        Purchased::Pending(id) => reply::pending_order(id),
    })
}

/// Buys one voucher of a flash sale, its id in the body.
///
/// The same purchase as with the id in the path.
#[utoipa::path(
    post, path = "/voucher-order/seckill", tag = "order", security(("authorization" = [])),
    request_body = PurchaseRequest,
    responses(
        (status = 200, body = CommittedOrder, description = "Bought: the order is committed (but on strategies that are meant to fail, with `--lab` only)."),
        (status = 202, body = PendingOrder, description = "Pending: stock is reserved, and the order is committed in a \
            moment (sales on `stream`). Look it up by its id."),
    ),
    extensions(("x-codes" = json!(PURCHASE_CODES))),
)]
pub async fn buy_by_body(
    State(purchases): State<PurchaseService>,
    admitted: Admitted<Json<PurchaseRequest>>,
) -> Reply<i64> {
    let Json(request) = admitted.input;
    let buyer = Buyer {
        user_id: admitted.user_id,
        voucher_id: request.voucher_id,
    };
    reply_of(purchases.buy(buyer, admitted.permit).await?)
}

/// One of the caller's own orders.
///
/// Another user's order is not found. A pending order gets the answer that its purchase got; a refused one gets the
/// refusal.
#[utoipa::path(
    get, path = "/voucher-order/{orderId}", tag = "order", security(("authorization" = [])),
    params(("orderId" = i64, Path, description = "The order's id.", example = 62_496_928_117_555_201_i64)),
    responses(
        (status = 200, body = Success<Order>, description = "The order."),
        (status = 202, body = PendingOrder, description = "Pending: stock is reserved, and the order is \
            neither committed nor refused yet."),
    ),
    extensions(("x-codes" = json!([
        "ORDER_NOT_FOUND", "SOLD_OUT", "ALREADY_ORDERED", "VOUCHER_NOT_FOUND", "ORDER_FAILED"
    ]))),
)]
pub async fn get(
    State(lookup): State<OrderLookup>,
    signed_in: SignedIn,
    Path(id): Path<i64>,
) -> Result<Response, Error> {
    Ok(match lookup.find(signed_in.user_id, id).await? {
        Some(order) => reply::data(order).into_response(),
        None => reply::pending_order(id).into_response(),
    })
}

/// A page of the caller's orders, ten of them, newest first.
#[utoipa::path(
    get, path = "/voucher-order/of/me", tag = "order", security(("authorization" = [])),
    params(PageRequest),
    responses((status = 200, body = Success<Vec<Order>>, description = "Newest first.")),
)]
pub async fn mine(
    State(lookup): State<OrderLookup>,
    signed_in: SignedIn,
    Params(page): Params<PageRequest>,
) -> Reply<Vec<Order>> {
    let orders = lookup.page(signed_in.user_id, page.current).await?;
    Ok(reply::data(orders))
}

/// Pays one of the caller's orders.
///
/// No bank is called. Idempotent. A pending order is not paid, and is `OUTCOME_UNKNOWN`; a refused one gets its refusal.
#[utoipa::path(
    post, path = "/voucher-order/{orderId}/pay", tag = "order", security(("authorization" = [])),
    params(("orderId" = i64, Path, description = "The order's id.", example = 62_496_928_117_555_201_i64)),
    responses((status = 200, body = Success<Order>, description = "The order as it is now.")),
    extensions(("x-codes" = json!([
        "ORDER_NOT_FOUND", "ORDER_CANCELLED", "ORDER_REFUNDED", "SOLD_OUT", "ALREADY_ORDERED",
        "VOUCHER_NOT_FOUND", "ORDER_FAILED", "OUTCOME_UNKNOWN"
    ]))),
)]
pub async fn pay(
    State(lifetime): State<Lifetime>,
    signed_in: SignedIn,
    Path(id): Path<i64>,
) -> Reply<Order> {
    Ok(reply::data(lifetime.pay(id, signed_in.user_id).await?))
}

/// Cancels one of the caller's unpaid orders and puts its voucher back on sale.
///
/// The caller may buy again. Idempotent. A pending order is not cancelled, and is `OUTCOME_UNKNOWN`; a refused one gets
/// its refusal.
#[utoipa::path(
    post, path = "/voucher-order/{orderId}/cancel", tag = "order",
    security(("authorization" = [])),
    params(("orderId" = i64, Path, description = "The order's id.", example = 62_496_928_117_555_201_i64)),
    responses((status = 200, body = Success<Order>, description = "The order as it is now.")),
    extensions(("x-codes" = json!([
        "ORDER_NOT_FOUND", "ALREADY_PAID", "ORDER_REFUNDED", "SOLD_OUT", "ALREADY_ORDERED",
        "VOUCHER_NOT_FOUND", "ORDER_FAILED", "OUTCOME_UNKNOWN"
    ]))),
)]
pub async fn cancel(
    State(lifetime): State<Lifetime>,
    signed_in: SignedIn,
    Path(id): Path<i64>,
) -> Reply<Order> {
    Ok(reply::data(lifetime.cancel(id, signed_in.user_id).await?))
}
