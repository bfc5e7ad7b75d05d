//! The reads of shops: whether there is a cache, what a hot key that expires and an id that does not exist cost the database,
//! and whether a change of a shop is seen.
//!
//! The table of shops is locked while many read at once. What is answered meanwhile came from a cache; what asks the database
//! stands in its process list, where it is counted. So neither other work of the server counts, nor does it depend on luck how
//! many readers come before the first of them has filled the cache.
//!
//! - `trial` reads while the table is locked, and keeps what was found.
//! - `shop` finds a shop that the node reads, `key` the key under which it is cached.
//! - `loads` tries a hot key and an absent id, `change` a change.
//! - `table` is the table of shops.

use tokio_util::sync::CancellationToken;
use workload::{Error, buyers::Buyer};

use super::{options::JudgeOptions, traces::Traces};

mod change;
mod key;
mod loads;
mod shop;
mod table;
mod trial;

use table::ShopTable;
use trial::Trial;
pub use trial::{COLUMNS, Reads};

/// Tries the reads of all nodes, with the run's own shop and as this buyer, until the end or until `stop`.
pub async fn try_reads(
    options: &JudgeOptions,
    traces: &mut Traces,
    shop: u64,
    buyer: &Buyer,
    stop: &CancellationToken,
) -> Result<Reads, Error> {
    options.progress.say("trying the reads of shops");
    let table = ShopTable::open(traces.database()).await?;
    let mut trial = Trial {
        options,
        traces,
        table,
        token: buyer.token.clone(),
        reads: Reads::default(),
    };
    let found = trial.find_shop(shop).await;
    let Some(shop) = trial.unless_untried(found)? else {
        return Ok(trial.reads);
    };
    if !stop.is_cancelled() {
        let tried = trial.try_hot_key(&shop).await;
        trial.unless_untried(tried)?;
    }
    if !stop.is_cancelled() {
        let tried = trial.try_absent_shop().await;
        trial.unless_untried(tried)?;
    }
    if !stop.is_cancelled() {
        let tried = trial.try_change(&shop).await;
        trial.unless_untried(tried)?;
    }
    Ok(trial.reads)
}
