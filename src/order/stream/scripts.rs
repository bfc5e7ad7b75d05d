//! The scripts of the stream, under the names of their files.

use std::sync::LazyLock;

use redis::Script;

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(include_str!(concat!("../../../lua/stream_", $file, ".lua")))
        });
    };
}

script!(ADMIT, "admit");
script!(KEEP, "keep");
script!(LEAVE, "leave");
script!(REBUILD_BEGIN, "rebuild_begin");
script!(REBUILD_END, "rebuild_end");
script!(RECLAIM, "reclaim");
script!(RENEW, "renew");
script!(REPLAY, "replay");
script!(SETTLE, "settle");
