//! The tracker task: gives each hold that has lasted for a moment to the node of its key. Nodes are
//! independent: one that hangs delays no other.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis_link::Address;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::holding::hold::Hold;
use crate::shared::Shared;
use crate::tracking::node::Node;

/// When nodes are looked for again, while some hold has none.
const RETRY: Duration = Duration::from_secs(1);

/// Track until the tasks have to end.
pub(crate) async fn run(shared: Arc<Shared>) {
    tokio::select! {
        () = assign(&shared) => {}
        () = shared.stop.cancelled() => {}
    }
}

/// Assign holds to nodes, again whenever there are more of them or the nodes change.
async fn assign(shared: &Arc<Shared>) {
    let redis = shared.connection.redis();
    let disconnected: Arc<Notify> = Arc::default();
    let mut nodes: HashMap<Address, UnboundedSender<Arc<Hold>>> = HashMap::new();
    let mut running = FuturesUnordered::new();
    // Holds without a node.
    let mut holds: Vec<Arc<Hold>> = Vec::new();
    loop {
        let nodes_changed = redis.changed();
        tokio::select! {
            more = shared.renewals.to_track() => holds.extend(more),
            // A node that has ended has given its holds back.
            Some(()) = running.next() => {}
            () = nodes_changed => {}
            () = disconnected.notified() => {}
            () = tokio::time::sleep(RETRY), if !holds.is_empty() => {}
        }
        nodes.retain(|_, node| !node.is_closed());
        holds.retain(|hold| hold.is_live());
        if nodes.is_empty() && holds.is_empty() {
            continue;
        }
        let keys = holds
            .iter()
            .map(|hold| hold.request.name.key().into())
            .collect();
        // Finding the nodes may take long; those that are known are served meanwhile.
        let mut assigning = pin!(redis.assign_channels(keys));
        let assigned = loop {
            tokio::select! {
                result = &mut assigning => break result,
                Some(()) = running.next() => {}
            }
        };
        let assigned = match assigned {
            Ok(assigned) => assigned,
            Err(error) => {
                tracing::debug!(%error, "no node for client tracking");
                continue;
            }
        };
        // A node that is no master any more gives its holds back.
        nodes.retain(|address, node| assigned.contains_key(address) && !node.is_closed());
        for (address, keys) in assigned {
            let here = holds.extract_if(.., |hold| keys.contains(hold.request.name.key()));
            for hold in here.collect::<Vec<_>>() {
                let node = nodes.entry(address.clone()).or_insert_with(|| {
                    let (sender, new) = unbounded_channel();
                    let (shared, disconnected) = (shared.clone(), disconnected.clone());
                    running.push(Node::new(shared, address.clone(), new, disconnected).run());
                    sender
                });
                if let Err(unsent) = node.send(hold) {
                    shared.renewals.track_again([unsent.0]);
                }
            }
        }
    }
}
