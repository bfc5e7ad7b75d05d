//! How cost grows (`./dev bench --scale`): processor time of an order by `group-commit` and of a refusal with more instances,
//! open sales, orders and sessions, each size beside the smallest, in interleaved rounds. Also memory, and the figures with
//! which the capacity plan calculates and with which it is compared.
//!
//! Things grow one after the other, so that only a few instances run at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use workload::http::{Call, Connection};
use workload::markdown::count;
use workload::{descriptors, markdown};

use crate::bench::environment::{BUYERS, Environment, PLAIN};
use crate::bench::growth::{self, Size};
use crate::bench::micro;
use crate::bench::options::{BenchArgs, say};
use crate::bench::plan::{Plan, Stock};
use crate::bench::run::*;
use crate::bench::sales;
use crate::bench::servers::{self, Server};
use crate::plan::figures::{Cost, Figures, MeasuredSale};
use crate::plan::tables;
use crate::spread::median;

/// Clients of the closed loop, spread over the instances.
const CLIENTS: usize = 512;

/// Time limit of a sale that ends when all its buyers have had their turn.
const LONGEST_SALE: Duration = Duration::from_secs(60);

/// The smaller number of sessions; where sessions grow, so many attempts are made in a run, each by another buyer.
const FEW_SESSIONS: usize = 10_000;

/// What was measured: the figures of the capacity plan, and tables of docs/BENCHMARKS.md.
struct Measured {
    figures: Figures,
    growth: String,
    memory: String,
}

/// Measures everything, and prints the tables.
pub async fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let Measured {
        figures,
        growth,
        memory,
    } = measure(args).await?;
    println!("{growth}\n{memory}");
    for (_, _, text) in tables::all(&figures)? {
        println!("{text}");
    }
    if args.write {
        let text = serde_json::to_string_pretty(&figures)? + "\n";
        std::fs::write(markdown::path("scale.json"), text)?;
        tables::write(&figures)?;
        let benchmarks = markdown::path("BENCHMARKS.md");
        markdown::write(&benchmarks, "scale-growth", &growth)?;
        markdown::write(&benchmarks, "scale-memory", &memory)?;
        println!(
            "Written: docs/scale.json, and the tables of docs/BENCHMARKS.md and docs/SCALING.md"
        );
    }
    Ok(())
}

async fn measure(args: &BenchArgs) -> anyhow::Result<Measured> {
    let began = Instant::now();
    let main = Environment::open(args, PLAIN, BUYERS).await?;
    say("one instance");
    let (costs, sale) = one_instance(&main).await?;
    let commit_ms = micro::commits(&main.pool).await?.p50_ms;
    say("memory");
    let connection_bytes = bytes_per_connection(&main).await?;

    let of_instances = {
        let servers = instances(&main, "instances", 8).await?;
        let sizes = [1_usize, 2, 4, 8]
            .map(|count| (count as u64, plan_for_sales(&main, &servers[..count], 1)));
        grow("instances", &sizes).await?
    };
    let of_sales = {
        // An instance for each size: one that has had many sales cannot be measured as one that has had a single sale.
        let servers = instances(&main, "sales", 3).await?;
        for server in &servers {
            sell_to_all(&main, server).await?;
        }
        let sizes = [1, 100, 10_000].into_iter().zip(servers.chunks(1));
        let sizes = sizes.map(|(count, server)| (count, plan_for_sales(&main, server, count)));
        grow("open sales", &sizes.collect::<Vec<_>>()).await?
    };
    let [large_count, huge_count] = if args.quick {
        [100_000, 1_000_000]
    } else {
        [1_000_000, 10_000_000]
    };
    let large = with_orders(args, large_count).await?;
    let huge = with_orders(args, huge_count).await?;
    let sizes = [(0, &main), (large_count, &large), (huge_count, &huge)];
    let of_orders = grow_databases("orders in the table", &sizes, None).await?;
    let sessions: usize = if args.quick { 100_000 } else { 1_000_000 };
    let few_sessions = Environment::open(args, PLAIN, FEW_SESSIONS).await?;
    let many_sessions = Environment::open(args, PLAIN, sessions).await?;
    let sizes = [
        (FEW_SESSIONS as u64, &few_sessions),
        (sessions as u64, &many_sessions),
    ];
    let of_sessions = grow_databases("sessions", &sizes, Some((FEW_SESSIONS, 0))).await?;
    // Of many sessions others come each time, which the instance has to look up.
    let [known, looked_up] = [0, 1].map(|size| median_cost(&of_sessions[size].1[1]));

    let session_bytes = many_sessions.session_bytes;
    let order_bytes = sales::bytes_per_order(&huge.pool).await?;
    Ok(Measured {
        figures: Figures {
            conditions: main.conditions(began.elapsed()).await?,
            costs,
            session: looked_up.beyond(&known),
            commit_ms,
            session_bytes,
            sale,
        },
        growth: growth::table(&[of_instances, of_sales, of_orders, of_sessions]),
        memory: growth::memory_table(session_bytes, connection_bytes, order_bytes),
    })
}

/// Starts so many instances, with logs of this name.
async fn instances(
    environment: &Environment,
    name: &str,
    count: usize,
) -> anyhow::Result<Vec<Server>> {
    let mut servers = Vec::new();
    for number in 0..count {
        let name = format!("scale-{name}-{number}");
        servers.push(servers::instance(environment, &name, &[]).await?);
    }
    Ok(servers)
}

/// A sale to all buyers, after which the instance knows their sessions. In one sale that is measured only some get their turn;
/// in many sales the same buyers come again and again.
async fn sell_to_all(environment: &Environment, server: &Server) -> anyhow::Result<()> {
    let plan = Plan {
        clients: CLIENTS,
        duration: LONGEST_SALE,
        ..Plan::new("group-commit", environment, server)
    };
    plan.run().await?;
    Ok(())
}

/// Servers whose table holds orders already.
async fn with_orders(args: &BenchArgs, orders: u64) -> anyhow::Result<Environment> {
    let mut environment = Environment::open(args, PLAIN, BUYERS).await?;
    say(&format!("making {orders} orders"));
    sales::past_orders(&environment.pool, orders).await?;
    environment.keeps_orders = true;
    Ok(environment)
}

/// Measures sizes that have databases of their own, with an instance on each.
async fn grow_databases(
    what: &str,
    sizes: &[(u64, &Environment)],
    part: Option<(usize, usize)>,
) -> anyhow::Result<Vec<Size>> {
    let mut servers = Vec::new();
    for (count, environment) in sizes {
        servers.push(instances(environment, &count.to_string(), 1).await?);
    }
    let plans = sizes
        .iter()
        .zip(&servers)
        .map(|((count, environment), servers)| {
            (
                *count,
                Plan {
                    part,
                    ..plan_for_sales(environment, servers, 1)
                },
            )
        });
    grow(what, &plans.collect::<Vec<_>>()).await
}

/// A plan for purchases from `servers` in so many sales that are open at once.
fn plan_for_sales<'a>(environment: &'a Environment, servers: &'a [Server], sales: u64) -> Plan<'a> {
    Plan {
        servers: servers.iter().collect(),
        sales: Some(sales),
        clients: CLIENTS,
        ..Plan::new("group-commit", environment, &servers[0])
    }
}

/// A run of `plan` on new sales. If only a part of the buyers comes, it is another part each time.
async fn run_on_new_sales(plan: &Plan<'_>, round: usize, is_order: bool) -> anyhow::Result<Run> {
    let part = plan
        .part
        .map(|(count, _)| (count, 2 * round + usize::from(is_order)));
    if part.is_some() {
        // Longer than the instance trusts a session without asking Redis again.
        tokio::time::sleep(Duration::from_millis(900)).await;
    }
    let plan = Plan {
        name: if is_order { "order" } else { "sold out" },
        stock: if is_order {
            Stock::PerBuyer
        } else {
            Stock::SoldOut
        },
        part,
        ..plan.clone()
    };
    plan.run().await
}

/// Measures `sizes` in interleaved rounds: each is a number of `what`, with the plan of its runs.
async fn grow(what: &str, sizes: &[(u64, Plan<'_>)]) -> anyhow::Result<Vec<Size>> {
    say(what);
    let kinds: Vec<_> = sizes
        .iter()
        .flat_map(|(_, plan)| [(plan, true), (plan, false)])
        .collect();
    let args = &sizes[0].1.environment.args;
    let mut runs = args
        .interleaved(
            &kinds,
            async |round, (plan, is_order): &(&Plan<'_>, bool)| {
                run_on_new_sales(plan, round, *is_order).await
            },
        )
        .await?
        .into_iter();
    let mut measured = Vec::new();
    for (size, _) in sizes {
        let [orders, refusals] = [runs.next(), runs.next()].map(Option::unwrap_or_default);
        measured.push((format!("{} {what}", count(*size)), [orders, refusals]));
    }
    Ok(measured)
}

/// Memory of an instance for each idle connection, without the kernel's buffers, after runs that fill its pools.
async fn bytes_per_connection(environment: &Environment) -> anyhow::Result<f64> {
    /// Connections opened; as many descriptors are needed here and in the instance.
    const CONNECTIONS: usize = 3_000;
    descriptors::reserve(CONNECTIONS)?;
    let servers = instances(environment, "memory", 1).await?;
    let server = &servers[0];
    let plan = plan_for_sales(environment, &servers, 1);
    for is_order in [true, false] {
        run_on_new_sales(&plan, 0, is_order).await?;
    }
    let [before, _] = server.memory()?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::new(server.target.clone(), Duration::from_secs(5));
        // A request, so that the instance has allocated all that it keeps for a connection.
        connection.send(&Call::get("/health/live")).await?;
        connections.push(connection);
    }
    let [connected, _] = server.memory()?;
    let bytes = (connected as f64 - before as f64).max(0.0);
    Ok(bytes / CONNECTIONS as f64)
}

/// What an answer costs on one instance, by the names that the capacity plan uses; and a whole sale in the same rounds, with
/// which the capacity plan is compared.
async fn one_instance(
    environment: &Environment,
) -> anyhow::Result<(BTreeMap<String, Cost>, MeasuredSale)> {
    let server = servers::instance(environment, "scale-one", &[]).await?;
    let buyers = environment.buyers.len() as u64;
    let stock = buyers * 30 / 100;
    let plan_by = |strategy| Plan {
        clients: CLIENTS,
        ..Plan::new(strategy, environment, &server)
    };
    let group_commit = plan_by("group-commit");
    let limited = Stock::Limited(u32::try_from(stock)?);
    let plans = [
        group_commit.clone(),
        plan_by("reentrant-lock"),
        plan_by("stream"),
        Plan {
            name: "sold-out",
            stock: Stock::SoldOut,
            ..group_commit.clone()
        },
        Plan {
            name: "a whole sale",
            stock: limited,
            duration: LONGEST_SALE,
            ..group_commit
        },
    ];
    let mut measured = environment
        .args
        .interleaved(&plans, async |_: usize, plan: &Plan<'_>| plan.run().await)
        .await?;
    let whole = measured.pop().unwrap_or_default();
    let all_sold = whole.iter().all(|run| run.ends[0].count == stock);
    ensure!(all_sold, "a stock of {stock} was not sold");
    let costs = plans
        .iter()
        .zip(&measured)
        .map(|(plan, runs)| (plan.name.to_owned(), median_cost(runs)));
    let median_of = |value: fn(&Run) -> f64| median(whole.iter().map(value));
    let sale = MeasuredSale {
        buyers,
        stock,
        cores: median_of(|run| {
            let [_, answers] = &run.ends;
            let used_us = (run.cpu.servers_us() + run.cpu.client_us) * answers.count as f64;
            used_us / 1e3 / answers.max_ms
        }),
        sold_out_s: median_of(|run| run.ends[0].max_ms / 1e3),
        answered_s: median_of(|run| run.ends[1].max_ms / 1e3),
        p99_s: median_of(|run| run.ends[1].p99_ms / 1e3),
    };
    Ok((costs.collect(), sale))
}
