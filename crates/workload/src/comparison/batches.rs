//! How many orders shared a commit, from the histogram `seckill_group_batch_orders` in the instances' metrics. It does
//! not tell sales apart: with two lanes on `group-commit`, both show the commits of both.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    Target,
    http::{Call, Connection},
};

/// Time limit of one reading.
const LIMIT: Duration = Duration::from_secs(2);
const NAME: &str = "seckill_group_batch_orders";

/// Commits of all instances so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batches {
    /// Commits with at most so many orders.
    up_to: BTreeMap<u64, u64>,
    commits: u64,
    orders: u64,
}

impl Batches {
    /// Asks the instances; one that does not answer counts for nothing.
    pub async fn read(nodes: &[Target]) -> Self {
        let mut all = Self::default();
        for node in nodes {
            let mut connection = Connection::new(node.clone(), LIMIT);
            let asked = connection.send(&Call::get("/metrics")).await;
            if let Ok(response) = asked {
                all.add(&String::from_utf8_lossy(&response.body));
            }
        }
        all
    }

    fn add(&mut self, text: &str) {
        for line in text.lines() {
            let Some((series, value)) = line.strip_prefix(NAME).and_then(|l| l.rsplit_once(' '))
            else {
                continue;
            };
            let Ok(value) = value.parse::<u64>() else { continue };
            match series {
                "_sum" => self.orders += value,
                "_count" => self.commits += value,
                _ => {
                    let bound =
                        series.strip_prefix("_bucket{le=\"").and_then(|s| s.strip_suffix("\"}"));
                    if let Some(bound) = bound.and_then(|bound| bound.parse().ok()) {
                        *self.up_to.entry(bound).or_default() += value;
                    }
                }
            }
        }
    }

    /// What came after `before`. An instance that was started anew in between counts from nothing.
    pub fn since(&self, before: &Self) -> Self {
        let up_to = |(bound, count): (&u64, &u64)| {
            let known = before.up_to.get(bound).copied().unwrap_or_default();
            (*bound, count.saturating_sub(known))
        };
        Self {
            up_to: self.up_to.iter().map(up_to).collect(),
            commits: self.commits.saturating_sub(before.commits),
            orders: self.orders.saturating_sub(before.orders),
        }
    }

    /// Orders in a commit.
    pub fn average(&self) -> Option<f64> {
        (self.commits > 0).then(|| self.orders as f64 / self.commits as f64)
    }

    /// Commits between the last bound and each one.
    pub fn sizes(&self) -> Vec<(u64, u64)> {
        let mut below = 0;
        let sizes = self.up_to.iter().map(|(bound, count)| {
            let here = count.saturating_sub(below);
            below = (*count).max(below);
            (*bound, here)
        });
        sizes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_add_up_and_sizes_are_between_bounds() {
        let text = |one, all| {
            format!(
                "# TYPE seckill_group_batch_orders histogram\nseckill_group_batch_orders_bucket{{le=\"1\"}} {one}\n\
                 seckill_group_batch_orders_bucket{{le=\"4\"}} {all}\nseckill_group_batch_orders_bucket{{le=\"+Inf\"}} {all}\n\
                 seckill_group_batch_orders_sum {}\nseckill_group_batch_orders_count {all}\n",
                one + 3 * (all - one)
            )
        };
        let (mut before, mut now) = (Batches::default(), Batches::default());
        before.add(&text(1, 1));
        now.add(&text(2, 4));
        now.add(&text(1, 1));
        let since = now.since(&before);
        assert_eq!(since.sizes(), [(1, 2), (4, 2)]);
        assert_eq!(since.average(), Some(2.0));
        assert_eq!(now.since(&now).average(), None);
    }
}
