//! A change of a shop (`PUT /shop`): does every node show the new value afterwards?
//!
//! The shop's row is locked when the change begins, so that it stands in the database, and the shop is read meanwhile. Where
//! the key is deleted before the row is changed, such a read stores the old value again, for as long as the key lives.

use std::time::Duration;

use redis::AsyncCommands;
use testkit::wait::poll;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use workload::Error;

use super::{
    shop::CachedShop,
    trial::{Obstacle, POLL, Trial},
};
use crate::judge::{
    flaws::{Finding, Flaw},
    node::{self, ShopReply},
    traces::{database_error, redis_error},
};

/// How long the change may take to reach the shop's row.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);
/// How long after the reply to a change an old value may still be read: for a message to the other nodes, or for a copy in
/// memory that lives for a moment.
const GRACE: Duration = Duration::from_secs(2);

/// A change that a node was asked for.
struct Change {
    outcome: Result<(), Error>,
    /// Whether the shop's key was gone before the row was changed.
    is_deleted_first: bool,
}

impl Trial<'_> {
    /// Changes a shop at the first node, and reads it at all.
    pub async fn try_change(&mut self, shop: &CachedShop) -> Result<(), Obstacle> {
        let new_name = format!("{}, changed", shop.name);
        let mut change = self.change_while_read(shop, &new_name).await?;
        if change.outcome.is_err() {
            // Some nodes do not wait for a row for long.
            let node = &self.options.targets[0];
            change.outcome =
                node::rename_shop(node, &self.options.access, shop.id, &new_name).await;
        }
        if let Err(error) = change.outcome {
            return Err(self.untried([
                format!("a change of a shop. {error}"),
                format!("修改店铺：{error}"),
            ]));
        }
        self.reads.tried.push(Flaw::Stale);
        let example = self.find_old_values(shop, &new_name).await?;
        if !example.is_empty() {
            self.push_stale(shop, change.is_deleted_first, example);
        }
        Ok(())
    }

    /// Changes a shop at the first node, and has it read at each while the change waits for the shop's row.
    async fn change_while_read(&self, shop: &CachedShop, new_name: &str) -> Result<Change, Error> {
        let was_cached = self.has_key(shop).await?;
        let transaction = self.traces.hold_shop(shop.id).await?;
        let node = self.options.targets[0].clone();
        let access = self.options.access.clone();
        let id = shop.id;
        let name = new_name.to_owned();
        let change = async move { node::rename_shop(&node, &access, id, &name).await };
        let changing = AbortOnDropHandle::new(tokio::spawn(change));
        poll(ARRIVES_WITHIN, POLL, async || {
            let is_there = changing.is_finished() || self.table.is_being_updated().await?;
            Ok::<_, Error>(is_there.then_some(()))
        })
        .await?;
        let is_deleted_first = was_cached && !self.has_key(shop).await?;
        self.read_on_each_node(shop.id).await;
        transaction.rollback().await.map_err(database_error)?;
        Ok(Change {
            outcome: changing.await.map_err(Error::Task)?,
            is_deleted_first,
        })
    }

    /// What is read in place of the new name, a line for each node that does not show it in time.
    async fn find_old_values(
        &self,
        shop: &CachedShop,
        new_name: &str,
    ) -> Result<Vec<String>, Error> {
        let changed = Instant::now();
        let expected = ShopReply::Shop(new_name.to_owned());
        let mut lines = Vec::new();
        for node in &self.options.targets {
            let mut reply;
            loop {
                reply = node::read_shop(node.clone(), self.token.clone(), shop.id).await;
                if reply == expected || changed.elapsed() >= GRACE {
                    break;
                }
                sleep(POLL).await;
            }
            if reply == expected {
                continue;
            }
            let after = changed.elapsed().as_secs_f64();
            let id = shop.id;
            lines.push(self.text([
                format!(
                    "{after:.1} s after the reply {node} still answers GET /shop/{id} with {reply}"
                ),
                format!("返回之后 {after:.1} 秒，{node} 的 GET /shop/{id} 还是 {reply}"),
            ]));
        }
        if let Some(key) = &shop.key
            && !lines.is_empty()
        {
            let mut redis = self.traces.redis();
            let left: i64 = redis.ttl(key).await.map_err(|error| redis_error(&error))?;
            lines.push(match left {
                0.. => self.text([
                    format!("{key} lives for another {left} s"),
                    format!("{key} 还有 {left} 秒才过期"),
                ]),
                -1 => self.text([format!("{key} never expires"), format!("{key} 永不过期")]),
                _ => self.text([format!("{key} is not there"), format!("{key} 不存在")]),
            });
        }
        Ok(lines)
    }

    fn push_stale(&mut self, shop: &CachedShop, is_deleted_first: bool, old_values: Vec<String>) {
        let nodes = self.options.targets.len();
        let first = &self.options.targets[0];
        let id = shop.id;
        let old_name = &shop.name;
        let mut example = vec![self.text([
            format!("PUT /shop at {first}: shop {id}, \"{old_name}\" → \"{old_name}, changed\""),
            format!(
                "在 {first} 执行 PUT /shop：店铺 {id}，\"{old_name}\" → \"{old_name}, changed\""
            ),
        ])];
        if is_deleted_first {
            example.push(self.text([
                "the key was deleted before the row was changed, and a read in between stored the old value again".to_owned(),
                "先删了 key，后改的数据库；中间有一次读，又把旧值写回了缓存".to_owned(),
            ]));
        }
        example.extend(old_values);
        self.reads.findings.push(Finding {
            flaw: Flaw::Stale,
            nodes,
            count: 1,
            sales: 0,
            example,
        });
    }

    /// Whether the shop's key is there.
    async fn has_key(&self, shop: &CachedShop) -> Result<bool, Error> {
        let Some(key) = &shop.key else {
            return Ok(false);
        };
        let exists = self.traces.redis().exists(key).await;
        exists.map_err(|error| redis_error(&error))
    }
}
