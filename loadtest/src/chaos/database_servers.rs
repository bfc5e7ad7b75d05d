//! The database of a test cluster, in each layout.

use std::{io, sync::Arc};

use testkit::{
    database_server::{DatabaseServer, Settings},
    process::TemporaryFolder,
    replicated_database::{ReplicatedDatabase, Replication},
};

use super::layout::DatabaseLayout;

/// The servers.
#[derive(Debug)]
pub enum DatabaseServers {
    Single(Box<DatabaseServer>),
    /// A primary and its replica, behind a proxy that leads to the primary.
    Replicated(Box<ReplicatedDatabase>),
}

use DatabaseServers::{Replicated, Single};

impl DatabaseServers {
    /// Starts them in folders below `folder`.
    pub async fn start(
        layout: DatabaseLayout,
        folder: Arc<TemporaryFolder>,
        settings: Settings,
    ) -> io::Result<Self> {
        let replication = match layout {
            DatabaseLayout::Single => {
                let server = DatabaseServer::start_in(folder, settings).await?;
                return Ok(Single(Box::new(server)));
            }
            DatabaseLayout::Replicated => Replication::SemiSynchronous,
            DatabaseLayout::Asynchronous => Replication::Asynchronous,
        };
        let pair = ReplicatedDatabase::start_in(folder, replication, settings).await?;
        Ok(Replicated(Box::new(pair)))
    }

    /// The server that takes writes.
    pub fn primary(&self) -> &DatabaseServer {
        match self {
            Single(server) => server,
            Replicated(pair) => pair.primary(),
        }
    }

    /// `127.0.0.1:<port>` of what leads to the primary.
    pub fn address(&self) -> String {
        match self {
            Single(server) => server.address(),
            Replicated(pair) => pair.address(),
        }
    }

    /// The address of the database for clients.
    pub fn url(&self) -> String {
        match self {
            Single(server) => server.url(),
            Replicated(pair) => pair.url(),
        }
    }

    /// To be killed, and started again on what it had committed.
    pub fn primary_mut(&mut self) -> &mut DatabaseServer {
        match self {
            Single(server) => server,
            Replicated(pair) => pair.primary_mut(),
        }
    }

    pub fn pair(&mut self) -> io::Result<&mut ReplicatedDatabase> {
        match self {
            Single(_) => Err(io::Error::other("there is no replica")),
            Replicated(pair) => Ok(pair),
        }
    }
}
