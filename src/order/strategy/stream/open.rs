//! Opens sales: sets their stock counters and claims to what the database and the stream say, under a mark.
//!
//! A sale whose counter or claims are not of this mark is closed first, and its claims are read page by page. The count
//! itself is of one moment: while the sale's row is locked, no node commits, cancels or adds anything, not even a Java node.
//! The counter is the stock less the entries that have no order. A sale that is open is only counted, and stays open: buyers
//! who are admitted meanwhile have newer entries, and the last script counts those.
//!
//! Every process looks at all sales twice a second, whether anybody buys or not: a Java node's script needs the counter
//! of every sale. Which process comes first does not matter. With tens of thousands of sales a round takes longer, and the
//! pause after it too; a sale that somebody asks for is counted in between.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redis::AsyncCommands;
use tokio::time::Instant;
use workload::ladder::Strategy;

use super::Member;
use super::replies::{Ask, Entry, Mark};
use crate::error::Error;
use crate::keys::record;
use crate::order::model::NewOrder;
use crate::order::store::count::OpenSale;
use crate::scripts;
use crate::voucher::recounts::AskedSales;

/// Pause between two rounds, and what each sale adds to it. Not measured by the time that a round takes: one slow answer
/// would keep sales closed.
const ROUND: Duration = Duration::from_millis(500);
const PER_SALE: Duration = Duration::from_micros(50);

/// Pause between two looks at sales that were asked for; after a look that failed, [`ROUND`].
const ASKED: Duration = Duration::from_millis(20);

/// Sales that are looked at in one pipeline.
const PAGE: usize = 500;

/// Users in one script.
const CLAIMS: u32 = 5000;

/// How long after a sale's end its keys are kept, seconds.
const KEPT: i64 = 86_400;

/// What one round remembers for the next.
#[derive(Default)]
struct Seen {
    mark: String,
    /// Stock and counter of sales whose counter was below the stock.
    counters: HashMap<i64, (i64, i64)>,
    closed: HashMap<i64, Instant>,
}

/// The entries of the stream that were not resolved when they were looked at, by sale.
struct Pass {
    mark: Mark,
    last: String,
    sales: HashMap<i64, Vec<(Entry, NewOrder)>>,
}

impl Member {
    /// Makes round after round until the process stops.
    pub(super) async fn keep_open(self: Arc<Self>) {
        let (mut seen, mut logged) = (Seen::default(), false);
        let mut round_due = Instant::now();
        while !self.is_stopped() {
            let all = Instant::now() >= round_due;
            let asked = self.opener.recounts.take();
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
                self.opener.recounts.put_back(asked);
                self.sleep(ROUND).await;
                continue;
            }
            logged = false;
            self.sleep(ASKED).await;
            let asked = tokio::time::timeout_at(round_due, self.opener.recounts.asked());
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
        let oldest =
            view.entries.first().and_then(|entry| entry.id.split('-').next()?.parse().ok());
        let age = oldest.map_or(0, |ms: i64| self.clock.now_us() / 1000 - ms);
        self.stats.lag_ms.store(age.max(0) as u64, Relaxed);
        let mark = view.mark;
        let all = all || mark.text != seen.mark;
        if mark.text != seen.mark {
            tracing::info!("Redis has other data, or another master: sales are counted anew");
            record::keep(&mut self.redis.clone(), self.keys.style()).await?;
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
        }
        for sales in sales.chunks(PAGE) {
            let mut state = redis::pipe();
            for OpenSale { voucher_id, .. } in sales {
                let keys = &self.keys;
                state.get(keys.open(*voucher_id)).get(keys.stock(*voucher_id));
                state.sismember(keys.claims(*voucher_id), &mark.text);
            }
            let state: Vec<Option<String>> = state.query_async(&mut self.redis.clone()).await?;
            for (sale, state) in sales.iter().zip(state.chunks(3)) {
                let voucher_id = sale.voucher_id;
                let counter = state[1].as_deref().map(|left| left.parse().unwrap_or(0));
                if sale.issued.is_none() {
                    // Without a counter a Java node of an earlier stage published it, which sells by the table alone.
                    if counter.is_some() && self.store.adopt_sale(voucher_id).await? {
                        tracing::info!(
                            voucher_id,
                            "a sale that a Java node published is sold on the stream"
                        );
                        self.opener.recounts.ask(voucher_id, None);
                    }
                    continue;
                }
                if sale.strategy != Strategy::Stream.name() {
                    if counter.is_none() || asked.contains_key(&voucher_id) {
                        let asked_for = asked.contains_key(&voucher_id);
                        self.set_counter(sale, asked_for).await?;
                    }
                    continue;
                }
                let claims = state[2].as_deref() == Some("1");
                let is_open = state[0].as_ref() == Some(&mark.text) && counter.is_some() && claims;
                if is_open {
                    seen.closed.remove(&voucher_id);
                } else {
                    seen.closed.entry(voucher_id).or_insert_with(Instant::now);
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
        let strays =
            suspects.into_iter().filter(|(sale, counter)| counter + pending(sale) < sale.stock);
        due.extend(strays.map(|(sale, _)| (sale, true)));
        let pass = Arc::new(tokio::sync::Mutex::new(pass));
        for (sale, is_open) in due {
            let void = asked.get(&sale.voucher_id).cloned().unwrap_or_default();
            if self.opener.opening.lock().insert(sale.voucher_id) {
                let opening = self.clone().open_in_turn(sale, is_open, void, pass.clone());
                self.tasks.spawn(opening);
            } else if asked.contains_key(&sale.voucher_id) {
                // What was counted until now may be older than what was asked for.
                self.opener.recounts.put_back([(sale.voucher_id, void)]);
            }
        }
        Ok(count)
    }

    fn note_closed(&self, closed: &HashMap<i64, Instant>, asked: &AskedSales) {
        let longest = closed.values().map(Instant::elapsed).max().unwrap_or_default();
        self.stats.closed.store(closed.len() as u64, Relaxed);
        self.stats.closed_ms.store(longest.as_millis() as u64, Relaxed);
        let opening = self.opener.opening.lock().clone();
        let mut locked = self.opener.locked.lock();
        locked.retain(|sale| {
            closed.contains_key(sale) || asked.contains_key(sale) || opening.contains(sale)
        });
        let count = locked.iter().filter(|sale| closed.contains_key(sale)).count();
        self.stats.locked.store(count as u64, Relaxed);
    }

    /// Sets the counter of a sale on another strategy: a Java node's script needs it.
    async fn set_counter(&self, sale: &OpenSale, asked_for: bool) -> Result<(), Error> {
        let mut set = redis::cmd("SET");
        set.arg(self.keys.stock(sale.voucher_id)).arg(sale.stock);
        set.arg("EXAT").arg(sale.ends + KEPT);
        // Another node may have added stock since the sale was read: then the counter stays.
        if !asked_for {
            set.arg("NX");
        }
        Ok(set.query_async::<()>(&mut self.redis.clone()).await?)
    }

    /// Reads all entries, from the first.
    async fn pass(&self, mark: Mark) -> Result<Pass, Error> {
        let mut pass = Pass { mark, last: String::new(), sales: HashMap::new() };
        self.extend(&mut pass).await?;
        Ok(pass)
    }

    /// Reads the entries that were added since.
    async fn extend(&self, pass: &mut Pass) -> Result<(), Error> {
        loop {
            let view = self.view(Ask::Page(&pass.last)).await?;
            if view.mark != pass.mark {
                return Err(Error::Unavailable("Redis"));
            }
            if pass.last.is_empty() {
                pass.last = pass.mark.text.rsplit(' ').next().unwrap_or("0-0").to_owned();
            }
            if let Some(last) = view.entries.last().filter(|_| view.more) {
                pass.last.clone_from(&last.id);
            }
            for entry in view.entries {
                if let Some(order) = entry.order() {
                    pass.sales.entry(order.buyer.voucher_id).or_default().push((entry, order));
                }
            }
            if !view.more {
                return Ok(());
            }
        }
    }

    async fn open_in_turn(
        self: Arc<Self>,
        sale: OpenSale,
        is_open: bool,
        void: HashSet<i64>,
        pass: Arc<tokio::sync::Mutex<Pass>>,
    ) {
        let voucher_id = sale.voucher_id;
        let opener = &self.opener;
        let was_locked = opener.locked.lock().contains(&voucher_id);
        let lane = if was_locked { &opener.locked_lane } else { &opener.lanes };
        let Ok(lane) = lane.acquire().await else { return };
        let opened = self.open(&sale, is_open, &void, &pass).await;
        drop(lane);
        match opened {
            Ok(()) => drop(opener.locked.lock().remove(&voucher_id)),
            Err(error) => {
                opener.recounts.put_back([(voucher_id, void)]);
                if opener.locked.lock().insert(voucher_id) {
                    tracing::warn!(voucher_id, %error, "a sale is not counted; trying again");
                }
            }
        }
        opener.opening.lock().remove(&voucher_id);
    }

    /// Counts the sale; one that is not open is closed first, and opened by the count.
    async fn open(
        &self,
        sale: &OpenSale,
        is_open: bool,
        void: &HashSet<i64>,
        pass: &tokio::sync::Mutex<Pass>,
    ) -> Result<(), Error> {
        let mark = pass.lock().await.mark.text.clone();
        if is_open {
            return self.count(sale, &mark, void, pass).await.map(drop);
        }
        let opener = uuid::Uuid::new_v4().simple().to_string();
        let opened = match self.claim_all(sale.voucher_id, &opener).await {
            Ok(true) => self.count(sale, &opener, void, pass).await,
            failed => failed,
        };
        if !matches!(opened, Ok(true)) {
            let mut release = self.open_script(sale.voucher_id);
            release.arg("release").arg(opener);
            release.invoke_async::<()>(&mut self.redis.clone()).await?;
        }
        opened.map(drop)
    }

    /// Counts the sale, and opens it where its mark is still what it `was`; says whether it did.
    async fn count(
        &self,
        sale: &OpenSale,
        was: &str,
        void: &HashSet<i64>,
        pass: &tokio::sync::Mutex<Pass>,
    ) -> Result<bool, Error> {
        let voucher_id = sale.voucher_id;
        let mut locked = self.store.begin().await?;
        let stock = locked.lock_stock(voucher_id).await?;
        let (mark, entries, last) = {
            let mut pass = pass.lock().await;
            self.extend(&mut pass).await?;
            let entries = pass.sales.get(&voucher_id).cloned().unwrap_or_default();
            (pass.mark.text.clone(), entries, pass.last.clone())
        };
        let orders: Vec<NewOrder> = entries.iter().map(|(_, order)| *order).collect();
        let rows = locked.rows_of(&orders).await?;
        let returns = locked.returns_of(voucher_id).await?;
        let mut void: Vec<i64> = void.iter().copied().collect();
        void.extend(returns.iter().map(|order| order.user_id));
        let buyers = locked.buyers_among(voucher_id, &void).await?;
        void.retain(|user| !buyers.contains(user));

        let mut script = self.open_script(voucher_id);
        script.arg("open").arg(mark).arg(was).arg(sale.ends + KEPT).arg(stock);
        script.arg(voucher_id).arg(last);
        let undecided: Vec<_> =
            entries.iter().filter(|(_, order)| !rows.contains_key(&order.id)).collect();
        script.arg(undecided.len());
        for (entry, _) in undecided {
            script.arg(&entry.user).arg(entry.name());
        }
        let active = |order: &&NewOrder| rows.get(&order.id) == Some(&true);
        let active: Vec<i64> =
            orders.iter().filter(active).map(|order| order.buyer.user_id).collect();
        script.arg(active.len()).arg(active).arg(void);
        let opened = script.invoke_async::<String>(&mut self.redis.clone()).await;
        // Without an answer the row's lock may have been lost before the script ran: then the count is not of one moment.
        if let Err(error) = locked.rollback().await {
            self.redis.clone().del::<_, ()>(self.keys.open(voucher_id)).await?;
            return Err(error);
        }
        let opened = opened? == "yes";
        if opened {
            self.stats.counted.fetch_add(1, Relaxed);
            if !returns.is_empty() {
                self.store.delete_returns(&returns).await?;
            }
        }
        Ok(opened)
    }

    /// Closes the sale and writes the claims of all who have an order; says whether it is still ours to open.
    async fn claim_all(&self, voucher_id: i64, opener: &str) -> Result<bool, Error> {
        let mut close = self.open_script(voucher_id);
        close.arg("close").arg(opener);
        if close.invoke_async::<String>(&mut self.redis.clone()).await? != "yes" {
            return Ok(false);
        }
        let mut after = 0;
        loop {
            let users = self.store.buyers_after(voucher_id, after, CLAIMS).await?;
            let Some(last) = users.last() else { return Ok(true) };
            after = *last;
            let mut claim = self.open_script(voucher_id);
            claim.arg("claim").arg(opener).arg(&users);
            if claim.invoke_async::<String>(&mut self.redis.clone()).await? != "yes" {
                return Ok(false);
            }
        }
    }

    fn open_script(&self, voucher_id: i64) -> redis::ScriptInvocation<'static> {
        let keys = &self.keys;
        let mut script = scripts::STREAM_OPEN.prepare_invoke();
        script.key(&*keys.stream).key(&*keys.pending);
        script.key(keys.stock(voucher_id)).key(keys.claims(voucher_id)).key(keys.open(voucher_id));
        script
    }
}
