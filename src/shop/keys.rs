//! Redis keys of shops.

/// The cached list of shop types.
pub const SHOP_TYPES: &str = "cache:shop:type";

/// The cached shop with this id.
pub fn shop(id: i64) -> String {
    format!("cache:shop:{id}")
}

/// The id in a key that [`shop`] made.
pub fn shop_id(key: &str) -> Option<i64> {
    key.rsplit(':').next()?.parse().ok()
}

/// The GEO index of a shop type. Invalidated when one of its shops is written, which also deletes the
/// lease of a build under way.
pub fn geo_index(type_id: i64) -> String {
    format!("shop:geo:{type_id}")
}
