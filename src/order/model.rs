//! The types of orders and purchases. Pure: no I/O.

use chrono::NaiveDateTime;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;

/// A user who buys a voucher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buyer {
    /// `tb_user.id`.
    pub user_id: i64,
    /// `tb_voucher.id`.
    pub voucher_id: i64,
}

/// An order about to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewOrder {
    /// Drawn from [`crate::id::IdGenerator`].
    pub id: i64,
    /// The user, and the voucher.
    pub buyer: Buyer,
    /// Whether the database's unique index is to let it pass: only for strategies that are meant to
    /// fail, on lab sales.
    pub unguarded: bool,
}

/// A buyer's status in a sale, read at one moment.
#[derive(Debug)]
pub struct BuyerStatus {
    /// Left to sell.
    pub stock: i64,
    /// The buyer's order that is not cancelled, if any.
    pub order_id: Option<i64>,
}

impl BuyerStatus {
    /// Refuses a buyer who has an order, then one for whom nothing is left. The order comes first: a retry after
    /// a lost reply must get its id even when the sale has sold out meanwhile.
    pub fn require_chance(&self) -> Result<(), Error> {
        match self.order_id {
            Some(id) => Err(Error::AlreadyOrdered(Some(id))),
            None if self.stock < 1 => Err(Error::SoldOut),
            None => Ok(()),
        }
    }
}

/// The answer to a successful purchase.
#[derive(Clone, Copy, Debug)]
pub enum Purchased {
    /// The order with this id is committed.
    Committed(i64),
    /// A unit of the stock is reserved; the order will be committed or refused under this id.
    Pending(i64),
}

/// An order, as replies show it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct Order {
    // The example is an id of 2022. For an id of the day to come, a look-up answers 503, as the order may be about to be made.
    #[schema(example = 62_496_928_117_555_201_i64)]
    pub id: i64,
    /// The id as a string: it passes 2^53.
    #[schema(example = "62496928117555201")]
    pub order_id: String,
    pub user_id: i64,
    pub voucher_id: i64,
    /// 1 by balance, 2 Alipay, 3 WeChat.
    #[schema(example = 1)]
    pub pay_type: i64,
    /// 1 unpaid, 2 paid, 3 used, 4 cancelled, 5 refunding, 6 refunded.
    #[schema(minimum = 1, maximum = 6, example = 1)]
    pub status: i64,
    /// Local, without an offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub create_time: Option<NaiveDateTime>,
    /// Local, without an offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub pay_time: Option<NaiveDateTime>,
    /// Local, without an offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub use_time: Option<NaiveDateTime>,
    /// Local, without an offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub refund_time: Option<NaiveDateTime>,
    /// Local, without an offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub update_time: Option<NaiveDateTime>,
    /// The end of the time to pay, where orders expire; of unpaid and cancelled orders only. Local, without an offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:57:39")]
    pub expire_time: Option<NaiveDateTime>,
}

/// `tb_voucher_order.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStatus {
    /// 1: made, not paid yet.
    Unpaid,
    /// 2.
    Paid,
    /// 3: paid, and the voucher was used.
    Used,
    /// 4: its stock was returned, and its user may buy again.
    Cancelled,
    /// 5.
    Refunding,
    /// 6.
    Refunded,
}

/// Whether a row with this id and voucher is a refusal: its voucher is its own id, which no sale has. The refusals of earlier
/// versions have 0.
pub fn is_refusal(id: i64, voucher_id: i64) -> bool {
    voucher_id == id || voucher_id == 0
}

impl Order {
    /// Whether this row says that an order was refused under its id; see [`crate::order::store::decide`].
    pub fn is_refusal(&self) -> bool {
        is_refusal(self.id, self.voucher_id)
    }

    /// Whether it is this user's order of this voucher.
    pub fn is_of(&self, buyer: Buyer) -> bool {
        self.user_id == buyer.user_id && self.voucher_id == buyer.voucher_id
    }

    /// The status by name; `None` for a number that has none.
    pub fn status(&self) -> Option<OrderStatus> {
        use OrderStatus::{Cancelled, Paid, Refunded, Refunding, Unpaid, Used};
        let by_number = [Unpaid, Paid, Used, Cancelled, Refunding, Refunded];
        usize::try_from(self.status - 1)
            .ok()
            .and_then(|at| by_number.get(at).copied())
    }
}
