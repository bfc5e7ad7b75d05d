//! The Lua scripts of this crate. Each script's header says what it does, its keys, arguments and
//! reply.

/// A `static` [`redis::Script`] of one file of `lua/`, or of several that are joined in this order.
macro_rules! script {
    ($name:ident = $($file:literal),+) => {
        static $name: std::sync::LazyLock<redis::Script> = std::sync::LazyLock::new(|| {
            redis::Script::new(concat!($(include_str!(
                concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $file)
            )),+))
        });
    };
}

pub(crate) use script;
