//! The refresh of a sale under a concurrency explorer: purchases that read a sale, or wait for another's reading, while
//! stock is added to a sold-out sale and its event arrives. Who reads after the event never sees "sold out", and nobody
//! reads while another does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use chrono::Utc;
use shuttle::future::{block_on, spawn, yield_now};

use super::tests::sale;
use super::{Entry, Sale};
use crate::sync::explored::{explore, some_time, unless_dropped};

/// A bug in the reader or in the event, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The version is taken after the query, so that an event in between is missed.
    TakesTheVersionLate,
    /// An event that finds no reading is thought to have nothing to invalidate; but one may be under way.
    IgnoresEventsWithoutAReading,
    /// The look after the wait for another's reading is left out.
    ReadsAfterTheWait,
}

#[derive(Default)]
struct World {
    entry: Entry,
    /// Whether the database has stock.
    has_stock: AtomicBool,
    /// The event of that has arrived.
    has_arrived: AtomicBool,
    queries: AtomicU32,
}

/// What `SaleCache::load` asks the database.
async fn query(world: &World) -> Arc<Sale> {
    world.queries.fetch_add(1, Ordering::SeqCst);
    some_time(4).await;
    let has_stock = world.has_stock.load(Ordering::SeqCst);
    some_time(4).await;
    Arc::new(sale(Utc::now(), |row| row.stock = i64::from(has_stock)))
}

/// What `SaleCache::get` does.
async fn get(world: &World, bug: Bug) -> Arc<Sale> {
    if let Some(sale) = world.entry.fresh() {
        return sale;
    }
    let _single_flight = world.entry.load.lock().await;
    if bug != Bug::ReadsAfterTheWait
        && let Some(sale) = world.entry.fresh()
    {
        return sale;
    }
    let (_, mut version) = world.entry.get();
    let sale = query(world).await;
    if bug == Bug::TakesTheVersionLate {
        version = world.entry.get().1;
    }
    world.entry.set(&sale, version);
    sale
}

async fn add_stock(world: Arc<World>, bug: Bug) {
    some_time(12).await;
    world.has_stock.store(true, Ordering::SeqCst);
    yield_now().await;
    if bug != Bug::IgnoresEventsWithoutAReading || world.entry.fresh().is_some() {
        world.entry.invalidate_if(|_| true);
    }
    world.has_arrived.store(true, Ordering::SeqCst);
}

fn run(bug: Bug) {
    block_on(async move {
        let world = Arc::new(World::default());
        let mut tasks = vec![spawn(add_stock(world.clone(), bug))];
        for number in 0..4 {
            let world = world.clone();
            tasks.push(spawn(async move {
                for _ in 0..3 {
                    some_time(6).await;
                    let has_arrived = world.has_arrived.load(Ordering::SeqCst);
                    // A dropped reader makes room for the next.
                    let sale = unless_dropped(get(&world, bug), number == 0).await;
                    let sold_out = sale.is_some_and(|sale| sale.sold_out);
                    assert!(!(has_arrived && sold_out), "sold out after the event");
                }
            }));
        }
        for task in tasks {
            task.await.expect("it ran to its end");
        }
        // One reading of each state, one that the event overtook, those that were dropped, and one for a reading that
        // became too old because this machine stood still.
        let queries = world.queries.load(Ordering::SeqCst);
        assert!(queries <= 7, "{queries} queries");
    });
}

#[test]
fn no_reading_from_before_an_event_is_used_after_it() {
    explore(false, || run(Bug::None));
}

#[test]
#[should_panic(expected = "sold out after the event")]
fn a_version_that_is_taken_late_is_found() {
    explore(true, || run(Bug::TakesTheVersionLate));
}

#[test]
#[should_panic(expected = "sold out after the event")]
fn an_event_that_is_ignored_during_a_first_reading_is_found() {
    explore(true, || run(Bug::IgnoresEventsWithoutAReading));
}

#[test]
#[should_panic(expected = "queries")]
fn reading_again_after_the_wait_is_found() {
    explore(true, || run(Bug::ReadsAfterTheWait));
}
