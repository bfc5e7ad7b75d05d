//! What a burst is asked for.

use std::{path::PathBuf, sync::Arc, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{
    Access, Target,
    buyers::Buyer,
    live::{Live, Progress},
};

/// Most connections used when none are asked for.
const DEFAULT_CONNECTIONS: usize = 1024;

/// The source of the buyers.
#[derive(Debug, Clone)]
pub enum BuyerSource {
    /// This many new users, signed in through the API.
    SignIn(usize),
    /// The first so many tokens of a file, one per line.
    File(PathBuf, usize),
    /// These, signed in before.
    Given(Arc<[Buyer]>),
}

impl BuyerSource {
    /// How many buyers that is.
    pub fn size(&self) -> usize {
        match self {
            Self::SignIn(count) | Self::File(_, count) => *count,
            Self::Given(buyers) => buyers.len(),
        }
    }
}

/// When the buyers arrive: at random moments of a span. All attempts of one buyer are made at the same moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// From the first to the last; zero: all at once.
    pub over: Duration,
    /// What the moments and the order of the buyers are drawn from.
    pub seed: u64,
}

impl Arrivals {
    /// The buyers by index, in the order in which they arrive, each with its time.
    pub(crate) fn draw(self, buyers: usize) -> Vec<(usize, Duration)> {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let mut order: Vec<usize> = (0..buyers).collect();
        order.shuffle(&mut dice);
        let mut due: Vec<Duration> =
            order.iter().map(|_| self.over.mul_f64(dice.random())).collect();
        due.sort_unstable();
        order.into_iter().zip(due).collect()
    }
}

/// A burst to run.
#[derive(Debug, Clone)]
pub struct BurstOptions {
    /// Servers and secrets.
    pub access: Access,
    /// Base URLs; attempts go to them in turn. Publishing uses the first.
    pub targets: Vec<Target>,
    /// The buyers.
    pub buyers: BuyerSource,
    /// Simultaneous attempts of each buyer.
    pub tries: u32,
    /// How many are on sale.
    pub stock: u32,
    /// The sale's strategy, by the service's name for it.
    pub strategy: String,
    /// Keep-alive connections; `None` means one per attempt, at most 1,024.
    pub connections: Option<usize>,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Longest wait for purchases in flight before judging.
    pub wait_limit: Duration,
    /// When the buyers arrive.
    pub arrivals: Arrivals,
    /// Whether the service is asked for the steps of each attempt.
    pub traced: bool,
    /// Where progress goes.
    pub progress: Progress,
    /// Counters to watch the run by; a test injects its fault when [`Live::reached`] says so.
    pub live: Arc<Live>,
}

impl BurstOptions {
    /// A silent burst of 200 new buyers, 3 tries each, for 50 vouchers on `reentrant-lock`.
    pub fn new(access: Access, targets: Vec<Target>) -> Self {
        Self {
            access,
            targets,
            buyers: BuyerSource::SignIn(200),
            tries: 3,
            stock: 50,
            strategy: "reentrant-lock".to_owned(),
            connections: None,
            timeout: Duration::from_secs(10),
            wait_limit: Duration::from_secs(30),
            arrivals: Arrivals::default(),
            traced: false,
            progress: Progress::Silent,
            live: Arc::default(),
        }
    }

    /// How many connections so many attempts use: at least one to each target.
    pub(crate) fn connections_for(&self, attempts: usize) -> usize {
        let most = self.connections.unwrap_or(DEFAULT_CONNECTIONS);
        most.clamp(1, attempts.max(1)).max(self.targets.len())
    }
}
