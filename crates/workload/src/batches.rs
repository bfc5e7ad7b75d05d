//! How many orders shared a commit, from the histogram `seckill_group_batch_orders` in the instances' metrics: of all sales
//! together.

use std::time::Duration;

use crate::{
    Target,
    http::{Call, Connection},
};

/// Time limit of one reading.
const LIMIT: Duration = Duration::from_secs(2);

/// Commits of all instances so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Batches {
    commits: u64,
    orders: u64,
}

impl Batches {
    /// Asks the instances; one that does not answer counts for nothing.
    pub async fn read(nodes: &[Target]) -> Self {
        let mut total = Self::default();
        for node in nodes {
            let mut connection = Connection::new(node.clone(), LIMIT);
            if let Ok(response) = connection.send(&Call::get("/metrics")).await {
                total.add(&String::from_utf8_lossy(&response.body));
            }
        }
        total
    }

    fn add(&mut self, page: &str) {
        let value = |series: &str| {
            let value = page
                .lines()
                .find_map(|line| line.strip_prefix(series)?.parse().ok());
            value.unwrap_or(0)
        };
        self.orders += value("seckill_group_batch_orders_sum ");
        self.commits += value("seckill_group_batch_orders_count ");
    }

    /// Orders in a commit after `before`, on average. An instance that was started anew in between counts from nothing.
    pub fn average_since(&self, before: &Self) -> Option<f64> {
        let commits = self.commits.saturating_sub(before.commits);
        let orders = self.orders.saturating_sub(before.orders);
        (commits > 0).then(|| orders as f64 / commits as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_add_up() {
        let page = |orders, commits| {
            format!(
                "# TYPE seckill_group_batch_orders histogram\n\
                 seckill_group_batch_orders_bucket{{le=\"+Inf\"}} {commits}\n\
                 seckill_group_batch_orders_sum {orders}\nseckill_group_batch_orders_count {commits}\n"
            )
        };
        let mut before = Batches::default();
        let mut now = Batches::default();
        before.add(&page(1, 1));
        now.add(&page(10, 4));
        now.add(&page(1, 1));
        assert_eq!(now.average_since(&before), Some(2.5));
        assert_eq!(now.average_since(&now), None);
    }
}
