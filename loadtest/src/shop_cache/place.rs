//! Where a case runs: the instances, and the servers behind them, with temporary shops that are removed afterwards.

use std::time::Duration;

use clap::Args;
use rand::Rng;
use testkit::wait::until;
use workload::{Access, Error, Target, driver::Connections, live::Progress};

use super::{
    keys::RedisKeys,
    metrics::{Layers, Nodes},
    reads::{ABSENT, LIMIT},
    shops::ShopTable,
};

/// Connections of the readers to each instance, in most cases.
pub const CONNECTIONS: u32 = 64;
/// How long the clean-up waits for a server that is away.
const CLEAN_UP: Duration = Duration::from_secs(15);

/// The instances that are asked, and the servers behind them.
#[derive(Debug, Clone, Args)]
pub struct Place {
    /// Base URLs of the instances themselves, not of the proxy: their metrics are read, too
    #[arg(
        long,
        env = "NODES",
        value_delimiter = ',',
        value_name = "URL",
        default_value = "http://127.0.0.1:8081,http://127.0.0.1:8082"
    )]
    pub targets: Vec<Target>,
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub access: Access,
    #[arg(skip = Progress::Stderr)]
    #[allow(missing_docs)]
    pub progress: Progress,
}

impl Place {
    /// So many open connections to each instance.
    pub async fn connect(&self, each: u32) -> Result<Connections, Error> {
        let count = self.targets.len() * each as usize;
        let mut connections = Connections::new(&self.targets, count, LIMIT)?;
        connections.open().await?;
        Ok(connections)
    }

    /// The instances' addresses.
    pub fn urls(&self) -> String {
        self.targets.iter().map(Target::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Runs `case` on so many temporary shops. Whatever happens in it, rows and keys are removed afterwards.
    pub async fn on_shops<T>(
        &self,
        count: u64,
        case: impl AsyncFnOnce(&mut Stage) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let table = ShopTable::open(&self.access.database_url).await?;
        let keys = RedisKeys::open(&self.access).await?;
        let nodes = Nodes::new(&self.targets);
        let mut stage = Stage { table, keys, nodes, shops: Vec::new(), absent: Vec::new() };
        let running = async {
            if count > 0 {
                self.progress.say(&format!("making {count} temporary shops"));
                stage.shops = stage.table.make_temporary(count).await?;
                stage.keys.remove(&stage.shops).await?;
                // It does not know the new rows; the service fills it anew, with them.
                stage.keys.drop_filters().await?;
            }
            case(&mut stage).await
        };
        let result = running.await;
        let mut cleaned = Ok(());
        until(CLEAN_UP, async || {
            cleaned = stage.clean_up(count > 0).await;
            cleaned.is_ok()
        })
        .await;
        if let Err(error) = cleaned {
            self.progress.say(&format!("not all was cleaned up: {error}"));
        }
        result
    }
}

/// What a case works with.
pub struct Stage {
    pub table: ShopTable,
    /// The cache's keys.
    pub keys: RedisKeys,
    /// The instances' metrics.
    pub nodes: Nodes,
    pub shops: Vec<u64>,
    /// Ids that were given out as absent.
    absent: Vec<u64>,
}

impl Stage {
    /// So many random ids that do not exist. The cached nulls that come of them are removed in the end.
    pub fn absent(&mut self, count: usize) -> Vec<u64> {
        let mut rng = rand::rng();
        let ids: Vec<_> = (0..count).map(|_| rng.random_range(ABSENT)).collect();
        self.absent.extend(&ids);
        ids
    }

    /// Who answered so far, and how many statements the database has executed: two independent counts.
    pub async fn counts(&mut self) -> Result<Counts, Error> {
        Ok(Counts {
            layers: self.nodes.layers().await?,
            statements: self.table.statements().await?,
        })
    }

    async fn clean_up(&self, shops_made: bool) -> Result<(), Error> {
        if shops_made {
            // Rows first, so that they are not cached again.
            self.table.remove_temporary().await?;
            self.keys.remove(&self.shops).await?;
            self.keys.drop_filters().await?;
        }
        self.keys.remove(&self.absent).await.map(drop)
    }
}

/// The instances' counts, and the database's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Who answered.
    pub layers: Layers,
    /// Prepared statements that the database executed, of whatever client.
    pub statements: u64,
}

impl Counts {
    /// What happened since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            layers: self.layers.since(before.layers),
            statements: self.statements.saturating_sub(before.statements),
        }
    }
}
