//! What reads cost the database: of a hot key that expires, and of an id that does not exist.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    key::{self, Expiry},
    shop::CachedShop,
    trial::{Obstacle, READERS, Trial},
};
use crate::judge::flaws::Flaw;

/// How long after the expiry readers come: a node may keep a copy in its own memory for a moment.
const COPIES_GONE_AFTER: Duration = Duration::from_millis(1200);

impl Trial<'_> {
    /// Is there a cache, and how many readers of a hot key ask the database when it expires?
    pub async fn try_hot_key(&mut self, shop: &CachedShop) -> Result<(), Obstacle> {
        let options = self.options;
        let nodes = &options.targets;
        // Each has it in its cache then.
        self.read_on_each_node(shop.id).await;
        let cached = self.burst(
            ["a shop that was just read", "刚读过的店铺"],
            nodes,
            shop.id,
            READERS,
        );
        let cached = cached.await?;
        self.reads.tried.push(Flaw::Uncached);
        if !cached.statements.is_empty() {
            let id = shop.id;
            let circumstances = [
                format!("shop {id} was read before"),
                format!("店铺 {id} 刚刚读过"),
            ];
            self.add_finding(Flaw::Uncached, circumstances, &cached);
            return Ok(());
        }
        let Some(key) = &shop.key else {
            return Err(self.untried([
                format!(
                    "a hot key that expires (缓存击穿). After a read of shop {} Redis has no key with `shop` and this id in its \
                     name, so the copy is elsewhere.",
                    shop.id
                ),
                format!(
                    "缓存击穿：读过店铺 {} 之后，Redis 里没有名字带 shop 和这个 id 的 key，缓存在别处。",
                    shop.id
                ),
            ]));
        };
        let Some(expiry) = key::expire(self.traces.redis(), key).await? else {
            return Err(self.untried([
                format!("a hot key that expires (缓存击穿). The time in the value of {key} is in a form that is not known here."),
                format!("缓存击穿：{key} 的值里，过期时间的格式不认识。"),
            ]));
        };
        sleep(COPIES_GONE_AFTER).await;
        let expired = self.burst(
            ["a hot key that has expired", "热点 key 刚过期"],
            nodes,
            shop.id,
            READERS,
        );
        let expired = expired.await?;
        self.reads.tried.push(Flaw::Breakdown);
        // A lock in the memory of each node lets one load of each through.
        if expired.statements.len() > nodes.len() {
            self.add_finding(Flaw::Breakdown, describe(key, expiry), &expired);
        }
        Ok(())
    }

    /// Does an id that does not exist ask the database again and again?
    pub async fn try_absent_shop(&mut self) -> Result<(), Obstacle> {
        let id = self.traces.choose_absent_shop().await?;
        self.traces.made_keys([format!("cache:shop:{id}")]);
        self.read_on_each_node(id).await;
        let options = self.options;
        let nodes = &options.targets;
        let burst = self.burst(
            [
                "an id that does not exist, read before",
                "读过一次的不存在的 id",
            ],
            nodes,
            id,
            READERS,
        );
        let burst = burst.await?;
        let made = self.keys_of(id).await?;
        self.traces.made_keys(made);
        self.reads.tried.push(Flaw::Penetration);
        if !burst.statements.is_empty() {
            let circumstances = [
                format!("no shop has the id {id}, and each node had been asked for it before"),
                format!("没有 id 为 {id} 的店铺，每个节点之前都查过一次"),
            ];
            self.add_finding(Flaw::Penetration, circumstances, &burst);
        }
        Ok(())
    }
}

fn describe(key: &str, expiry: Expiry) -> [String; 2] {
    match expiry {
        Expiry::TimeToLive(seconds) => [
            format!("{key} expired (its time to live had been {seconds} s)"),
            format!("{key} 过期（原来还剩 {seconds} 秒）"),
        ],
        Expiry::Logical => [
            format!("{key} expired logically (the time in its value is over)"),
            format!("{key} 逻辑过期（值里的时间已过）"),
        ],
        Expiry::Deleted => [
            format!("{key} has no time to live, so it was deleted, as a change of the shop does"),
            format!("{key} 没有过期时间，于是删掉它，就像修改店铺时那样"),
        ],
    }
}
