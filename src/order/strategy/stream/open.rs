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
use super::replies::Ask;
use crate::error::Error;
use crate::keys::record;
use crate::order::store::count::OpenSale;
use crate::voucher::recounts::AskedSales;

/// Pause between two rounds, and what each sale adds to it. Not measured by the time that a round takes: one slow answer
/// would keep sales closed.
const ROUND: Duration = Duration::from_millis(500);
const PER_SALE: Duration = Duration::from_micros(50);

/// Pause between two looks at sales that were asked for; after a look that failed, [`ROUND`].
const ASKED: Duration = Duration::from_millis(20);

/// Sales that are looked at in one pipeline.
const PAGE: usize = 500;

/// What one round remembers for the next.
#[derive(Default)]
struct Seen {
    mark: String,
    /// Stock and counter of sales whose counter was below the stock.
    counters: HashMap<i64, (i64, i64)>,
    closed: HashMap<i64, Instant>,
    /// Sales with a key that holds something else.
    foreign: HashSet<i64>,
}

impl Member {
    pub(super) async fn keep_open(self: Arc<Self>) {
        let (mut seen, mut logged) = (Seen::default(), false);
        let mut round_due = Instant::now();
        while !self.is_stopped() {
            let all = Instant::now() >= round_due;
            let asked = self.recounts.take();
            let looked = self.look_at_sales(&mut seen, all, &asked).await;
            if all {
                let sales = *looked.as_ref().unwrap_or(&0);
                round_due = Instant::now() + ROUND + PER_SALE * sales;
            }
            if let Err(error) = looked {
                if !logged {
                    tracing::warn!(%error, "sales are not counted; trying again");
                }
                logged = true;
                self.recounts.put_back(asked);
                self.sleep(ROUND).await;
                continue;
            }
            logged = false;
            self.sleep(ASKED).await;
            let asked = tokio::time::timeout_at(round_due, self.recounts.asked());
            let _asked = self.stop.run_until_cancelled(asked).await;
        }
    }

    /// Looks at all sales, or at those that were asked for; returns how many.
    async fn look_at_sales(
        self: &Arc<Self>,
        seen: &mut Seen,
        all: bool,
        asked: &AskedSales,
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
        let all = all || mark.text != seen.mark;
        if mark.text != seen.mark {
            tracing::info!("Redis has other data, or another master: sales are counted anew");
            record::keep(&mut self.redis.clone(), self.keys.style).await?;
            seen.mark.clone_from(&mark.text);
        }
        if asked.is_empty() && !all {
            return Ok(0);
        }
        let (mut due, mut suspects) = (Vec::new(), Vec::new());
        let among = (!all).then(|| asked.keys().copied().collect());
        let sales = self.store.open_sales(among).await?;
        let count = u32::try_from(sales.len()).unwrap_or(u32::MAX);
        if all {
            let listed: HashSet<i64> = sales.iter().map(|sale| sale.voucher_id).collect();
            seen.closed.retain(|sale, _| listed.contains(sale));
            seen.counters.retain(|sale, _| listed.contains(sale));
            seen.foreign.retain(|sale| listed.contains(sale));
        }
        for sales in sales.chunks(PAGE) {
            let mut state = redis::pipe();
            for OpenSale { voucher_id, .. } in sales {
                let keys = &self.keys;
                state
                    .get(keys.open(*voucher_id))
                    .get(keys.stock(*voucher_id));
                state.sismember(keys.claims(*voucher_id), &mark.text);
            }
            let values: Vec<redis::RedisResult<Option<String>>> = state
                .ignore_errors()
                .query_async(&mut self.redis.clone())
                .await?;
            for (sale, values) in sales.iter().zip(values.chunks(3)) {
                let voucher_id = sale.voucher_id;
                let SaleKeys {
                    open,
                    counter,
                    has_claims,
                    foreign,
                } = SaleKeys::parse(values)?;
                if sale.issued.is_none() {
                    // Without a counter a Java node of an earlier stage published it, which sells by the table alone.
                    if counter.is_some() && self.opening.lock().insert(voucher_id) {
                        let member = self.clone();
                        let adopt = async move {
                            member.in_turn(voucher_id, member.adopt(voucher_id)).await
                        };
                        self.tasks.spawn(adopt);
                    }
                    continue;
                }
                if sale.strategy != Strategy::Stream.name() {
                    let replaces = asked.contains_key(&voucher_id) || foreign == Some("counter");
                    if counter.is_none() || replaces {
                        self.set_counter(sale, replaces).await?;
                    }
                    continue;
                }
                let is_open = open.as_ref() == Some(&mark.text) && counter.is_some() && has_claims;
                if is_open {
                    seen.closed.remove(&voucher_id);
                } else {
                    seen.closed.entry(voucher_id).or_insert_with(Instant::now);
                }
                match foreign {
                    None => drop(seen.foreign.remove(&voucher_id)),
                    Some(key) if seen.foreign.insert(voucher_id) => {
                        tracing::warn!(
                            voucher_id,
                            key,
                            "a key of a sale holds something else; the sale is counted"
                        );
                    }
                    Some(_) => {}
                }
                // The counter of a busy sale changes all the time: only one that stands still is compared with the stock.
                let before = seen.counters.remove(&voucher_id);
                if !is_open || asked.contains_key(&voucher_id) || sale.has_returns != 0 {
                    due.push((sale.clone(), is_open));
                } else if let Some(counter) = counter.filter(|counter| *counter < sale.stock) {
                    let now = (sale.stock, counter);
                    if before == Some(now) {
                        suspects.push((sale.clone(), counter));
                    }
                    seen.counters.insert(voucher_id, now);
                }
            }
        }
        self.note_closed(&seen.closed, asked);
        if due.is_empty() && suspects.is_empty() {
            return Ok(count);
        }
        let pass = self.pass(mark).await?;
        let pending = |sale: &OpenSale| pass.sales.get(&sale.voucher_id).map_or(0, Vec::len) as i64;
        let strays = suspects
            .into_iter()
            .filter(|(sale, counter)| counter + pending(sale) < sale.stock);
        due.extend(strays.map(|(sale, _)| (sale, true)));
        let pass = Arc::new(tokio::sync::Mutex::new(pass));
        for (sale, is_open) in due {
            let void = asked.get(&sale.voucher_id).cloned().unwrap_or_default();
            if self.opening.lock().insert(sale.voucher_id) {
                let opening = self.clone().open_in_turn(sale, is_open, void, pass.clone());
                self.tasks.spawn(opening);
            } else if asked.contains_key(&sale.voucher_id) {
                // What was counted until now may be older than what was asked for.
                self.recounts.put_back([(sale.voucher_id, void)]);
            }
        }
        Ok(count)
    }

    /// Records that a sale which a Java node published is sold on the stream. Its row may be locked: no other sale waits.
    async fn adopt(&self, voucher_id: i64) -> Result<(), Error> {
        self.require_unlocked(voucher_id).await?;
        if self.store.adopt_sale(voucher_id).await? {
            tracing::info!(
                voucher_id,
                "a sale that a Java node published is sold on the stream"
            );
            self.recounts.ask(voucher_id, None);
        }
        Ok(())
    }

    fn note_closed(&self, closed: &HashMap<i64, Instant>, asked: &AskedSales) {
        let longest = closed
            .values()
            .map(Instant::elapsed)
            .max()
            .unwrap_or_default();
        self.stats.closed.store(closed.len() as u64, Relaxed);
        self.stats
            .closed_ms
            .store(longest.as_millis() as u64, Relaxed);
        let opening = self.opening.lock().clone();
        let mut locked = self.locked.lock();
        locked.retain(|sale| {
            closed.contains_key(sale) || asked.contains_key(sale) || opening.contains(sale)
        });
        let count = locked
            .iter()
            .filter(|sale| closed.contains_key(sale))
            .count();
        self.stats.locked.store(count as u64, Relaxed);
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
struct SaleKeys {
    /// The mark, or an opener's name.
    open: Option<String>,
    counter: Option<i64>,
    /// Whether the claims are of this mark.
    has_claims: bool,
    /// A key that holds something else, which somebody else wrote: it closes its own sale alone, until that is counted.
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
            // As the scripts know it: what Redis can count up and down.
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

/// Whether it is a mark, or an opener's name.
fn is_open_mark(text: &str) -> bool {
    text.contains(' ') || uuid::Uuid::try_parse(text).is_ok()
}
