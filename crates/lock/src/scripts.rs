//! The Lua scripts of this crate. Each script's header says what it does, its keys, arguments and
//! reply.

macro_rules! scripts {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../lua/", $name)))),*] };
}

/// File name and text of every script in `lua/`, for tools that check or preload them.
pub const SCRIPTS: &[(&str, &str)] = scripts! {
    "acquire.lua"
    "fair_acquire.lua"
    "fair_force_unlock.lua"
    "fair_queue.lua"
    "fair_release.lua"
    "fenced_acquire.lua"
    "force_unlock.lua"
    "notify.lua"
    "permit_acquire.lua"
    "permit_available.lua"
    "permit_extend.lua"
    "permit_release.lua"
    "read_acquire.lua"
    "read_release.lua"
    "read_write_force_unlock.lua"
    "read_write_renew.lua"
    "release.lua"
    "release_latch.lua"
    "renew.lua"
    "semaphore_acquire.lua"
    "semaphore_release.lua"
    "semaphore_set.lua"
    "setnx_release.lua"
    "touch.lua"
    "write_acquire.lua"
    "write_release.lua"
};

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

#[cfg(test)]
mod tests {
    use super::SCRIPTS;

    #[test]
    fn every_script_is_listed() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap();
        let mut files: Vec<String> =
            folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        assert_eq!(files, SCRIPTS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}
