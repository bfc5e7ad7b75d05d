//! The rounds: every side of every ratio once, one after the other, and then again (A B C A B C …), so
//! that whatever else the machine does meanwhile falls on all of them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail};
use workload::live::Progress;
use workload::{Access, Error};

use crate::inner;
use crate::ratios::{self, Ratio, figure};
use crate::runs::{Plan, Run, Runner, Stock};
use crate::stack::{self, Server};
use crate::watch;

/// Purchases that the overloaded instance takes in hand at once; beyond it, it refuses. As many as there
/// are clients at the peak: with more in hand, everybody waits longer and nobody gains.
const OVERLOAD_PURCHASES: &str = "256";
/// Connections of the open loop at overload.
const OVERLOAD_CLIENTS: usize = 1024;
/// How much more than the peak is asked for.
const OVERLOAD: f64 = 3.0;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Rounds.
    pub rounds: usize,
    /// How long each run lasts.
    pub lasting: Duration,
    /// Numbers of ratios (without the letter); empty for all.
    pub only: BTreeSet<String>,
}

impl Settings {
    fn wants(&self, numbers: &[&str]) -> bool {
        self.only.is_empty() || numbers.iter().any(|number| self.only.contains(*number))
    }
}

/// The processes that are asked.
#[derive(Debug)]
pub struct Servers {
    /// An instance of the service.
    pub one: Server,
    /// A second one, on the same servers.
    pub two: Server,
    /// One that refuses early; see [`OVERLOAD_PURCHASES`].
    pub strict: Server,
    /// One that logs nothing.
    pub quiet: Server,
    /// The tuned one-transaction-per-order.
    pub plain: Server,
    /// The bare route.
    pub bare: Server,
    /// nginx before `one` and `two`; `None` where it is not installed.
    pub nginx: Option<Server>,
}

impl Servers {
    /// Starts them all.
    pub async fn start(runner: &Runner<'_>, pool: u32) -> anyhow::Result<Self> {
        let (ground, buyers) = (runner.ground, runner.buyers);
        let one = stack::instance(ground, "one", &[]).await?;
        let two = stack::instance(ground, "two", &[]).await?;
        let strict = ["--max-purchases", OVERLOAD_PURCHASES];
        let nginx = match stack::is_installed("nginx") {
            true => Some(stack::nginx(ground, &one, &two).await?),
            false => None,
        };
        Ok(Self {
            strict: stack::instance(ground, "strict", &strict).await?,
            quiet: stack::instance(ground, "quiet", &["--log", "off"]).await?,
            plain: stack::plain(ground, buyers, pool).await?,
            bare: stack::bare(ground).await?,
            one,
            two,
            nginx,
        })
    }
}

/// Where measured values go.
pub struct Sheet {
    /// The ratios.
    pub ratios: Vec<Ratio>,
    /// Figures of the ratios without HTTP: name and what was measured each round, a second.
    pub figures: Vec<(&'static str, Vec<f64>)>,
}

impl Sheet {
    fn put(&mut self, number: &str, value: f64) {
        if let Some(ratio) = self.ratios.iter_mut().find(|ratio| ratio.number == number) {
            // Something divided by nothing is no success: NaN stands below every floor.
            ratio.values.push(if value.is_finite() { value } else { f64::NAN });
        }
    }

    fn note(&mut self, number: &str, text: &str) {
        if let Some(ratio) = self.ratios.iter_mut().find(|ratio| ratio.number == number) {
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

/// Measures all rounds. Stops at the first run that breaks a law.
pub async fn measure(
    runner: &mut Runner<'_>,
    servers: &Servers,
    settings: &Settings,
) -> anyhow::Result<Sheet> {
    let mut sheet = Sheet { ratios: ratios::all(), figures: Vec::new() };
    let has_stream = knows_stream(runner).await?;
    if !has_stream {
        sheet.note("13", "the service does not know the strategy `stream`");
    }
    if servers.nginx.is_none() {
        sheet.note("12", "nginx is not installed");
    }
    // Pools, statement caches and the id counter are filled by a round that is not counted.
    let warm_up =
        Settings { lasting: settings.lasting.min(Duration::from_millis(400)), ..settings.clone() };
    let mut unused = Sheet { ratios: ratios::all(), figures: Vec::new() };
    say("warming up (not counted)");
    round(runner, servers, &warm_up, 0, has_stream, &mut unused).await?;
    runner.runs.clear();
    for number in 1..=settings.rounds {
        say(&format!("round {number} of {}", settings.rounds));
        round(runner, servers, settings, number, has_stream, &mut sheet).await?;
    }
    Ok(sheet)
}

async fn round(
    runner: &mut Runner<'_>,
    servers: &Servers,
    settings: &Settings,
    number: usize,
    has_stream: bool,
    sheet: &mut Sheet,
) -> anyhow::Result<()> {
    let Servers { one, two, strict, quiet, plain, bare, nginx } = servers;
    let orders = Plan {
        name: "group-commit",
        strategy: "group-commit",
        servers: vec![one],
        prefix: "",
        stock: Stock::ForAll,
        clients: 256,
        rate: None,
        again: false,
        lasting: settings.lasting,
    };
    let route = |name, prefix| Plan {
        name,
        servers: vec![bare],
        prefix,
        stock: Stock::NoSale,
        again: true,
        ..orders.clone()
    };
    let mut go = async |plan: Plan<'_>| -> anyhow::Result<Run> {
        let run = runner.run(&plan, number).await.with_context(|| plan.name.to_owned())?;
        show(&run);
        if run.violations.is_empty() {
            return Ok(run);
        }
        bail!("{} broke a law: {}", run.name, run.violations.join(", "))
    };
    if settings.wants(&["1", "2", "3", "4", "6"]) {
        let group = go(orders.clone()).await?;
        let locked = Plan { name: "reentrant-lock", strategy: "reentrant-lock", ..orders.clone() };
        let locked = go(locked).await?;
        let single = Plan {
            name: "one transaction per order",
            strategy: "reentrant-lock",
            servers: vec![plain],
            ..orders.clone()
        };
        let single = go(single).await?;
        let bare = go(route("bare route, an order's reply", "")).await?;
        let few = go(Plan { name: "group-commit, 16", clients: 16, ..orders.clone() }).await?;
        let many =
            go(Plan { name: "group-commit, 1,024", clients: 1024, ..orders.clone() }).await?;
        sheet.put("1", group.orders_per_s / locked.orders_per_s);
        sheet.put("2", group.orders_per_s / single.orders_per_s);
        sheet.put("3", locked.orders_per_s / single.orders_per_s);
        sheet.put("4a", many.orders_per_s / few.orders_per_s);
        // Little: clients = rate × time in the system.
        let little_ms = 1024.0 / many.orders_per_s * 1e3;
        sheet.put("4b", many.latency.p99_ms / little_ms);
        sheet.put("6", group.orders_per_s / bare.answers_per_s);
    }
    if settings.wants(&["5"]) {
        let late = Plan { name: "sold out", stock: Stock::Gone, again: true, ..orders.clone() };
        let late = go(late).await?;
        let bare = go(route("bare route, the sold-out reply", "/late")).await?;
        sheet.put("5", late.answers_per_s / bare.answers_per_s);
    }
    if settings.wants(&["12"])
        && let Some(nginx) = nginx
    {
        let name = "group-commit, two instances";
        let direct = go(Plan { name, servers: vec![one, two], ..orders.clone() }).await?;
        let name = "group-commit, nginx before two";
        let through = go(Plan { name, servers: vec![nginx], ..orders.clone() }).await?;
        sheet.put("12", through.orders_per_s / direct.orders_per_s);
    }
    if settings.wants(&["11"]) {
        let plan = Plan { name: "peak", servers: vec![strict], ..orders.clone() };
        let peak = go(plan).await?;
        let plan = Plan {
            name: "3× overload",
            servers: vec![strict],
            clients: OVERLOAD_CLIENTS,
            rate: Some(OVERLOAD * peak.orders_per_s),
            ..orders.clone()
        };
        let over = go(plan).await?;
        sheet.put("11a", over.orders_per_s / peak.orders_per_s);
        sheet.put("11b", over.latency.p99_ms / peak.latency.p99_ms);
    }
    let mut admissions = None;
    if settings.wants(&["13"]) && has_stream {
        let clients = inner::CLIENTS;
        let plan = Plan { name: "stream", strategy: "stream", clients, ..orders.clone() };
        admissions = Some(go(plan).await?.orders_per_s);
    }
    if settings.wants(&["14"]) {
        let name = "group-commit, unwatched";
        let unwatched = Plan { name, servers: vec![quiet], ..orders.clone() };
        let name = "group-commit, watched";
        let watched = Plan { name, ..orders.clone() };
        let (mut with, mut without) = (0.0, 0.0);
        // A B B A, then B A A B: whatever grows or wanes meanwhile falls on both alike.
        for watch in [false, true, true, false] {
            if watch == number.is_multiple_of(2) {
                let run = watch::watched(&one.target(), go(watched.clone())).await?;
                with += run.orders_per_s;
            } else {
                without += go(unwatched.clone()).await?.orders_per_s;
            }
        }
        sheet.put("14", with / without);
    }
    let (access, lasting) = (&runner.ground.access, settings.lasting);
    if let Some(admissions) = admissions
        && stack::is_installed("redis-benchmark")
        && let Some(raw) = inner::raw_admissions(access, lasting).await?
    {
        let raw = sheet.figure("stream's script by redis-benchmark", raw);
        sheet.put("13", admissions / raw);
    }
    without_http(access, settings, sheet).await
}

async fn without_http(
    access: &Access,
    settings: &Settings,
    sheet: &mut Sheet,
) -> anyhow::Result<()> {
    let lasting = settings.lasting;
    let benchmark = stack::is_installed("redis-benchmark");
    if settings.wants(&["7"]) && benchmark {
        let ours = sheet.figure("lock + unlock pairs", inner::lock_pairs(access, lasting).await?);
        let raw = inner::raw_lock_pairs(access, lasting).await?;
        let raw = sheet.figure("the same scripts by redis-benchmark", raw);
        sheet.put("7", ours / raw);
    }
    if settings.wants(&["8"]) && benchmark {
        let leased = inner::leased_ids(access, 1_000, lasting).await?;
        let leased = sheet.figure("ids, leased by the thousand", leased);
        let raw = sheet.figure("INCR by redis-benchmark", inner::raw_ids(access, lasting).await?);
        sheet.put("8", leased / raw);
    }
    if !benchmark {
        for number in ["7", "8", "13"] {
            sheet.note(number, "redis-benchmark is not installed");
        }
    }
    Ok(())
}

/// One line on a run; its CPU is that of the service, the database and Redis, for one answer.
fn show(run: &Run) {
    let (orders, latency) = (run.orders_per_s * 2.0 > run.answers_per_s, run.latency);
    let rate = if orders { run.orders_per_s } else { run.answers_per_s };
    let others: Vec<_> = run
        .outcomes
        .iter()
        .filter(|(name, _)| orders && *name != "ORDERED")
        .map(|(name, count)| format!(", {name} {count}"))
        .collect();
    say(&format!(
        "    {}, {} clients: {} {}/s, p50 {} ms, p99 {} ms, {} + {} + {} µs of CPU{}",
        run.name,
        run.clients,
        figure(rate),
        if orders { "orders" } else { "replies" },
        figure(latency.p50_ms),
        figure(latency.p99_ms),
        figure(run.cpu.service_us),
        figure(run.cpu.database_us),
        figure(run.cpu.redis_us),
        others.concat(),
    ));
}

/// Whether a sale can be published on `stream`.
async fn knows_stream(runner: &Runner<'_>) -> anyhow::Result<bool> {
    match runner.publish("stream", 1).await {
        Ok(_) => Ok(true),
        Err(fault) if matches!(fault.downcast_ref(), Some(Error::Refused { status: 400, .. })) => {
            Ok(false)
        }
        Err(fault) => Err(fault),
    }
}
