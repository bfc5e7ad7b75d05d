//! Interleaved rounds: every side of every ratio once, one after the other, then again (A B C A B C …), so that other
//! load on the machine affects all of them alike.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::ensure;
use workload::ladder::Strategy;
use workload::live::Progress;
use workload::{Access, Error};

use crate::bench::against::Node;
use crate::bench::command::is_installed;
use crate::bench::micro;
use crate::bench::monitoring;
use crate::bench::ratios::{self, Ratio, figure};
use crate::bench::runs::{Plan, Run, Runner, Stock};
use crate::bench::sales;
use crate::bench::servers::{self, Proxies, Servers};

/// Connections of the open loop at overload.
const OVERLOAD_CLIENTS: usize = 1024;
/// Attempts at overload, as a multiple of the peak's orders.
const OVERLOAD: f64 = 3.0;
/// Connections of the open loop below the peak, and its rate as a share of the peak.
const BELOW_PEAK_CLIENTS: usize = 1024;
const BELOW_PEAK: f64 = 0.7;
/// Names of runs that the report compares.
pub const ORDERS_DIRECT: &str = "group-commit, two instances";
/// See [`ORDERS_DIRECT`].
pub const BARE_DIRECT: &str = "bare route, two processes";
/// See [`ORDERS_DIRECT`].
pub const BARE_PROXIED: &str = "bare route, nginx before two";
/// Longest run of the warm-up.
const WARM_UP: Duration = Duration::from_millis(400);

/// What to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Rounds.
    pub rounds: usize,
    /// Duration of each run.
    pub duration: Duration,
    /// See [`ratios::number`]; empty for all.
    pub only: BTreeSet<String>,
}

impl Settings {
    fn wants(&self, numbers: &[&str]) -> bool {
        self.only.is_empty() || numbers.iter().any(|number| self.only.contains(*number))
    }
}

/// The measured values of all rounds.
pub struct Results {
    /// The ratios.
    pub ratios: Vec<Ratio>,
    /// Rates measured without HTTP: name, and per second in each round.
    pub figures: Vec<(&'static str, Vec<f64>)>,
    /// The same ratios of other nodes: the node's address, and its values by number.
    pub against: BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>,
}

impl Results {
    fn new() -> Self {
        Self { ratios: ratios::all(), figures: Vec::new(), against: BTreeMap::new() }
    }

    fn ratio(&mut self, number: &str) -> Option<&mut Ratio> {
        self.ratios.iter_mut().find(|ratio| ratio.number == number)
    }

    fn put(&mut self, number: &str, value: f64) {
        if let Some(ratio) = self.ratio(number) {
            // A division by zero is not a success: NaN is below every floor.
            ratio.values.push(if value.is_finite() { value } else { f64::NAN });
        }
    }

    fn put_of(&mut self, node: &Node, number: &'static str, value: f64) {
        // Without a known process there is no processor time.
        if value.is_finite() && value > 0.0 {
            let of = self.against.entry(node.server.target.to_string()).or_default();
            of.entry(number).or_default().push(value);
        }
    }

    fn note(&mut self, number: &str, text: &str) {
        if let Some(ratio) = self.ratio(number) {
            ratio.note = Some(text.to_owned());
        }
    }

    fn figure(&mut self, name: &'static str, value: f64) -> f64 {
        match self.figures.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => self.figures.push((name, vec![value])),
        }
        say(&format!("    {name}: {}/s", figure(value)));
        value
    }
}

fn say(text: &str) {
    Progress::Stderr.say(text);
}

/// Measures all rounds.
///
/// # Errors
/// A server fails, or a run fails the audit.
pub async fn measure(
    runner: &mut Runner<'_>,
    servers: &Servers,
    against: &[Node],
    settings: &Settings,
) -> anyhow::Result<Results> {
    let mut results = Results::new();
    let has_stream = knows_stream(runner).await?;
    let has_redis_benchmark = is_installed("redis-benchmark");
    if !has_redis_benchmark {
        for number in ["7", "9b", "13"] {
            results.note(number, "redis-benchmark is not installed");
        }
    }
    if !has_stream {
        for number in ["13", "15"] {
            results.note(number, "the service does not know the strategy `stream`");
        }
    }
    if servers.nginx.is_none() {
        for number in ["P4", "12"] {
            results.note(number, "nginx is not installed");
        }
    }
    // Fills connection pools, statement caches and the block of ids.
    say("warming up (not counted)");
    let warm_up = Settings { duration: settings.duration.min(WARM_UP), ..settings.clone() };
    let mut round = Round {
        runner,
        servers,
        against,
        settings: &warm_up,
        number: 0,
        has_stream,
        has_redis_benchmark,
        results: Results::new(),
    };
    round.measure().await?;
    round.runner.runs.clear();
    (round.settings, round.results) = (settings, results);
    for number in 1..=settings.rounds {
        say(&format!("round {number} of {}", settings.rounds));
        round.number = number;
        round.measure().await?;
    }
    Ok(round.results)
}

/// A run of each safe strategy that no ratio is about, for the table of runs.
///
/// # Errors
/// As of [`measure`].
pub async fn other_strategies(
    runner: &mut Runner<'_>,
    servers: &Servers,
    settings: &Settings,
) -> anyhow::Result<()> {
    if !settings.only.is_empty() {
        return Ok(());
    }
    say("the other strategies");
    for strategy in Strategy::ALL.into_iter().filter(|strategy| !strategy.is_unsafe()) {
        let is_known = runner.runs.iter().any(|run| run.name == strategy.name());
        // A service of another version may not have it.
        if !is_known && runner.publish(strategy.name(), 1).await.is_ok() {
            let plan = Plan::new(strategy.name(), &servers.one, settings.duration);
            show(&runner.run(&plan, 0).await?);
        }
    }
    Ok(())
}

/// Whether a sale can be published on `stream`.
async fn knows_stream(runner: &Runner<'_>) -> anyhow::Result<bool> {
    match runner.publish("stream", 1).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.downcast_ref(), Some(Error::Refused { status: 400, .. })) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// One round.
struct Round<'a, 'r> {
    runner: &'a mut Runner<'r>,
    servers: &'a Servers,
    against: &'a [Node],
    settings: &'a Settings,
    /// From 1; 0 is the warm-up.
    number: usize,
    has_stream: bool,
    has_redis_benchmark: bool,
    results: Results,
}

impl<'a> Round<'a, '_> {
    async fn measure(&mut self) -> anyhow::Result<()> {
        let settings = self.settings;
        if settings.wants(&["P2", "P3", "1", "2", "3", "4", "6", "15", "16"]) {
            self.strategies().await?;
        }
        if settings.wants(&["P1", "5"]) {
            self.sold_out().await?;
        }
        if let Some(nginx) = self.servers.nginx.as_ref().filter(|_| settings.wants(&["P4", "12"])) {
            self.proxy(nginx).await?;
        }
        if settings.wants(&["11"]) {
            self.overload().await?;
        }
        let mut admissions = None;
        if self.has_stream && settings.wants(&["13"]) {
            let (name, clients) = ("stream, 64 clients", micro::CLIENTS);
            let plan = Plan { name, clients, ..self.plan("stream") };
            admissions = Some(self.run(plan).await?.orders_per_s);
        }
        if settings.wants(&["14"]) {
            self.monitoring().await?;
        }
        if settings.wants(&["9"]) {
            self.reads().await?;
        }
        if settings.wants(&["17"]) {
            let pings = micro::hand_over(&self.runner.environment.access).await?;
            self.results.put("17", pings);
        }
        if self.has_redis_benchmark {
            self.without_http(admissions).await?;
        }
        Ok(())
    }

    /// 256 clients on a sale by `strategy` on the first instance.
    fn plan(&self, strategy: &'static str) -> Plan<'a> {
        Plan::new(strategy, &self.servers.one, self.settings.duration)
    }

    fn bare_route(&self, name: &'static str, prefix: &'static str) -> Plan<'a> {
        let servers = vec![&self.servers.bare];
        let stock = Stock::NoSale;
        Plan { name, servers, prefix, stock, repeat: true, ..self.plan("group-commit") }
    }

    async fn run(&mut self, plan: Plan<'_>) -> anyhow::Result<Run> {
        let run = self.runner.run(&plan, self.number).await?;
        show(&run);
        Ok(run)
    }

    /// Two runs of each of two plans, in turn.
    async fn runs_in_turn(&mut self, plans: [Plan<'_>; 2]) -> anyhow::Result<[Vec<Run>; 2]> {
        let mut runs = [vec![], vec![]];
        for second in in_turn(self.number).map(usize::from) {
            runs[second].push(self.run(plans[second].clone()).await?);
        }
        Ok(runs)
    }

    async fn strategies(&mut self) -> anyhow::Result<()> {
        let orders = self.plan("group-commit");
        let group = self.run(orders.clone()).await?;
        let others = self.others(0, Stock::PerBuyer).await?;
        let bare = self.run(self.bare_route("bare route, an order's reply", "")).await?;
        let processor_time = |run: &Run| {
            let us = [run.cpu.service_us, run.cpu.servers_us()];
            // Of a node whose process is not known it is not known either.
            us.map(|us| if run.cpu.service_us > 0.0 { us / bare.cpu.service_us } else { f64::NAN })
        };
        let [service, servers] = processor_time(&group);
        self.results.put("P2", service);
        // The bare route uses no other server: what those do meanwhile is not its cost.
        self.results.put("P3", servers);
        self.results.put("6", group.orders_per_s / bare.answers_per_s);
        for (node, run) in self.against.iter().zip(&others) {
            let [service, servers] = processor_time(run);
            self.results.put_of(node, "P2", service);
            self.results.put_of(node, "P3", servers);
            self.results.put_of(node, "6", run.orders_per_s / bare.answers_per_s);
        }
        if self.settings.wants(&["1", "2", "3"]) {
            let locked = self.run(self.plan("reentrant-lock")).await?;
            let (name, servers) = ("one transaction per order", vec![&self.servers.transaction]);
            let single = self.run(Plan { name, servers, ..self.plan("reentrant-lock") }).await?;
            self.results.put("1", group.orders_per_s / locked.orders_per_s);
            self.results.put("2", group.orders_per_s / single.orders_per_s);
            self.results.put("3", locked.orders_per_s / single.orders_per_s);
            for (node, run) in self.against.iter().zip(&others) {
                self.results.put_of(node, "1", run.orders_per_s / locked.orders_per_s);
                self.results.put_of(node, "2", run.orders_per_s / single.orders_per_s);
            }
        }
        if self.settings.wants(&["4"]) {
            let few = Plan { name: "group-commit, 16", clients: 16, ..orders.clone() };
            let few = self.run(few).await?;
            let many = Plan { name: "group-commit, 1,024", clients: 1024, ..orders.clone() };
            let many = self.run(many).await?;
            self.results.put("4a", many.orders_per_s / few.orders_per_s);
            // Little's law: clients = rate × time in the system.
            let little_ms = 1024.0 / many.orders_per_s * 1e3;
            self.results.put("4b", many.latency.p99_ms / little_ms);
        }
        if self.has_stream && self.settings.wants(&["15"]) {
            let [group, stream] = self.runs_in_turn([orders, self.plan("stream")]).await?;
            self.results.put("15", orders_per_s(&stream) / orders_per_s(&group));
        }
        if self.settings.wants(&["16"]) {
            self.below_peak(group.orders_per_s).await?;
        }
        Ok(())
    }

    /// Latency below the peak, from when each attempt was due, beside the time of a commit.
    async fn below_peak(&mut self, peak: f64) -> anyhow::Result<()> {
        let commit = sales::commit_time(&self.runner.environment.pool).await?;
        let (name, rate) = ("group-commit, open loop at 70 %", Some(BELOW_PEAK * peak));
        let plan = Plan { name, clients: BELOW_PEAK_CLIENTS, rate, ..self.plan("group-commit") };
        let run = self.run(plan).await?;
        self.results.put("16", run.latency.p99_ms / (commit.as_secs_f64() * 1e3));
        Ok(())
    }

    async fn sold_out(&mut self) -> anyhow::Result<()> {
        let (name, stock) = ("sold out", Stock::SoldOut);
        let plan = Plan { name, stock, repeat: true, ..self.plan("group-commit") };
        let sold_out = self.run(plan).await?;
        let others = self.others(1, Stock::SoldOut).await?;
        let plan = self.bare_route("bare route, the sold-out reply", "/sold-out");
        let bare = self.run(plan).await?;
        self.results.put("5", sold_out.answers_per_s / bare.answers_per_s);
        self.results.put("P1", sold_out.cpu.service_us / bare.cpu.service_us);
        for (node, run) in self.against.iter().zip(others) {
            self.results.put_of(node, "5", run.answers_per_s / bare.answers_per_s);
            self.results.put_of(node, "P1", run.cpu.service_us / bare.cpu.service_us);
        }
        Ok(())
    }

    /// The nodes of others, each with a sale of its own.
    async fn others(&mut self, name: usize, stock: Stock) -> anyhow::Result<Vec<Run>> {
        let mut runs = Vec::new();
        for Node { server, strategy, prefix, runs: names } in self.against {
            let (name, repeat) = (names[name], stock == Stock::SoldOut);
            let servers = vec![server];
            let plan = Plan { name, servers, prefix, stock, repeat, ..self.plan(strategy) };
            runs.push(self.run(plan).await?);
        }
        Ok(runs)
    }

    async fn proxy(&mut self, nginx: &Proxies) -> anyhow::Result<()> {
        let two = vec![&self.servers.one, &self.servers.two];
        let plan = |name, servers| Plan { name, servers, ..self.plan("group-commit") };
        let direct = plan(ORDERS_DIRECT, two);
        let proxied = plan("group-commit, nginx before two", vec![&nginx.service]);
        let [direct, proxied] = self.runs_in_turn([direct, proxied]).await?;
        self.results.put("12", orders_per_s(&proxied) / orders_per_s(&direct));

        let two = vec![&self.servers.bare, &self.servers.bare_two];
        let plan = |name, servers| Plan { name, servers, ..self.bare_route("", "") };
        let bare_direct = plan(BARE_DIRECT, two);
        let bare_proxied = plan(BARE_PROXIED, vec![&nginx.bare]);
        let [bare_direct, bare_proxied] = self.runs_in_turn([bare_direct, bare_proxied]).await?;
        let added = |proxied: &[Run], direct: &[Run]| servers_us(proxied) - servers_us(direct);
        self.results.put("P4", added(&proxied, &direct) / added(&bare_proxied, &bare_direct));
        Ok(())
    }

    async fn overload(&mut self) -> anyhow::Result<()> {
        let servers = vec![&self.servers.strict];
        let plan = Plan { name: "peak", servers, ..self.plan("group-commit") };
        let first = self.run(plan.clone()).await?;
        let rate = Some(OVERLOAD * first.orders_per_s);
        let over = Plan { name: "3× overload", clients: OVERLOAD_CLIENTS, rate, ..plan.clone() };
        let over = [self.run(over.clone()).await?, self.run(over).await?];
        let peak = [first, self.run(plan).await?];
        let ratio = |figure: fn(&Run) -> f64| {
            over.iter().map(figure).sum::<f64>() / peak.iter().map(figure).sum::<f64>()
        };
        self.results.put("11a", ratio(|run| run.orders_per_s));
        self.results.put("11b", ratio(|run| run.latency.p99_ms));
        Ok(())
    }

    async fn monitoring(&mut self) -> anyhow::Result<()> {
        let (mut with, mut without) = (0.0, 0.0);
        for monitored in in_turn(self.number) {
            if monitored {
                let plan = Plan { name: "group-commit, monitored", ..self.plan("group-commit") };
                let target = &self.servers.one.target;
                with += monitoring::monitored(target, self.run(plan)).await?.orders_per_s;
            } else {
                let (name, servers) = ("group-commit, not monitored", vec![&self.servers.quiet]);
                let plan = Plan { name, servers, ..self.plan("group-commit") };
                without += self.run(plan).await?.orders_per_s;
            }
        }
        self.results.put("14", with / without);
        Ok(())
    }

    /// Hits of one shop, in the process's memory and in Redis.
    async fn reads(&mut self) -> anyhow::Result<()> {
        let (environment, duration) = (self.runner.environment, self.settings.duration);
        let shop = environment.shop().await?;
        // All reads are of one shop, which would be limited.
        let unlimited = ["--per-shop-per-second", "0"];
        let memory = servers::instance(environment, "memory-hits", &unlimited).await?;
        let plan = |name, servers| {
            let (shop, clients, stock) = (Some(shop), micro::CLIENTS, Stock::NoSale);
            let plan = Plan::new("group-commit", servers, duration);
            Plan { name, shop, clients, stock, repeat: true, ..plan }
        };
        let bare = self.run(plan("bare route, a shop", &self.servers.bare)).await?;
        let hits = self.run(plan("a shop from memory", &memory)).await?;
        ensure!(hits.outcomes.keys().eq(["HTTP_200"]), "no shop: {:?}", hits.outcomes);
        self.results.put("9a", hits.answers_per_s / bare.answers_per_s);
        if self.has_redis_benchmark {
            // This read strategy keeps nothing in memory.
            let flags = [&unlimited[..], &["--shop-cache", "mutex"]].concat();
            let redis = servers::instance(environment, "redis-hits", &flags).await?;
            let hits = self.run(plan("a shop from Redis", &redis)).await?;
            ensure!(hits.outcomes.keys().eq(["HTTP_200"]), "no shop: {:?}", hits.outcomes);
            let raw = micro::raw_gets(&environment.access, shop, duration).await?;
            let raw = self.results.figure("GET by redis-benchmark", raw);
            self.results.put("9b", hits.answers_per_s / raw);
        }
        Ok(())
    }

    async fn without_http(&mut self, admissions: Option<f64>) -> anyhow::Result<()> {
        let (access, duration): (&Access, _) =
            (&self.runner.environment.access, self.settings.duration);
        let results = &mut self.results;
        if let Some(admissions) = admissions {
            let raw = micro::raw_admissions(access, duration).await?;
            let raw = results.figure("stream's script by redis-benchmark", raw);
            results.put("13", admissions / raw);
        }
        if self.settings.wants(&["7"]) {
            let pairs = micro::lock_pairs(access, duration).await?;
            let pairs = results.figure("lock + unlock pairs", pairs);
            let raw = micro::raw_lock_pairs(access, duration).await?;
            let raw = results.figure("the same scripts by redis-benchmark", raw);
            results.put("7", pairs / raw);
        }
        Ok(())
    }
}

/// Orders per second, on average.
fn orders_per_s(runs: &[Run]) -> f64 {
    runs.iter().map(|run| run.orders_per_s).sum::<f64>() / runs.len() as f64
}

/// Processor time of all servers for one answer, on average, in µs.
fn servers_us(runs: &[Run]) -> f64 {
    runs.iter().map(|run| run.cpu.servers_us()).sum::<f64>() / runs.len() as f64
}

/// Which of four runs measures the second of two things: A B B A in one round, B A A B in the next. A drift of the machine
/// affects both alike.
fn in_turn(round: usize) -> [bool; 4] {
    [false, true, true, false].map(|second| second == round.is_multiple_of(2))
}

/// Prints one line on a run, with the processor time of service, database and Redis for one answer.
fn show(run: &Run) {
    let (is_orders, latency) = (run.orders_per_s * 2.0 > run.answers_per_s, run.latency);
    let rate = if is_orders { run.orders_per_s } else { run.answers_per_s };
    let others: Vec<_> = run
        .outcomes
        .iter()
        .filter(|(name, _)| is_orders && *name != "ORDERED")
        .map(|(name, count)| format!(", {name} {count}"))
        .collect();
    say(&format!(
        "    {}, {} clients: {} {}/s, p50 {} ms, p99 {} ms, CPU {} + {} + {} µs{}",
        run.name,
        run.clients,
        figure(rate),
        if is_orders { "orders" } else { "replies" },
        figure(latency.p50_ms),
        figure(latency.p99_ms),
        figure(run.cpu.service_us),
        figure(run.cpu.database_us),
        figure(run.cpu.redis_us),
        others.concat(),
    ));
}
