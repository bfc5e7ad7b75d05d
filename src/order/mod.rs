//! Orders. **How a purchase travels**, in the order of the code:
//!
//! 1. `http/admission.rs` refuses who is too many, `http/auth.rs` finds the session and refuses who has
//!    none.
//! 2. [`buy`] (below) hands the purchase to [`purchase::Purchasing`], which runs it in a task of its
//!    own: a client that hangs up does not stop it half-way.
//! 3. The sale is looked up and must be open (`voucher/sales.rs`).
//! 4. The sale's [`strategy`] takes over: one short file each. All of them read and write through
//!    [`store`], where every conditional statement stands as one function.
//! 5. The order row and the fallen stock are committed together, and only then is the id told.
//! 6. Conflicts are retried in [`purchase`]; a commit whose outcome is unknown is resolved in [`store`].
//!
//! On the rung `group-commit`, [`group`] takes the place of steps 2, 5 and 6. On `stream`, the id is told
//! before step 5, as pending: [`stream`] tells how.
//!
//! What becomes of the order afterwards is in [`lifetime`] (paid, or cancelled by its owner) and [`expiry`]
//! (cancelled because nobody paid).
//!
//! [`audit`] holds the ledger against its laws at any time.

use axum::extract::{FromRef, State};
use serde::{Deserialize, Serialize};

use crate::http::admission::{Admission, Admitted};
use crate::http::extract::{Json, Params, Path};
use crate::http::reply::{self, Reply};
use crate::http::session::CurrentUser;

pub mod audit;
pub mod expiry;
pub mod group;
pub mod lifetime;
pub mod model;
pub mod purchase;
pub mod stats;
pub mod steps;
pub mod store;
pub mod strategy;
pub mod stream;

use lifetime::Lifetime;
use model::{Buyer, Order};
use purchase::{Bought, Purchasing};
use stream::Found;

/// Body of `POST /voucher-order/seckill`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PurchaseRequest {
    voucher_id: i64,
}

/// Parameters of `GET /voucher-order/of/me`.
#[derive(Deserialize)]
pub struct PageRequest {
    #[serde(default = "first_page")]
    current: u32,
}

fn first_page() -> u32 {
    1
}

/// What the routes that buy work with.
#[derive(Clone)]
#[allow(missing_docs)] // as in [`crate::router::Parts`]
pub struct Checkout {
    pub admission: Admission,
    pub purchasing: Purchasing,
}

impl FromRef<Checkout> for Admission {
    fn from_ref(checkout: &Checkout) -> Self {
        checkout.admission.clone()
    }
}

impl FromRef<Checkout> for Purchasing {
    fn from_ref(checkout: &Checkout) -> Self {
        checkout.purchasing.clone()
    }
}

/// `POST /voucher-order/seckill/{id}`: buys one voucher.
pub async fn buy(
    State(purchasing): State<Purchasing>,
    Admitted { user_id, place }: Admitted,
    Path(voucher_id): Path<i64>,
) -> Reply<i64> {
    Ok(match purchasing.buy(Buyer { user_id, voucher_id }, place).await? {
        Bought::Ordered(id) => reply::order_id(id),
        Bought::Pending(id) => reply::pending_order(id),
    })
}

/// `POST /voucher-order/seckill`: the same, with the voucher's id in the body.
pub async fn buy_by_body(
    state: State<Purchasing>,
    admitted: Admitted,
    Json(request): Json<PurchaseRequest>,
) -> Reply<i64> {
    buy(state, admitted, Path(request.voucher_id)).await
}

/// An order that is looked up, or the id of one that is pending.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Looked {
    /// Committed.
    Order(Box<Order>),
    /// Admitted, and not decided yet.
    Pending(i64),
}

impl From<i64> for Looked {
    fn from(id: i64) -> Self {
        Looked::Pending(id)
    }
}

/// `GET /voucher-order/{orderId}`: one of the caller's own orders. Another's is as unknown as one
/// that does not exist. A pending one is answered as its purchase was, one that was refused as its
/// purchase would have been.
pub async fn get(
    State(purchasing): State<Purchasing>,
    user: CurrentUser,
    Path(id): Path<i64>,
) -> Reply<Looked> {
    Ok(match purchasing.stream().find(user.id, id).await? {
        Found::Ordered(order) => reply::data(Looked::Order(order)),
        Found::Pending => reply::pending_order(id),
    })
}

/// `GET /voucher-order/of/me`: the caller's orders, newest first.
pub async fn mine(
    State(purchasing): State<Purchasing>,
    user: CurrentUser,
    Params(page): Params<PageRequest>,
) -> Reply<Vec<Order>> {
    Ok(reply::data(purchasing.store().of_user(user.id, page.current).await?))
}

/// `POST /voucher-order/{orderId}/pay`: pays one of the caller's orders; `data` is the order.
pub async fn pay(
    State(lifetime): State<Lifetime>,
    user: CurrentUser,
    Path(id): Path<i64>,
) -> Reply<Order> {
    Ok(reply::data(lifetime.pay(id, user.id).await?))
}

/// `POST /voucher-order/{orderId}/cancel`: cancels one of the caller's unpaid orders and puts its voucher
/// back on sale; `data` is the order. The caller may buy again.
pub async fn cancel(
    State(lifetime): State<Lifetime>,
    user: CurrentUser,
    Path(id): Path<i64>,
) -> Reply<Order> {
    Ok(reply::data(lifetime.cancel(id, user.id).await?))
}
