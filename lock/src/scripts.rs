//! Every Lua script of this crate by file name, for tools that check or preload them.

macro_rules! scripts {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../lua/", $name)))),*] };
}

/// Name and text of every script in `lua/`.
pub const SCRIPTS: &[(&str, &str)] = scripts! {
    "acquire.lua"
    "fair_acquire.lua"
    "fair_force_unlock.lua"
    "fair_queue.lua"
    "fair_release.lua"
    "fenced_acquire.lua"
    "force_unlock.lua"
    "permit_acquire.lua"
    "permit_available.lua"
    "permit_extend.lua"
    "permit_release.lua"
    "read_acquire.lua"
    "read_release.lua"
    "read_write_force_unlock.lua"
    "read_write_renew.lua"
    "release.lua"
    "renew.lua"
    "semaphore_acquire.lua"
    "semaphore_give.lua"
    "semaphore_set.lua"
    "setnx_release.lua"
    "tell.lua"
    "touch.lua"
    "write_acquire.lua"
    "write_release.lua"
};
