//! The operator of a round: publishes sales and adds stock while the faults happen, and does again what was refused or
//! may have been lost, as an operator would. At the end the tables must agree with every answer.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use chrono::{TimeDelta, Utc};
use futures_util::future::join_all;
use hyper::header::{HeaderName, HeaderValue};
use sqlx::{Connection as _, MySqlConnection};
use tokio::time::{Instant, sleep, sleep_until};

use super::changes::{Change, Owner, What};
use workload::{
    Access, Error, Target,
    http::{Call, Connection, Failure, Response},
    reply::Reply,
};

/// Vouchers of a sale that nobody buys.
const STOCK: u32 = 7;
/// Vouchers added at a time: unequal, so that their sum says which were added.
const ADDED: [i64; 4] = [1, 2, 4, 8];
/// Attempts until an operation is given up.
const ATTEMPTS: usize = 5;
/// Pause between them.
const PAUSE: Duration = Duration::from_millis(150);
/// Time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(4);
/// By which the service knows a repetition of the same publication.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// A shop of the sample data.
const SHOP: u64 = 1;

/// The answer to one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Done, with the number in the reply.
    Done(i64),
    /// Certainly not done by this.
    Refused,
    Unknown,
}

/// A sale that was to be published, under a title of its own.
#[derive(Debug, Clone)]
struct Publication {
    title: String,
    answers: Vec<Answer>,
}

/// Stock that was to be added to a sale.
#[derive(Debug, Clone)]
struct Addition {
    voucher_id: u64,
    count: i64,
    answers: Vec<Answer>,
}

/// A sale of the round.
#[derive(Debug, Clone)]
pub struct OnSale {
    /// Its voucher.
    pub voucher_id: u64,
    /// Its strategy.
    pub strategy: String,
    /// What was published.
    pub stock: u32,
}

/// What was done, with every answer.
#[derive(Debug, Default)]
struct Log {
    publications: Vec<Publication>,
    additions: Vec<Addition>,
    changes: Vec<Change>,
    /// Orders to pay or cancel when that is asked for.
    orders: Vec<Owner>,
}

/// The operator.
#[derive(Debug)]
pub struct Operator {
    access: Access,
    targets: Vec<Target>,
    sales: Vec<OnSale>,
    token: HeaderValue,
    next: AtomicUsize,
    log: Mutex<Log>,
}

impl Operator {
    /// An operator of `sales`.
    ///
    /// # Errors
    /// None that can happen: a token of hexadecimal digits fits into a header.
    pub fn new(access: &Access, targets: &[Target], sales: Vec<OnSale>) -> Result<Self, Error> {
        Ok(Self {
            access: access.clone(),
            targets: targets.to_vec(),
            sales,
            token: access.admin_header("publishing a sale")?,
            next: AtomicUsize::new(0),
            log: Mutex::default(),
        })
    }

    /// What every round does: at each of these times, publishes a sale and adds stock.
    pub async fn run(&self, begin: Instant, times: &[Duration]) {
        let operating = times.iter().enumerate().map(async |(number, at)| {
            sleep_until(begin + *at).await;
            tokio::join!(self.publish(number), self.add_stock(number));
        });
        join_all(operating).await;
    }

    /// Orders that [`Operator::change`] is to use.
    pub fn has_orders(&self, orders: Vec<Owner>) {
        self.log().orders = orders;
    }

    /// Publishes a sale on the strategy of the round's `sale`-th.
    pub async fn publish(&self, sale: usize) {
        let Some(on) = self.sales.get(sale % self.sales.len().max(1)) else { return };
        let title = format!("chaos {:032x}", rand::random::<u128>());
        let now = Utc::now().with_timezone(&self.access.time_zone);
        let local = |time: chrono::DateTime<_>| time.format("%Y-%m-%dT%H:%M:%S").to_string();
        let voucher = serde_json::json!({
            "shopId": SHOP, "title": title, "payValue": 8_000, "actualValue": 10_000, "stock": STOCK,
            "beginTime": local(now - TimeDelta::hours(1)), "endTime": local(now + TimeDelta::hours(2)),
            "strategy": on.strategy,
        });
        let call = Call::post("/voucher/seckill").admin(&self.token).json(&voucher);
        let answers = self.repeat(call).await;
        self.log().publications.push(Publication { title, answers });
    }

    /// Adds stock to the round's `sale`-th.
    pub async fn add_stock(&self, sale: usize) {
        let Some(on) = self.sales.get(sale % self.sales.len().max(1)) else { return };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let count = ADDED[number % ADDED.len()];
        let path = format!("/voucher/seckill/{}/stock", on.voucher_id);
        let more = serde_json::json!({ "add": count });
        let answers = self.repeat(Call::post(path).admin(&self.token).json(&more)).await;
        self.log().additions.push(Addition { voucher_id: on.voucher_id, count, answers });
    }

    /// Sends a request under a key of its own until it is done; returns every answer.
    async fn repeat(&self, call: Call) -> Vec<Answer> {
        let key = format!("{:032x}", rand::random::<u128>());
        // Hexadecimal digits fit into a header.
        let Ok(key) = HeaderValue::from_str(&key) else { return Vec::new() };
        let call = call.header(KEY, key);
        let mut answers = Vec::new();
        for _ in 0..ATTEMPTS {
            let answer = self.send(&call).await;
            answers.push(answer);
            if matches!(answer, Answer::Done(_)) {
                break;
            }
            sleep(PAUSE).await;
        }
        answers
    }

    /// Pays or cancels half of the orders that it has, on all instances at once.
    pub async fn change(&self, what: What) {
        let orders: Vec<Owner> = {
            let mut log = self.log();
            let keep = log.orders.len() / 2;
            log.orders.split_off(keep)
        };
        let changes = join_all(orders.iter().map(async |owner| owner.ask(&[what, what]).await));
        let changes = changes.await;
        self.log().changes.extend(changes);
    }

    /// Every payment and cancellation of [`Operator::change`].
    pub fn changes(&self) -> Vec<Change> {
        self.log().changes.clone()
    }

    /// Compares every answer with the tables; says what is not true.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn check(&self) -> Result<Vec<String>, Error> {
        let failed = |source| Error::Database { what: "while publications were checked", source };
        let mut database =
            MySqlConnection::connect(&self.access.database_url).await.map_err(failed)?;
        let (publications, additions) = {
            let log = self.log();
            (log.publications.clone(), log.additions.clone())
        };
        let mut wrong = Vec::new();
        for publication in publications {
            let rows: Vec<(i64, Option<i64>)> = sqlx::query_as(
                "SELECT CAST(v.id AS SIGNED), CAST(s.stock AS SIGNED) FROM tb_voucher v \
                 LEFT JOIN tb_seckill_voucher s ON s.voucher_id = v.id WHERE v.title = ?",
            )
            .bind(&publication.title)
            .fetch_all(&mut database)
            .await
            .map_err(failed)?;
            wrong.extend(check_publication(&publication, &rows));
        }
        for sale in &self.sales {
            let issued: Option<i64> = sqlx::query_scalar(
                "SELECT CAST(issued AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = ?",
            )
            .bind(sale.voucher_id)
            .fetch_one(&mut database)
            .await
            .map_err(failed)?;
            let added = issued.unwrap_or_default() - i64::from(sale.stock);
            let of_sale = additions.iter().filter(|add| add.voucher_id == sale.voucher_id);
            let of_sale: Vec<Addition> = of_sale.cloned().collect();
            wrong.extend(check_additions(&of_sale, added));
        }
        // How it ends does not matter any more.
        database.close().await.ok();
        Ok(wrong)
    }

    async fn send(&self, call: &Call) -> Answer {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let target = self.targets[number % self.targets.len()].clone();
        read(&Connection::new(target, TIMEOUT).send(call).await)
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(answer: &Result<Response, Failure>) -> Answer {
    match Reply::of(answer) {
        Reply::Ordered(number) => Answer::Done(number),
        Reply::Refused(_) | Reply::AlreadyOrdered(_) => Answer::Refused,
        _ => Answer::Unknown,
    }
}

/// `rows`: id and stock of every voucher of its title.
fn check_publication(publication: &Publication, rows: &[(i64, Option<i64>)]) -> Option<String> {
    let answers = &publication.answers;
    let told = answers.iter().find_map(|answer| match answer {
        Answer::Done(id) => Some(*id),
        _ => None,
    });
    let may_exist = answers.iter().any(|answer| *answer != Answer::Refused);
    let right = match (rows, told) {
        ([], None) => true,
        ([(id, stock)], Some(told)) => *id == told && *stock == Some(i64::from(STOCK)),
        ([(_, stock)], None) => may_exist && *stock == Some(i64::from(STOCK)),
        _ => false,
    };
    (!right)
        .then(|| format!("a publication was answered {answers:?}, and its vouchers are {rows:?}"))
}

/// `added`: by how much more than what was published is issued.
fn check_additions(additions: &[Addition], added: i64) -> Option<String> {
    let mut possible = vec![0];
    for Addition { count, answers, .. } in additions {
        let with: Vec<i64> = possible.iter().map(|sum| sum + count).collect();
        if answers.iter().any(|answer| matches!(answer, Answer::Done(_))) {
            possible = with;
        } else if answers.contains(&Answer::Unknown) {
            possible.extend(with);
        }
    }
    let answers: Vec<(i64, &Vec<Answer>)> =
        additions.iter().map(|add| (add.count, &add.answers)).collect();
    (!possible.contains(&added))
        .then(|| format!("{added} were added, and the answers are {answers:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Answer::{Done, Refused, Unknown};

    #[test]
    fn a_publication_happens_once_or_as_it_was_answered() {
        let is_wrong = |answers: &[Answer], rows: &[(i64, Option<i64>)]| {
            let publication = Publication { title: String::new(), answers: answers.to_vec() };
            check_publication(&publication, rows).is_some()
        };
        let row = (5, Some(i64::from(STOCK)));
        assert!(!is_wrong(&[Done(5)], &[row]) && !is_wrong(&[Unknown, Done(5)], &[row]));
        assert!(!is_wrong(&[Unknown], &[]) && !is_wrong(&[Unknown], &[row]));
        assert!(!is_wrong(&[Refused, Refused], &[]));
        assert!(is_wrong(&[Refused], &[row]), "refused, and it happened");
        assert!(is_wrong(&[Done(5)], &[]) && is_wrong(&[Done(6)], &[row]));
        assert!(is_wrong(&[Unknown, Done(5)], &[row, (4, row.1)]), "twice");
        assert!(is_wrong(&[Done(5)], &[(5, Some(1))]), "another stock");
    }

    #[test]
    fn what_was_added_is_what_was_confirmed_and_perhaps_what_is_unknown() {
        let is_wrong = |additions: &[(i64, &[Answer])], added| {
            let additions: Vec<Addition> = additions
                .iter()
                .map(|&(count, answers)| Addition {
                    voucher_id: 1,
                    count,
                    answers: answers.to_vec(),
                })
                .collect();
            check_additions(&additions, added).is_some()
        };
        assert!(!is_wrong(&[], 0) && is_wrong(&[], 1));
        let answers: [(i64, &[Answer]); 3] =
            [(1, &[Unknown, Done(9)]), (2, &[Refused, Unknown]), (4, &[Refused, Refused])];
        assert!(!is_wrong(&answers, 1) && !is_wrong(&answers, 3));
        assert!(is_wrong(&answers, 5), "refused, and it happened");
        assert!(is_wrong(&answers, 2), "confirmed, and it did not happen");
        assert!(is_wrong(&answers[..1], 2), "twice");
    }
}
