//! Where a case runs: the instances, and the servers behind them, with temporary shops that are removed afterwards.

use std::time::{Duration, Instant};

use testkit::wait::until;
use workload::{Access, Environment, Error, Target, driver::Connections, live::Progress};

use super::{
    counts::Counts,
    keys::RedisKeys,
    reads::{LIMIT, Read, ReadStrategy, read_all},
    shops::ShopTable,
};
use crate::report::Checked;

/// Connections of the readers to each instance, in most cases.
pub const CONNECTIONS: u32 = 64;
/// How long the clean-up waits for a server that is away.
const CLEAN_UP: Duration = Duration::from_secs(15);

/// A case, with its options.
pub trait Case {
    /// How many temporary shops it needs.
    fn shops(&self) -> u64;

    /// Has shops read, and judges what came of it.
    async fn run(&self, stage: &Stage) -> Result<Checked, Error>;
}

/// What a case works with.
pub struct Stage {
    pub access: Access,
    /// The instances themselves.
    pub nodes: Vec<Target>,
    pub progress: Progress,
    pub table: ShopTable,
    /// The cache's keys.
    pub keys: RedisKeys,
    /// The temporary shops.
    pub shops: Vec<u64>,
}

impl Stage {
    /// Runs `case` on temporary shops. Whatever happens in it, rows and keys are removed afterwards.
    pub async fn run(case: &impl Case, environment: Environment) -> Result<Checked, Error> {
        let (count, Environment { access, nodes, progress, .. }) = (case.shops(), environment);
        let table = ShopTable::open(&access.database_url).await?;
        let keys = RedisKeys::open(&access).await?;
        let mut stage = Self { access, nodes, progress, table, keys, shops: Vec::new() };
        if count == 0 {
            return case.run(&stage).await;
        }
        let running = async {
            progress.say(&format!("making {count} temporary shops"));
            stage.shops = stage.table.make_temporary(count).await?;
            stage.keys.remove(&stage.shops).await?;
            // It does not know the new rows; the service fills it anew, with them.
            stage.keys.drop_filters().await?;
            case.run(&stage).await
        };
        let result = running.await;
        let mut cleaned = Ok(());
        until(CLEAN_UP, async || {
            cleaned = stage.clean_up().await;
            cleaned.is_ok()
        })
        .await;
        if let Err(error) = cleaned {
            progress.say(&format!("not all was cleaned up: {error}"));
        }
        result
    }

    async fn clean_up(&self) -> Result<(), Error> {
        // Rows first, so that they are not cached again.
        self.table.remove_temporary().await?;
        self.keys.remove(&self.shops).await?;
        self.keys.drop_filters().await
    }

    /// So many open connections to each instance.
    pub async fn connect(&self, each: u32) -> Result<Connections, Error> {
        let count = self.nodes.len() * each as usize;
        let mut connections = Connections::new(&self.nodes, count, LIMIT)?;
        connections.open().await?;
        Ok(connections)
    }

    /// The instances' addresses.
    pub fn urls(&self) -> String {
        self.nodes.iter().map(Target::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Does `work`; also what instances and database counted meanwhile.
    pub async fn counting<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<(T, Counts), Error> {
        let (begin, before) = (Instant::now(), self.counts().await?);
        let done = work.await?;
        Ok((done, self.counts().await?.since(before, begin.elapsed())))
    }

    /// Reads these shops at the same instant, one from each instance; also what was counted meanwhile.
    pub async fn read_each(
        &self,
        strategy: ReadStrategy,
        ids: Vec<u64>,
    ) -> Result<(Vec<Read>, Counts), Error> {
        let mut readers = self.connect(1).await?;
        let due = Some(Instant::now());
        self.counting(read_all(&mut readers, strategy, ids, due, Progress::Silent)).await
    }

    /// What instances and database have counted so far.
    pub async fn counts(&self) -> Result<Counts, Error> {
        let statements = self.table.statements().await?;
        let mut counts = Counts { statements, ..Counts::default() };
        for node in &self.nodes {
            counts.add(node).await?;
        }
        Ok(counts)
    }
}
