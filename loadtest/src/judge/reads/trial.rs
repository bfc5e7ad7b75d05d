//! What all trials of the reads share: many reads while the table of shops is locked, and what was found.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use hyper::header::HeaderValue;
use strategies::Text;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use workload::{Error, Target};

use super::table::{self, ShopTable};
use crate::judge::{
    flaws::{Finding, Flaw},
    keys,
    node::{self, ShopReply},
    options::{JudgeOptions, Language},
    traces::Traces,
};

/// Reads at once.
pub const READERS: usize = 40;
/// The table of shops stays locked until for so long there was no further answer and no further statement.
const QUIET: Duration = Duration::from_secs(1);
/// But no longer than this, should no read be seen at all.
const LONGEST_HOLD: Duration = Duration::from_secs(5);
pub const POLL: Duration = Duration::from_millis(20);

/// The columns of [`Reads::rows`].
pub const COLUMNS: [&str; 5] = [
    "reads, while the table of shops is locked",
    ">requests",
    ">answered meanwhile",
    ">in the database at once",
    ">SELECTs of the server, for everybody",
];

/// What was found out about the reads.
#[derive(Debug, Default)]
pub struct Reads {
    pub findings: Vec<Finding>,
    /// What was looked for.
    pub tried: Vec<Flaw>,
    /// A row of the report for each time that the table was locked.
    pub rows: Vec<Vec<String>>,
    /// What could not be tried and what to do about it, a sentence each.
    pub untried: Vec<String>,
}

/// Why something was not tried.
pub enum Obstacle {
    /// The node or its database does not let it; a sentence for the verdict.
    Untried(String),
    Failed(Error),
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Many reads at once while the table is locked.
pub struct Burst {
    pub replies: Vec<ShopReply>,
    /// How many were answered meanwhile.
    pub answered: usize,
    /// The statements that stood in the database, when they were most.
    pub statements: Vec<String>,
    /// How many SELECTs the server executed, for everybody.
    pub selects: Option<u64>,
}

/// The reads of these nodes, which are being tried.
pub struct Trial<'a> {
    pub options: &'a JudgeOptions,
    pub traces: &'a mut Traces,
    pub table: ShopTable,
    pub token: HeaderValue,
    pub reads: Reads,
}

impl Trial<'_> {
    /// The value, or a sentence more for the verdict.
    pub fn unless_untried<T>(&mut self, outcome: Result<T, Obstacle>) -> Result<Option<T>, Error> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(Obstacle::Untried(why)) => {
                self.reads.untried.push(why);
                Ok(None)
            }
            Err(Obstacle::Failed(error)) => Err(error),
        }
    }

    /// The text in the verdict's language.
    pub fn text(&self, [english, chinese]: [String; 2]) -> String {
        match self.options.language() {
            Language::En => english,
            Language::Zh => chinese,
        }
    }

    pub fn untried(&self, [english, chinese]: [String; 2]) -> Obstacle {
        Obstacle::Untried(self.text([format!("Not tried: {english}"), format!("没有测{chinese}")]))
    }

    /// Has each node read a shop, whatever it says.
    pub async fn read_on_each_node(&self, shop: u64) {
        for node in &self.options.targets {
            node::read_shop(node.clone(), self.token.clone(), shop).await;
        }
    }

    pub async fn keys_of(&self, shop: u64) -> Result<HashSet<String>, Error> {
        keys::find(&self.options.access.redis_url, "shop", shop).await
    }

    /// Has so many clients read a shop at once, at these nodes in turn, while the table is locked.
    pub async fn burst(
        &mut self,
        name: Text,
        nodes: &[Target],
        shop: u64,
        readers: usize,
    ) -> Result<Burst, Obstacle> {
        let selects_before = self.table.selects().await?;
        let lock = self
            .table
            .lock()
            .await
            .map_err(|error| self.not_locked(&error))?;
        let nodes = nodes.iter().cycle().take(readers);
        let reading: Vec<_> = nodes
            .map(|node| node::read_shop(node.clone(), self.token.clone(), shop))
            .map(|reading| AbortOnDropHandle::new(tokio::spawn(reading)))
            .collect();
        let (answered, statements) = self.watch(&reading).await?;
        table::unlock(lock).await?;
        let replies = join_all(reading).await;
        let replies: Result<Vec<_>, _> = replies.into_iter().collect();
        let selects_after = self.table.selects().await?;
        let burst = Burst {
            replies: replies.map_err(Error::Task)?,
            answered,
            statements,
            selects: selects_after
                .zip(selects_before)
                .map(|(after, before)| after.saturating_sub(before)),
        };
        self.reads.rows.push(vec![
            self.options.language().pick(name).to_owned(),
            readers.to_string(),
            answered.to_string(),
            burst.statements.len().to_string(),
            burst
                .selects
                .map_or_else(String::new, |selects| selects.to_string()),
        ]);
        Ok(burst)
    }

    /// Watches the reads while the table is locked; returns how many were answered, and the statements that stood in the
    /// database when they were most.
    async fn watch(
        &self,
        reading: &[AbortOnDropHandle<ShopReply>],
    ) -> Result<(usize, Vec<String>), Error> {
        let mut answered = 0;
        let mut statements = Vec::new();
        let begin = Instant::now();
        let mut last_event = begin;
        while begin.elapsed() < LONGEST_HOLD {
            let waiting = self.table.waiting().await?;
            let answered_now = reading.iter().filter(|read| read.is_finished()).count();
            if waiting.len() > statements.len() {
                statements = waiting;
                last_event = Instant::now();
            }
            if answered_now > answered {
                answered = answered_now;
                last_event = Instant::now();
            }
            let is_any_seen = answered > 0 || !statements.is_empty() || reading.is_empty();
            if is_any_seen && last_event.elapsed() >= QUIET {
                break;
            }
            sleep(POLL).await;
        }
        Ok((answered, statements))
    }

    fn not_locked(&self, error: &sqlx::Error) -> Obstacle {
        self.untried([
            format!(
                "the reads. They are counted under LOCK TABLES tb_shop WRITE, and the database says: {error}. It needs GRANT LOCK \
                 TABLES ON your database to this user, and that nobody else locks the table."
            ),
            format!(
                "查询店铺：计数要用 LOCK TABLES tb_shop WRITE，数据库返回 {error}。需要给这个用户 GRANT LOCK TABLES ON 你的库，并且没有别人锁着这张表。"
            ),
        ])
    }

    /// Adds a flaw that this burst has shown, under these circumstances.
    pub fn add_finding(&mut self, flaw: Flaw, circumstances: [String; 2], burst: &Burst) {
        let loads = burst.statements.len();
        let readers = burst.replies.len();
        let selects = burst.selects.unwrap_or_default();
        let counts = [
            format!(
                "{readers} reads at once: {loads} stood in the database together; the server executed {selects} SELECTs meanwhile, \
                 for everybody"
            ),
            format!(
                "同时 {readers} 次读：有 {loads} 次一起在查数据库；期间数据库一共执行 {selects} 条 SELECT（包括其他程序的）"
            ),
        ];
        let mut example = vec![self.text(circumstances), self.text(counts)];
        example.extend(burst.statements.first().cloned());
        self.reads.findings.push(Finding {
            flaw,
            nodes: self.options.targets.len(),
            count: loads as u64,
            sales: 0,
            example,
        });
    }
}
