//! Where a scenario runs: the instances, the database and Redis.

use clap::Args;
use workload::{Access, Error, Target, driver::Connections, live::Progress};

use super::{keys::RedisKeys, reads::LIMIT, shops::ShopTable};

/// Connections of the readers to each instance, where a scenario does not say otherwise.
pub const CONNECTIONS: u32 = 64;

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
    /// The database and Redis.
    ///
    /// # Errors
    /// [`Error::Usage`] without an address; [`Error::Database`], [`Error::Redis`].
    pub async fn open(&self) -> Result<(ShopTable, RedisKeys), Error> {
        let table = ShopTable::open(&self.access.database_url).await?;
        Ok((table, RedisKeys::open(&self.access).await?))
    }

    /// So many open connections to each instance.
    ///
    /// # Errors
    /// As [`connect`].
    pub async fn connect(&self, each: u32) -> Result<Connections, Error> {
        connect(&self.targets, each).await
    }

    /// The instances' addresses.
    pub fn urls(&self) -> String {
        self.targets.iter().map(Target::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// So many open connections to each target.
///
/// # Errors
/// Too few file descriptors; a target that does not accept.
pub async fn connect(targets: &[Target], each: u32) -> Result<Connections, Error> {
    let mut connections = Connections::new(targets, targets.len() * each as usize, LIMIT)?;
    connections.open().await?;
    Ok(connections)
}
