//! The shop that is read: the run's own, or one that the node makes or has warmed up.

use std::{collections::HashSet, time::Duration};

use testkit::wait::poll;
use workload::Error;

use super::{
    key,
    trial::{Burst, Obstacle, POLL, Trial},
};
use crate::judge::{
    node::{self, ShopReply},
    traces::SHOP_NAME,
};

/// How long the key of a shop may take to appear after a read.
const APPEARS_WITHIN: Duration = Duration::from_secs(1);

/// A shop that the node reads, and the key under which it caches it.
pub struct CachedShop {
    pub id: u64,
    pub name: String,
    pub key: Option<String>,
}

impl Trial<'_> {
    /// Finds a shop that the node reads, the run's own if it can, and makes sure that a read of the database shows.
    pub async fn find_shop(&mut self, own_shop: u64) -> Result<CachedShop, Obstacle> {
        let quiet = self.burst(["nobody", "没有人读"], &[], 0, 0).await?;
        if let Some(statement) = quiet.statements.first() {
            return Err(self.untried([
                format!("the reads. Others read tb_shop as well ({statement}): stop them, and judge again."),
                format!("查询店铺：别人也在读 tb_shop（{statement}），停掉之后再评判。"),
            ]));
        }
        let mut name = SHOP_NAME.to_owned();
        let mut id = own_shop;
        let mut before = self.keys_of(id).await?;
        let mut burst = self.read_for_the_first_time(id).await?;
        if burst.is_refused() {
            // A node with a Bloom filter knows the shops that it has made.
            let new_name = self.traces.choose_shop_name();
            let access = &self.options.access;
            // Where it makes none, the own shop remains.
            node::make_shop(&self.options.targets[0], access, &new_name)
                .await
                .ok();
            if let Some(made) = self.traces.find_shop(&new_name).await? {
                id = made;
                name = new_name;
                before = self.keys_of(id).await?;
                burst = self.read_for_the_first_time(id).await?;
            }
        }
        if burst.is_refused() {
            let url = &self.options.access.redis_url;
            let warmed = key::warm_up(url, self.traces.redis(), id, &name).await?;
            if warmed.is_some() {
                self.traces.made_keys(warmed);
                burst = self.read_for_the_first_time(id).await?;
            }
        }
        self.require_visible_read(id, &burst)?;
        let key = self.find_key(id, &before).await?;
        Ok(CachedShop { id, name, key })
    }

    /// A first read has to ask the database, and must be seen there.
    fn require_visible_read(&self, shop: u64, burst: &Burst) -> Result<(), Obstacle> {
        if !burst.statements.is_empty() {
            return Ok(());
        }
        let node = &self.options.targets[0];
        let reply = burst.replies.first().map(ToString::to_string);
        let reply = reply.unwrap_or_default();
        Err(match burst.replies.first() {
            Some(ShopReply::Shop(_)) if burst.answered == 0 => self.untried([
                "the reads. This user does not see the node's statements: name the node's own user in --database-url, or GRANT \
                 PROCESS ON *.* to this one."
                    .to_owned(),
                "查询店铺：这个数据库用户看不到节点的语句。--database-url 请用节点自己的用户，或者给它 GRANT PROCESS ON *.*。".to_owned(),
            ]),
            Some(ShopReply::Shop(_)) => self.untried([
                format!("the reads. {node} reads tb_shop although it is locked (a replica, or OceanBase?)."),
                format!("查询店铺：tb_shop 锁住了，{node} 还能读到（读的是从库，或者是 OceanBase？）。"),
            ]),
            Some(ShopReply::Refused(_)) => self.untried([
                format!(
                    "the reads. GET /shop/{shop}, which exists, was answered by {node} with {reply}. If it finds only shops that \
                     were warmed up, warm one up (saveShop2Redis), and judge again."
                ),
                format!(
                    "查询店铺：店铺 {shop} 在库里，{node} 的 GET /shop/{shop} 却返回 {reply}。如果只能查到预热过的店铺，先预热一个（saveShop2Redis）再评判。"
                ),
            ]),
            _ => self.untried([
                format!("the reads. GET /shop/{shop} was answered by {node} with {reply}: it has no reads of shops yet."),
                format!("查询店铺：{node} 的 GET /shop/{shop} 返回 {reply}，还没有这个接口。"),
            ]),
        })
    }

    async fn read_for_the_first_time(&mut self, shop: u64) -> Result<Burst, Obstacle> {
        let options = self.options;
        let node = &options.targets[..1];
        self.burst(["a shop for the first time", "第一次读店铺"], node, shop, 1)
            .await
    }

    /// The key that a read of the shop has made: what was there `before` is somebody else's, such as that of another id in
    /// `shop:geo:7`.
    async fn find_key(
        &mut self,
        shop: u64,
        before: &HashSet<String>,
    ) -> Result<Option<String>, Error> {
        let expected = format!("cache:shop:{shop}");
        let key = poll(APPEARS_WITHIN, POLL, async || {
            let keys = self.keys_of(shop).await?;
            let mut made: Vec<String> = keys.difference(before).cloned().collect();
            // Those of a rebuild.
            made.retain(|key| !key.contains("lock") && !key.contains("lease"));
            made.sort_by_key(|key| *key != expected);
            Ok::<_, Error>(made.into_iter().next())
        });
        let key = key.await?;
        let keys = self.keys_of(shop).await?;
        self.traces.made_keys(keys.difference(before).cloned());
        Ok(key)
    }
}

impl Burst {
    /// Whether the node said that there is no such shop.
    fn is_refused(&self) -> bool {
        self.statements.is_empty() && matches!(self.replies[..], [ShopReply::Refused(_)])
    }
}
