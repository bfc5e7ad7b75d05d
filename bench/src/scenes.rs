//! Runs for the pictures: not ratios, but what a reader wants to see of a sale. Judged like all others.

use std::time::Duration;

use anyhow::bail;
use ladder::Strategy;
use serde::Serialize;
use workload::comparison::batches::Batches;
use workload::live::Progress;

use crate::client::End;
use crate::ratios::figure;
use crate::rounds::Servers;
use crate::runs::{self, Plan, Run, Runner, Stock};

/// What the pictures show.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Scenes {
    /// Orders a second of each strategy that holds: (name, median).
    pub strategies: Vec<(String, f64)>,
    /// A sale that sells out.
    pub sale: Sale,
    /// Batches of group-commit during the rounds: (largest size, how many).
    pub batches: Vec<(u64, u64)>,
}

/// A sale from its first order to "sold out".
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sale {
    /// What was on sale.
    pub stock: u32,
    /// Orders told so far: (seconds, count).
    pub orders: Vec<(f64, f64)>,
    /// What the database had left: (seconds, count).
    pub left: Vec<(f64, f64)>,
    /// Refusals so far: (seconds, count).
    pub refused: Vec<(f64, f64)>,
}

/// Plays them.
pub async fn play(
    runner: &mut Runner<'_>,
    servers: &Servers,
    lasting: Duration,
) -> anyhow::Result<Scenes> {
    Progress::Stderr.say("scenes for the pictures");
    let batches = Batches::read(&[servers.one.target()]).await.sizes();
    let base = Plan {
        name: "",
        strategy: "",
        servers: vec![&servers.one],
        prefix: "",
        stock: Stock::ForAll,
        clients: 256,
        rate: None,
        again: false,
        lasting,
    };
    let mut strategies = Vec::new();
    let safe = Strategy::ALL.into_iter().filter(|strategy| !strategy.is_unsafe());
    for strategy in safe.map(Strategy::name) {
        let measured: Vec<f64> = runner
            .runs
            .iter()
            .filter(|run| run.name == strategy && run.clients == 256)
            .map(|run| run.orders_per_s)
            .collect();
        let rate = match crate::ratios::median(&measured) {
            Some(rate) => rate,
            None if runner.publish(strategy, 1).await.is_err() => continue,
            None => {
                let plan = Plan { name: strategy, strategy, ..base.clone() };
                clean(runner.run(&plan, 0).await?)?.orders_per_s
            }
        };
        Progress::Stderr.say(&format!("    {strategy}: {} orders/s", figure(rate)));
        strategies.push((strategy.to_owned(), rate));
    }
    // So much that it lasts for half of the run.
    let rate = strategies.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let stock = (rate * lasting.as_secs_f64() / 2.0).clamp(100.0, 100_000.0) as u32;
    // What a buyer waits who does not come in step with the others: attempts at a fixed rate, below the
    // peak, and latency from when each was due.
    let name = "group-commit, open loop at 70 %";
    let strategy = "group-commit";
    let tail = Plan { name, strategy, clients: 1024, rate: Some(0.7 * rate), ..base.clone() };
    clean(runner.run(&tail, 0).await?)?;
    let plan = Plan {
        name: "a sale that sells out",
        strategy: "group-commit",
        stock: Stock::Some(stock),
        ..base
    };
    let voucher = runner.publish(plan.strategy, stock).await?;
    let ground = runner.ground;
    let (run, left) =
        runs::watch_stock(ground, voucher, runner.run_on(&plan, 0, Some(voucher))).await;
    let run = clean(run?)?;
    Ok(Scenes { strategies, sale: sale(stock, &run, &left), batches })
}

fn clean(run: Run) -> anyhow::Result<Run> {
    if !run.violations.is_empty() {
        bail!("{} broke a law: {}", run.name, run.violations.join(", "));
    }
    Ok(run)
}

/// Counts what was told, two hundred points at most.
fn sale(stock: u32, run: &Run, left: &[(f64, i64)]) -> Sale {
    let mut ends: Vec<(f64, bool)> = run
        .fired
        .shots
        .iter()
        .map(|shot| {
            let at = (f64::from(shot.due_us) + f64::from(shot.latency_us)) / 1e6;
            (at, matches!(shot.end, End::Ordered(_)))
        })
        .collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let step = (ends.len() / 200).max(1);
    let (mut sale, mut ordered, mut refused) = (Sale { stock, ..Sale::default() }, 0.0, 0.0);
    for (at, (time, is_order)) in ends.iter().enumerate() {
        if *is_order {
            ordered += 1.0
        } else {
            refused += 1.0
        }
        if at % step == 0 || at + 1 == ends.len() {
            sale.orders.push((*time, ordered));
            sale.refused.push((*time, refused));
        }
    }
    // The watch began a moment earlier, with connecting: it is laid where the stock begins to fall.
    let end = ends.last().map_or(0.0, |(time, _)| *time);
    let before = left.iter().take_while(|(_, count)| *count == i64::from(stock)).last();
    let zero = before.map_or(0.0, |(time, _)| *time);
    let seen = left.iter().map(|(time, count)| (time - zero, *count as f64));
    sale.left = seen.filter(|(time, _)| (0.0..=end).contains(time)).collect();
    sale
}
