//! The Lua scripts of the stream, named after their files.

use std::sync::LazyLock;

use redis::Script;

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(include_str!(concat!("../../../../lua/stream_", $file, ".lua")))
        });
    };
}

script!(ACKNOWLEDGE, "acknowledge");
script!(ADMIT, "admit");
script!(LEAVE, "leave");
script!(MAINTAIN, "maintain");
script!(NEW_EPOCH, "new_epoch");
script!(REBUILD_BEGIN, "rebuild_begin");
script!(REBUILD_END, "rebuild_end");
script!(RECLAIM, "reclaim");
script!(REPLAY, "replay");
