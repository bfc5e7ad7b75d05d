//! Faults of the network between the instances and a server, by the proxy in front of it.

use testkit::proxy::Mode;
use tokio::time::sleep;

use super::scene::Scene;
use crate::chaos::test_cluster::ServerKind;
use workload::Error;

/// What the proxy does to the connections; at the end it forwards again.
pub async fn set(it: Scene<'_>, kind: ServerKind, mode: Mode) -> Result<(), Error> {
    it.cluster.set_proxies(kind, mode);
    sleep(it.lasts).await;
    it.cluster.set_proxies(kind, Mode::Forward);
    Ok(())
}
