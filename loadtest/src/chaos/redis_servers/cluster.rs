//! A cluster of three masters with a replica each: server `n + 3` is the other half of the pair of server `n`.

use std::time::Duration;

use anyhow::{Context, Result};
use redis::Value;
use testkit::{redis_sentinel::is_in_sync, wait::until};
use tokio::time::sleep;

use super::{RedisServers, is_master, wait_until};
use crate::chaos::redis_data::command;

/// Keys that are moved at a time: the node does nothing else meanwhile.
const KEYS_AT_A_TIME: &str = "100";
/// How long an election that was asked for may take: the servers give it up after five seconds.
const ELECTION: Duration = Duration::from_secs(6);

impl RedisServers {
    /// Whether all nodes agree on who serves which slot, and every replica has what its master has.
    pub(super) async fn cluster_is_whole(&self) -> Result<bool> {
        let mut agreed: Option<Vec<Vec<Value>>> = None;
        for node in &self.nodes {
            let info: String = command(node, &["CLUSTER", "INFO"]).await?;
            let mut slots: Vec<Vec<Value>> = command(node, &["CLUSTER", "SLOTS"]).await?;
            // Each range with its master is compared: a node may not know yet who has taken over, or where a slot is now.
            slots.iter_mut().for_each(|range| range.truncate(3));
            let ok = ["cluster_state:ok", "cluster_slots_ok:16384"];
            if !ok.iter().all(|ok| info.contains(ok))
                || *agreed.get_or_insert_with(|| slots.clone()) != slots
            {
                return Ok(false);
            }
        }
        let masters = self.masters().await?;
        for master in &masters {
            let replica = self.replica_of(*master);
            if !is_in_sync(&self.nodes[*master], &self.nodes[replica]).await {
                return Ok(false);
            }
        }
        Ok(masters.len() == self.nodes.len() / 2)
    }

    /// Moves the slot of `key` to another master while clients use it: for `lasts` some of its keys are here and some
    /// there.
    pub async fn move_slot(&self, key: &str, lasts: Duration) -> Result<()> {
        let source = self.master_of(key).await?;
        let mut other_masters = self.masters().await?;
        other_masters.retain(|number| *number != source);
        let target = other_masters.pop().context("there is no other master")?;
        let slot: u16 = command(&self.nodes[source], &["CLUSTER", "KEYSLOT", key]).await?;
        let slot = slot.to_string();
        let id =
            async |node: usize| command::<String>(&self.nodes[node], &["CLUSTER", "MYID"]).await;
        let source_id = id(source).await?;
        let target_id = id(target).await?;
        let set = async |node: usize, words: [&str; 2]| -> Result<()> {
            command(
                &self.nodes[node],
                &["CLUSTER", "SETSLOT", &slot, words[0], words[1]],
            )
            .await
        };
        set(target, ["IMPORTING", &source_id]).await?;
        set(source, ["MIGRATING", &target_id]).await?;
        let port = self.nodes[target].port().to_string();
        // Half of the keys at first: a command that needs keys of both halves waits meanwhile.
        let mut parts = 2;
        loop {
            let keys = ["CLUSTER", "GETKEYSINSLOT", &slot, KEYS_AT_A_TIME];
            let keys: Vec<String> = command(&self.nodes[source], &keys).await?;
            if keys.is_empty() {
                break;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
            migrate.extend(
                keys.iter()
                    .take(keys.len().div_ceil(parts))
                    .map(String::as_str),
            );
            let _moved: String = command(&self.nodes[source], &migrate).await?;
            if parts > 1 {
                sleep(lasts).await;
                parts = 1;
            }
        }
        // The new owner first: the old one would otherwise send clients to a node that sends them back.
        for node in [target, source].into_iter().chain(other_masters) {
            set(node, ["NODE", &target_id]).await?;
        }
        Ok(())
    }

    /// Asks a replica to take its master's place, and asks again if it was not elected. `how` is empty, `FORCE` or
    /// `TAKEOVER`.
    pub async fn replace_by(&self, replica: usize, how: &[&str]) -> Result<()> {
        let node = &self.nodes[replica];
        let words = [&["CLUSTER", "FAILOVER"], how].concat();
        wait_until("the replica is elected", async || {
            // Refused while another election is under way.
            command::<()>(node, &words).await.ok();
            until(ELECTION, async || is_master(node).await.unwrap_or(false)).await
        })
        .await
    }
}
