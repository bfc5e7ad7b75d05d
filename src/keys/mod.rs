//! Names of the Redis keys of the sales and of the stream of orders, in one of two styles.
//!
//! - **default**: the names that Java nodes share, `stream.orders` and `seckill:stock:17`.
//! - **cluster**: on a Redis Cluster a script's keys must share a slot, and the stream is one key. So the names of all keys
//!   that its scripts touch have one tag in braces, which alone is hashed: `stream.orders:{orders}`,
//!   `seckill:stock:{orders}:17`. All sales on the strategy `stream` are thus on one master.
//!
//! Every other key is alone in its commands, or contains in braces the name of the key that it accompanies
//! (`{login:code:13800138000}:sends`), so that its name is the same in both styles.

use std::fmt;
use std::sync::Arc;

pub mod record;
pub mod rights;

/// How long after a sale's end its keys are kept, seconds.
pub const KEPT_SECONDS: i64 = 86_400;

/// How the keys of the sales and of the stream of orders are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyStyle {
    /// The names that Java nodes share; not on a cluster.
    Default,
    /// Names with the slot in braces; on any Redis.
    Cluster,
}

impl fmt::Display for KeyStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyStyle::Default => "default",
            KeyStyle::Cluster => "cluster",
        })
    }
}

/// The names of keys. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The style of all of them.
    pub style: KeyStyle,
    /// What keeps them in one slot: `:{orders}`; empty in the default style.
    tag: &'static str,
    /// The stream. Fields of an entry: `userId`, `voucherId`, `id`.
    pub stream: Arc<str>,
    /// Hash: the pending orders of each user, and the mark; see `lua/stream_mark.lua`.
    pub pending: Arc<str>,
    /// Dead-letter stream: entries that cannot be turned into orders, each with its error.
    pub dead: Arc<str>,
}

impl Keys {
    /// The names in this style.
    pub fn new(style: KeyStyle) -> Self {
        let tag = match style {
            KeyStyle::Default => "",
            KeyStyle::Cluster => ":{orders}",
        };
        let name = |name: &str| format!("stream.orders{name}{tag}").into();
        Keys {
            style,
            tag,
            stream: name(""),
            pending: name(".pending"),
            dead: name(".dead"),
        }
    }

    /// The stock counter of a sale: how many more are admitted.
    pub fn stock(&self, voucher_id: i64) -> String {
        self.name("stock", voucher_id)
    }

    /// Sets the stock counter of a sale that ends at this time, seconds since 1970.
    pub fn set_stock(&self, voucher_id: i64, stock: i64, ends: i64) -> redis::Cmd {
        let mut set = redis::cmd("SET");
        set.arg(self.stock(voucher_id))
            .arg(stock)
            .arg("EXAT")
            .arg(ends + KEPT_SECONDS);
        set
    }

    /// The claims of a sale: a set of the users who hold a unit of the stock, and the mark under which it is complete.
    pub fn claims(&self, voucher_id: i64) -> String {
        self.name("order", voucher_id)
    }

    /// The mark under which a sale is open.
    pub fn open(&self, voucher_id: i64) -> String {
        self.name("open", voucher_id)
    }

    /// Why a pending order was refused.
    pub fn refused(&self, order_id: impl fmt::Display) -> String {
        self.name("refused", order_id)
    }

    /// The counter of order ids of a day.
    pub fn ids(&self, day: impl fmt::Display) -> String {
        format!("icr:order{}:{day}", self.tag)
    }

    fn name(&self, name: &str, id: impl fmt::Display) -> String {
        format!("seckill:{name}{}:{id}", self.tag)
    }
}
