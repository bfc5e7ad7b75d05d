//! Every Lua script of this crate by file name, for tools that check or preload them.

macro_rules! scripts {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../../lua/", $name)))),*] };
}

/// Name and text of every script in `lua/`.
pub const SCRIPTS: &[(&str, &str)] = scripts! {
    "bloom_add.lua"
    "bloom_check.lua"
    "bloom_fill_begin.lua"
    "bloom_fill_end.lua"
    "invalidate.lua"
    "lease_get.lua"
    "lease_set.lua"
    "mutex_release.lua"
    "set.lua"
};
