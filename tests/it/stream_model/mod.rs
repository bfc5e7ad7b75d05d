//! The protocol of the stream as a model that is explored by random walks: two instances, a Java node's consumer, failovers,
//! losses, orders that are cancelled. What docs/STREAM.md promises holds on every walk, and on some walk no more where any of
//! its rules is left out. Such walks then drive the scripts in a real Redis, which must do what the model does.

mod redis;
mod scripts;
mod world;

use testkit::redis_server::RedisServer;
use world::World;

const STEPS: usize = 300;

/// What is broken on a walk.
fn walk(seed: u64, without: &'static str) -> Option<String> {
    let mut world = World::new(seed, without);
    for _ in 0..STEPS {
        world.step();
    }
    world.settle();
    world.broken
}

#[test]
fn the_promises_hold_on_every_walk() {
    let walks = std::env::var("STREAM_WALKS").map_or(1000, |text| text.parse().expect("a number"));
    for seed in 1..=walks {
        assert_eq!(walk(seed, ""), None, "on walk {seed}");
    }
}

#[test]
fn without_any_of_its_rules_a_promise_is_broken() {
    for (rule, first) in [
        ("a mark names its master", 220),
        ("the stream keeps where we joined", 823),
        ("resolved under the mark", 3689),
        ("an entry counts once", 69),
        ("a refusal is a row", 852),
        ("no COMMIT is late", 29_185),
        ("unsure after it was sent", 11_996),
        ("unsure under a new mark", 454),
        ("ids begin at random", 1311),
        ("a late admission admits nobody", 421),
        ("closed where the lock was lost", 30),
        ("claims name who writes them", 30_238),
        ("a refusal in doubt is not said", 3870),
        ("a late count sets nothing", 4923),
        ("a row is locked while its count may run", 445),
        ("an admission ends before its order's grace", 16_652),
    ] {
        // The first such walk; another where the model is changed.
        let broken = (first..first + 50_000).find_map(|seed| Some((seed, walk(seed, rule)?)));
        println!("without {rule:?}: {broken:?}");
        let Some((seed, _)) = broken else {
            panic!("nothing is broken without {rule:?}")
        };
        assert_eq!(walk(seed, ""), None, "with every rule, on walk {seed}");
    }
}

#[tokio::test]
async fn the_scripts_do_what_the_model_does() {
    let server = RedisServer::start().await;
    let mut scripts = scripts::Scripts::load(server.conn().await).await;
    // Among them are walks on which each rule of the scripts makes a difference.
    for seed in (1..=25).chain([30, 40, 42, 57, 156, 181, 193, 236, 246, 852]) {
        let mut world = World::new(seed, "");
        (world.one_server, world.recorded) = (true, Some(Vec::new()));
        for _ in 0..STEPS {
            world.step();
        }
        println!("walk {seed}");
        scripts.replay(&world.recorded.unwrap_or_default()).await;
    }
}
