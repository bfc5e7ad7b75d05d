//! The Lua scripts of the service, each named after its file in `lua/`, where its header says what it does.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($name:ident $head:tt $file:literal)+) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(text!($head $file)));)+
    };
}

macro_rules! text {
    (- $file:literal) => {
        include_str!(concat!("../lua/", $file))
    };
    // The scripts of the stream share a head.
    (marked $file:literal) => {
        concat!(
            include_str!("../lua/stream_mark.lua"),
            include_str!(concat!("../lua/", $file))
        )
    };
}

scripts! {
    ADDRESS_COUNT - "address_count.lua"
    CODE_USE - "code_use.lua"
    GEO_STORE - "geo_store.lua"
    ID_LEASE marked "id_lease.lua"
    MEMORY_ADMIT - "memory_admit.lua"
    RIGHTS_CHECK - "rights_check.lua"
    SESSION_RENEW - "session_renew.lua"
    STREAM_ADMIT marked "stream_admit.lua"
    STREAM_LOOK marked "stream_look.lua"
    STREAM_OPEN marked "stream_open.lua"
    STREAM_RESOLVE marked "stream_resolve.lua"
}
