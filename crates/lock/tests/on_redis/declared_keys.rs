//! The keys that scripts use. Some clusters accept a script only if each is written as `KEYS[n]`.

use std::path::Path;

/// The keys that a script uses: the first argument of each call, except TIME, which has none.
fn keys(script: &str) -> impl Iterator<Item = &str> {
    let calls = script.split("redis.call('").skip(1);
    calls.filter_map(|call| {
        let (command, arguments) = call.split_once('\'')?;
        let key = arguments.strip_prefix(", ")?;
        let end = key.find([',', ')'])?;
        (command != "TIME").then_some(&key[..end])
    })
}

/// Each hold of a reader has a key of its own, and only the server knows how many there are.
#[test]
fn every_key_is_declared_but_those_of_readers_holds() {
    let mut scripts = 0;
    let mut computing = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let script = std::fs::read_to_string(&path).unwrap();
        scripts += 1;
        if !keys(&script).all(|key| key.starts_with("KEYS[")) {
            computing.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    computing.sort();
    let of_readers = [
        "read_acquire",
        "read_release",
        "read_write_force_unlock",
        "read_write_renew",
    ];
    assert_eq!(computing, of_readers);
    assert!(scripts > 10, "{scripts} scripts");
}
