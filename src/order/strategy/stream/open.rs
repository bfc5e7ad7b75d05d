//! Looks at the sales that are open, round after round, and has those [counted](super::count) that need it.
//!
//! Every process looks at all sales twice a second, whether anybody buys or not: a Java node's script needs the counter
//! of every sale. Which process comes first does not matter. With tens of thousands of sales a round takes longer, and the
//! pause after it too; a sale that somebody asks for is counted in between.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use strategies::Strategy;
use tokio::time::Instant;

use super::Member;
use super::replies::{Ask, Mark};
use crate::error::Error;
use crate::keys::record;
use crate::order::store::count::OpenSale;
use crate::voucher::recounts::RequestedCounts;

/// Pause between two rounds. It does not depend on the time that a round takes: one slow answer would keep sales closed.
const ROUND: Duration = Duration::from_millis(500);

/// What each sale adds to this pause.
const PER_SALE: Duration = Duration::from_micros(50);

/// Pause between two looks at sales that were asked for; after a look that failed, [`ROUND`].
const ASKED: Duration = Duration::from_millis(20);

/// Sales that are looked at in one pipeline.
const PAGE: usize = 500;

/// What is to be done for a sale.
#[derive(Debug, PartialEq)]
enum Action {
    /// A Java node published it, and sells it by its counter: it is to be sold on the stream.
    Adopt,
    /// It has another strategy, and a Java node's script needs its counter. A counter that is there is kept unless `replaces`.
    SetCounter { replaces: bool },
    /// It is counted; one that is not open is closed first.
    Count { is_open: bool },
    /// It is counted if its counter is below the stock by more than its pending orders.
    Compare { counter: i64 },
}

/// What one round remembers for the next.
#[derive(Default)]
struct RoundMemory {
    mark: String,
    /// Stock and counter of sales whose counter was below the stock.
    counters: HashMap<i64, (i64, i64)>,
    /// Since when each closed sale is closed.
    closed: HashMap<i64, Instant>,
    /// Sales with a key that holds something else, which was logged.
    foreign: HashSet<i64>,
}

impl RoundMemory {
    /// Forgets all but these sales.
    fn retain(&mut self, sales: &[OpenSale]) {
        let listed: HashSet<i64> = sales.iter().map(|sale| sale.voucher_id).collect();
        self.closed.retain(|sale, _| listed.contains(sale));
        self.counters.retain(|sale, _| listed.contains(sale));
        self.foreign.retain(|sale| listed.contains(sale));
    }

    /// What a sale with these keys needs under this mark.
    fn plan(&mut self, sale: &OpenSale, keys: SaleKeys, is_requested: bool) -> Option<Action> {
        let voucher_id = sale.voucher_id;
        if sale.issued.is_none() {
            // Without a counter a Java node of an earlier stage published it, which sells by the table alone.
            return keys.counter.map(|_| Action::Adopt);
        }
        if sale.strategy != Strategy::Stream.name() {
            let replaces = is_requested || keys.foreign == Some("counter");
            let sets = keys.counter.is_none() || replaces;
            return sets.then_some(Action::SetCounter { replaces });
        }
        let is_open =
            keys.open.as_ref() == Some(&self.mark) && keys.counter.is_some() && keys.has_claims;
        if is_open {
            self.closed.remove(&voucher_id);
        } else {
            self.closed.entry(voucher_id).or_insert_with(Instant::now);
        }
        match keys.foreign {
            None => drop(self.foreign.remove(&voucher_id)),
            Some(key) if self.foreign.insert(voucher_id) => {
                tracing::warn!(
                    voucher_id,
                    key,
                    "a key of a sale holds something else; the sale is counted"
                );
            }
            Some(_) => {}
        }
        // The counter of a busy sale changes all the time: only one that stands still is compared with the stock.
        let before = self.counters.remove(&voucher_id);
        if !is_open || is_requested || sale.has_returns != 0 {
            return Some(Action::Count { is_open });
        }
        let counter = keys.counter.filter(|counter| *counter < sale.stock)?;
        let now = (sale.stock, counter);
        self.counters.insert(voucher_id, now);
        if before == Some(now) {
            Some(Action::Compare { counter })
        } else {
            None
        }
    }
}

impl Member {
    /// Looks at the sales until the process stops.
    pub(super) async fn keep_open(self: Arc<Self>) {
        let mut memory = RoundMemory::default();
        let mut logged = false;
        let mut round_due = Instant::now();
        while !self.is_stopped() {
            let all = Instant::now() >= round_due;
            let requests = self.recounts.take();
            let looked = self.look_at_sales(&mut memory, all, &requests).await;
            if all {
                let sales = *looked.as_ref().unwrap_or(&0);
                round_due = Instant::now() + ROUND + PER_SALE * sales;
            }
            if let Err(error) = looked {
                if !logged {
                    tracing::warn!(%error, "sales are not counted; trying again");
                }
                logged = true;
                self.recounts.put_back(requests);
                self.sleep(ROUND).await;
                continue;
            }
            logged = false;
            self.sleep(ASKED).await;
            let next_request = tokio::time::timeout_at(round_due, self.recounts.next_request());
            let _ended = self.stop.run_until_cancelled(next_request).await;
        }
    }

    /// Looks at all sales, or at those that were asked for; returns how many.
    async fn look_at_sales(
        self: &Arc<Self>,
        memory: &mut RoundMemory,
        all: bool,
        requests: &RequestedCounts,
    ) -> Result<u32, Error> {
        let view = self.view(Ask::Tidy("")).await?;
        self.stats.pending.store(view.users, Relaxed);
        let oldest = view
            .entries
            .first()
            .and_then(|entry| entry.id.split('-').next()?.parse().ok());
        let age = oldest.map_or(0, |ms: i64| self.clock.now_us() / 1000 - ms);
        self.stats.lag_ms.store(age.max(0) as u64, Relaxed);
        let mark = view.mark;
        let is_new_mark = mark.text != memory.mark;
        let all = all || is_new_mark;
        if is_new_mark {
            tracing::info!("Redis has other data, or another master: sales are counted anew");
            record::keep(&mut self.redis.clone(), self.keys.style).await?;
            memory.mark.clone_from(&mark.text);
        }
        if requests.is_empty() && !all {
            return Ok(0);
        }
        let among = if all {
            None
        } else {
            Some(requests.keys().copied().collect())
        };
        let sales = self.store.open_sales(among).await?;
        let count = u32::try_from(sales.len()).unwrap_or(u32::MAX);
        if all {
            memory.retain(&sales);
        }
        let mut to_count = Vec::new();
        let mut suspects = Vec::new();
        for sales in sales.chunks(PAGE) {
            let keys = self.keys_of(sales, &mark).await?;
            for (sale, keys) in sales.iter().zip(keys) {
                let is_requested = requests.contains_key(&sale.voucher_id);
                match memory.plan(sale, keys, is_requested) {
                    None => {}
                    Some(Action::Adopt) => self.begin_to_adopt(sale.voucher_id),
                    Some(Action::SetCounter { replaces }) => {
                        self.set_counter(sale, replaces).await?;
                    }
                    Some(Action::Count { is_open }) => to_count.push((sale.clone(), is_open)),
                    Some(Action::Compare { counter }) => suspects.push((sale.clone(), counter)),
                }
            }
        }
        self.note_closed(&memory.closed, requests);
        if !to_count.is_empty() || !suspects.is_empty() {
            self.begin_to_count(to_count, suspects, mark, requests)
                .await?;
        }
        Ok(count)
    }

    /// The keys of each of these sales.
    async fn keys_of(&self, sales: &[OpenSale], mark: &Mark) -> Result<Vec<SaleKeys>, Error> {
        let keys = &self.keys;
        let mut state = redis::pipe();
        for OpenSale { voucher_id, .. } in sales {
            state
                .get(keys.open(*voucher_id))
                .get(keys.stock(*voucher_id))
                .sismember(keys.claims(*voucher_id), &mark.text);
        }
        let values: Vec<redis::RedisResult<Option<String>>> = state
            .ignore_errors()
            .query_async(&mut self.redis.clone())
            .await?;
        values.chunks(3).map(SaleKeys::parse).collect()
    }

    /// Has sales counted: those of `to_count`, and those of the suspects (each with its counter) that miss stock.
    async fn begin_to_count(
        self: &Arc<Self>,
        mut to_count: Vec<(OpenSale, bool)>,
        suspects: Vec<(OpenSale, i64)>,
        mark: Mark,
        requests: &RequestedCounts,
    ) -> Result<(), Error> {
        let unresolved = self.read_unresolved(mark).await?;
        for (sale, counter) in suspects {
            let pending = unresolved.sales.get(&sale.voucher_id).map_or(0, Vec::len) as i64;
            if counter + pending < sale.stock {
                to_count.push((sale, true));
            }
        }
        let unresolved = Arc::new(tokio::sync::Mutex::new(unresolved));
        for (sale, is_open) in to_count {
            let doubtful_users = requests.get(&sale.voucher_id).cloned().unwrap_or_default();
            if self.sales.begin_count(sale.voucher_id) {
                let counting =
                    self.clone()
                        .count_in_turn(sale, is_open, doubtful_users, unresolved.clone());
                self.tasks.spawn(counting);
            } else if requests.contains_key(&sale.voucher_id) {
                // The count under way may have begun before this request: the sale is asked for again.
                self.recounts.put_back([(sale.voucher_id, doubtful_users)]);
            }
        }
        Ok(())
    }

    fn begin_to_adopt(self: &Arc<Self>, voucher_id: i64) {
        if self.sales.begin_count(voucher_id) {
            let member = self.clone();
            self.tasks.spawn(async move {
                let adopting = member.adopt(voucher_id);
                member.in_turn(voucher_id, adopting).await;
            });
        }
    }

    /// Records that a sale which a Java node published is sold on the stream. Its row may be locked: no other sale waits.
    async fn adopt(&self, voucher_id: i64) -> Result<(), Error> {
        self.fail_if_still_locked(voucher_id).await?;
        if self.store.adopt_sale(voucher_id).await? {
            tracing::info!(
                voucher_id,
                "a sale that a Java node published is sold on the stream"
            );
            self.recounts.ask(voucher_id, None);
        }
        Ok(())
    }

    fn note_closed(&self, closed: &HashMap<i64, Instant>, requests: &RequestedCounts) {
        let longest = closed
            .values()
            .map(Instant::elapsed)
            .max()
            .unwrap_or_default();
        self.stats.closed.store(closed.len() as u64, Relaxed);
        self.stats
            .closed_ms
            .store(longest.as_millis() as u64, Relaxed);
        let locked = self.sales.count_locked(
            |sale| closed.contains_key(sale) || requests.contains_key(sale),
            |sale| closed.contains_key(sale),
        );
        self.stats.locked.store(locked as u64, Relaxed);
    }

    /// Sets the counter of a sale on another strategy: a Java node's script needs it.
    async fn set_counter(&self, sale: &OpenSale, replaces: bool) -> Result<(), Error> {
        let mut set = self.keys.set_stock(sale.voucher_id, sale.stock, sale.ends);
        // Another node may have added stock since the sale was read: then the counter stays.
        if !replaces {
            set.arg("NX");
        }
        Ok(set.query_async::<()>(&mut self.redis.clone()).await?)
    }
}

/// What the keys of a sale hold.
#[derive(Clone, Default)]
struct SaleKeys {
    /// The mark, or an opener's name.
    open: Option<String>,
    counter: Option<i64>,
    /// Whether the claims are of this mark.
    has_claims: bool,
    /// The name of a key that holds something else, which somebody else wrote. Only this sale is closed by it, until the sale is
    /// counted.
    foreign: Option<&'static str>,
}

impl SaleKeys {
    /// The values of open mark, counter and claims.
    fn parse(values: &[redis::RedisResult<Option<String>>]) -> Result<SaleKeys, Error> {
        let mut foreign = None;
        let mut texts = Vec::with_capacity(values.len());
        for (name, value) in ["open mark", "counter", "claims"].into_iter().zip(values) {
            match value {
                Ok(text) => texts.push(text.clone()),
                Err(error) if error.code() == Some("WRONGTYPE") => {
                    foreign = Some(name);
                    texts.push(None);
                }
                Err(error) => return Err(error.clone().into()),
            }
        }
        let [open, counter, claims] = texts.try_into().map_err(|_| {
            Error::Internal("Redis did not answer for every key of a sale".to_owned())
        })?;
        let counter = counter.and_then(|text| {
            // The same rule as in the scripts: a number that Redis can count up and down.
            let number = text.parse::<i64>().ok();
            let number = number.filter(|number| text.len() < 16 && number.to_string() == text);
            if number.is_none() {
                foreign = Some("counter");
            }
            number
        });
        if open.as_deref().is_some_and(|text| !is_open_mark(text)) {
            foreign = Some("open mark");
        }
        Ok(SaleKeys {
            open,
            counter,
            has_claims: claims.as_deref() == Some("1"),
            foreign,
        })
    }
}

/// Whether the text is a mark, or an opener's name.
fn is_open_mark(text: &str) -> bool {
    text.contains(' ') || uuid::Uuid::try_parse(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: Option<Action> = Some(Action::Count { is_open: true });
    const OPEN: Option<Action> = Some(Action::Count { is_open: false });

    fn sale(strategy: Strategy) -> OpenSale {
        OpenSale {
            voucher_id: 7,
            strategy: strategy.name().to_owned(),
            issued: Some(10),
            stock: 10,
            ends: 0,
            has_returns: 0,
        }
    }

    fn open(mark: &str, counter: i64) -> SaleKeys {
        SaleKeys {
            open: Some(mark.to_owned()),
            counter: Some(counter),
            has_claims: true,
            foreign: None,
        }
    }

    fn under(mark: &str) -> RoundMemory {
        RoundMemory {
            mark: mark.to_owned(),
            ..RoundMemory::default()
        }
    }

    #[test]
    fn a_sale_is_opened_unless_all_of_its_keys_are_of_the_mark() {
        let mut memory = under("m");
        let stream = sale(Strategy::Stream);
        let without = |change: fn(&mut SaleKeys)| {
            let mut keys = open("m", 10);
            change(&mut keys);
            keys
        };
        for keys in [
            open("another", 10),
            // Of the same server.
            open("m 1 0-0", 10),
            without(|keys| keys.open = None),
            without(|keys| keys.counter = None),
            without(|keys| keys.has_claims = false),
        ] {
            assert_eq!(memory.plan(&stream, keys, false), OPEN);
            assert!(memory.closed.contains_key(&7));
        }
        assert_eq!(memory.plan(&stream, open("m", 10), false), None);
        assert!(memory.closed.is_empty());
    }

    #[test]
    fn a_foreign_key_is_logged_each_time_that_one_appears() {
        let mut memory = under("m");
        let stream = sale(Strategy::Stream);
        let foreign = SaleKeys {
            foreign: Some("claims"),
            ..open("m", 10)
        };
        for (keys, is_known) in [
            (foreign.clone(), true),
            (open("m", 10), false),
            (foreign, true),
        ] {
            memory.plan(&stream, keys, false);
            assert_eq!(memory.foreign.contains(&7), is_known);
        }
    }

    #[test]
    fn an_open_sale_is_counted_where_it_was_asked_for_or_gave_something_back() {
        let mut memory = under("m");
        let mut stream = sale(Strategy::Stream);
        assert_eq!(memory.plan(&stream, open("m", 10), true), COUNT);
        stream.has_returns = 1;
        assert_eq!(memory.plan(&stream, open("m", 10), false), COUNT);
    }

    #[test]
    fn only_a_counter_that_stands_still_below_the_stock_is_compared() {
        let mut memory = under("m");
        let stream = sale(Strategy::Stream);
        let counters = [9, 8, 8, 8, 10, 8, 11, 11];
        let compared = counters.map(|counter| {
            let action = memory.plan(&stream, open("m", counter), false);
            action == Some(Action::Compare { counter })
        });
        let expected = [false, false, true, true, false, false, false, false];
        assert_eq!(compared, expected);
        // Another stock beside the same counter is no standstill.
        memory.plan(&stream, open("m", 8), false);
        let larger = OpenSale {
            stock: 12,
            ..stream
        };
        assert_eq!(memory.plan(&larger, open("m", 8), false), None);
    }

    #[test]
    fn a_sale_on_another_strategy_has_a_counter_for_java_nodes() {
        let mut memory = under("m");
        let row_lock = sale(Strategy::RowLock);
        let set = |replaces| Some(Action::SetCounter { replaces });
        let foreign = SaleKeys {
            foreign: Some("counter"),
            ..SaleKeys::default()
        };
        assert_eq!(
            memory.plan(&row_lock, SaleKeys::default(), false),
            set(false)
        );
        assert_eq!(memory.plan(&row_lock, foreign, false), set(true));
        assert_eq!(memory.plan(&row_lock, open("m", 3), true), set(true));
        // Its other keys are nobody's.
        let other_foreign = SaleKeys {
            foreign: Some("claims"),
            ..open("m", 3)
        };
        for keys in [open("m", 3), other_foreign] {
            assert_eq!(memory.plan(&row_lock, keys, false), None);
        }
    }

    #[test]
    fn a_sale_of_a_java_node_is_adopted_once_it_has_a_counter() {
        let mut memory = under("m");
        let java = OpenSale {
            issued: None,
            ..sale(Strategy::ReentrantLock)
        };
        assert_eq!(memory.plan(&java, SaleKeys::default(), true), None);
        let adopted = memory.plan(&java, open("m", 3), false);
        assert_eq!(adopted, Some(Action::Adopt));
    }
}
