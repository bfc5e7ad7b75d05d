//! The Lua scripts of the service, each named after its file in `lua/`, where its header says what it does.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($name:ident $file:literal)+) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("../lua/", $file))));)+

        /// The text of every script, by the name of its file: for `doctor`.
        pub(crate) const ALL: &[(&str, &str)] =
            &[$(($file, include_str!(concat!("../lua/", $file)))),+];
    };
}

scripts! {
    ADDRESS_COUNT "address_count.lua"
    CODE_SEND "code_send.lua"
    CODE_USE "code_use.lua"
    GEO_CLAIM "geo_claim.lua"
    GEO_SEARCH "geo_search.lua"
    GEO_STORE "geo_store.lua"
    RIGHTS_CHECK "rights_check.lua"
    SALE_EXPIRE "sale_expire.lua"
    SESSION_RENEW "session_renew.lua"
    STOCK_ADDED "stock_added.lua"
    STOCK_RETURNED "stock_returned.lua"
    STREAM_ADOPT "stream_adopt.lua"
    STREAM_ACKNOWLEDGE "stream_acknowledge.lua"
    STREAM_ADMIT "stream_admit.lua"
    STREAM_DROP_CLAIM "stream_drop_claim.lua"
    STREAM_FOREIGN_FIND "stream_foreign_find.lua"
    STREAM_FOREIGN_PENDING "stream_foreign_pending.lua"
    STREAM_FOREIGN_RESOLVE "stream_foreign_resolve.lua"
    STREAM_FOREIGN_TAKEOVER "stream_foreign_takeover.lua"
    STREAM_CONSUMERS "stream_consumers.lua"
    STREAM_LEAVE "stream_leave.lua"
    STREAM_MAINTAIN "stream_maintain.lua"
    STREAM_NEW_EPOCH "stream_new_epoch.lua"
    STREAM_REBUILD_BEGIN "stream_rebuild_begin.lua"
    STREAM_REBUILD_CLAIMS "stream_rebuild_claims.lua"
    STREAM_REBUILD_END "stream_rebuild_end.lua"
    STREAM_RECLAIM "stream_reclaim.lua"
    STREAM_REPLAY "stream_replay.lua"
    STREAM_SETTLED "stream_settled.lua"
}
