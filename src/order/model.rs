//! What an order is. No I/O may come in here.

use chrono::NaiveDateTime;
use serde::Serialize;
use utoipa::ToSchema;

/// Who wants what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buyer {
    /// `tb_user.id`.
    pub user_id: i64,
    /// `tb_voucher.id`.
    pub voucher_id: i64,
}

/// An order about to be inserted.
#[derive(Clone, Copy, Debug)]
pub struct NewOrder {
    /// Drawn from [`crate::id::Ids`].
    pub id: i64,
    /// Whose it is, and of what.
    pub buyer: Buyer,
    /// Whether the database's unique index is to let it pass: only for strategies that are meant to
    /// fail, on lab sales.
    pub unguarded: bool,
}

/// An order, as replies show it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // the contract's fields, under the contract's names
pub struct Order {
    #[schema(example = 664_983_478_263_808_001_i64)]
    pub id: i64,
    /// The id as a string: it passes 2^53.
    #[schema(example = "664983478263808001")]
    pub order_id: String,
    pub user_id: i64,
    pub voucher_id: i64,
    /// 1 by balance, 2 Alipay, 3 WeChat.
    #[schema(example = 1)]
    pub pay_type: i64,
    /// 1 unpaid, 2 paid, 3 used, 4 cancelled, 5 refunding, 6 refunded.
    #[schema(minimum = 1, maximum = 6, example = 1)]
    pub status: i64,
    /// Local, without a zone.
    #[schema(value_type = String, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub create_time: NaiveDateTime,
    /// Local, without a zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub pay_time: Option<NaiveDateTime>,
    /// Local, without a zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub use_time: Option<NaiveDateTime>,
    /// Local, without a zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub refund_time: Option<NaiveDateTime>,
    /// Local, without a zone.
    #[schema(value_type = String, pattern = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$", example = "2026-01-04T09:42:39")]
    pub update_time: NaiveDateTime,
}

/// `tb_voucher_order.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// 1: a place is held.
    Unpaid,
    /// 2.
    Paid,
    /// 3: paid, and the voucher was used.
    Used,
    /// 4: the place was given back.
    Cancelled,
    /// 5.
    Refunding,
    /// 6.
    Refunded,
}

impl Order {
    /// The status by name; `None` for a number that has none.
    pub fn status(&self) -> Option<Status> {
        Some(match self.status {
            1 => Status::Unpaid,
            2 => Status::Paid,
            3 => Status::Used,
            4 => Status::Cancelled,
            5 => Status::Refunding,
            6 => Status::Refunded,
            _ => return None,
        })
    }
}
