//! The sizes of one thing beside each other, and the medians of their rounds.

use seckill_loadtest::plan::figures::{Answer, Cost, Level};

use super::{Scale, Size, say};
use crate::bench::ratios::{figure, median};
use crate::bench::runs::Run;

impl Scale<'_> {
    /// Measures all `sizes` in interleaved rounds, after one that does not count.
    pub(super) async fn growth(
        &self,
        dimension: &str,
        sizes: &[Size<'_>],
    ) -> anyhow::Result<Vec<Level>> {
        let mut orders = vec![Vec::new(); sizes.len()];
        let mut refusals = orders.clone();
        for round in 0..=self.settings.rounds {
            for (at, size) in sizes.iter().enumerate() {
                let order = self.answers(size, round, true).await?;
                let refusal = self.answers(size, round, false).await?;
                say(&format!(
                    "    {} {dimension}: an order {} µs, a refusal {} µs",
                    size.count,
                    figure(order.cpu.servers_us()),
                    figure(refusal.cpu.servers_us())
                ));
                if round > 0 {
                    orders[at].push(order);
                    refusals[at].push(refusal);
                }
            }
        }
        let level = |(at, size): (usize, &Size<'_>)| Level {
            dimension: dimension.to_owned(),
            count: size.count,
            order: answer(&orders[at], &orders[0], |run| run.orders_per_s),
            refusal: answer(&refusals[at], &refusals[0], |run| run.answers_per_s),
        };
        Ok(sizes.iter().enumerate().map(level).collect())
    }
}

/// The medians of `runs`, each beside the run of `smallest` of the same round.
pub(super) fn answer(runs: &[Run], smallest: &[Run], rate: impl Fn(&Run) -> f64) -> Answer {
    let of = |value: &dyn Fn(&Run) -> f64| middle(runs.iter().map(value));
    let beside = |value: &dyn Fn(&Run) -> f64| -> Vec<f64> {
        runs.iter().zip(smallest).map(|(run, small)| value(run) / value(small)).collect()
    };
    let growth = beside(&|run| run.cpu.servers_us());
    let [least, most] = [
        growth.iter().copied().fold(f64::INFINITY, f64::min),
        growth.iter().copied().fold(0.0, f64::max),
    ];
    Answer {
        cost: Cost {
            service_us: of(&|run| run.cpu.service_us),
            database_us: of(&|run| run.cpu.database_us),
            redis_us: of(&|run| run.cpu.redis_us),
            client_us: of(&|run| run.cpu.client_us),
        },
        p99_ms: of(&|run| run.latency.p99_ms),
        per_s: of(&rate),
        growth: [middle(growth.iter().copied()), least, most],
        p99_growth: middle(beside(&|run| run.latency.p99_ms).into_iter()),
        batch: median(&runs.iter().filter_map(|run| run.batch).collect::<Vec<_>>()),
    }
}

/// The median.
pub(super) fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(&values.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}
