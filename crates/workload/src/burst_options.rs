//! What a burst is asked for.

use std::{sync::Arc, time::Duration};

use clap::{
    Args,
    builder::{RangedU64ValueParser, TypedValueParser},
    value_parser,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{Environment, live::Live};

/// A burst to run, as command lines take it.
#[derive(Debug, Clone, Args)]
pub struct BurstOptions {
    /// Users, each with a session of its own
    #[arg(long, default_value_t = 300, value_parser = value_parser!(u32).range(1..))]
    pub buyers: u32,
    /// Simultaneous attempts of each user
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..=1000))]
    pub tries: u32,
    /// Vouchers on sale
    #[arg(long, default_value_t = 100)]
    pub stock: u32,
    /// Keep-alive connections at most, all targets together; no more than one per attempt
    #[arg(long, default_value_t = 1024,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub connections: usize,
    /// Time limit of one attempt, in seconds
    #[arg(long, default_value = "10", value_name = "SECONDS",
          value_parser = value_parser!(u64).range(1..=600).map(Duration::from_secs))]
    pub timeout: Duration,
    /// Longest wait for in-flight purchases before the check, in seconds
    #[arg(long, default_value = "30", value_name = "SECONDS",
          value_parser = value_parser!(u64).range(1..=600).map(Duration::from_secs))]
    pub wait_limit: Duration,
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub environment: Environment,
    /// The sale's strategy, by the service's name for it.
    #[arg(skip)]
    pub strategy: String,
    /// The voucher of each buyer's first attempt, where that is another one: then this attempt is not judged.
    #[arg(skip)]
    pub other_voucher_id: Option<u64>,
    /// Over how long the buyers arrive, at random moments; zero: all at once.
    #[arg(skip)]
    pub spread: Duration,
    /// How many of them arrive at the same moment, at least one.
    #[arg(skip)]
    pub wave: usize,
    /// What the moments and the order of the buyers are drawn from.
    #[arg(skip)]
    pub seed: u64,
    /// Whether the service is asked for the steps of each attempt.
    #[arg(skip)]
    pub traced: bool,
    /// Counters to watch the run by, and its signals.
    #[arg(skip)]
    pub live: Arc<Live>,
}

impl BurstOptions {
    /// A burst of 200 new buyers, 3 tries each, for 50 vouchers on `reentrant-lock`.
    pub fn new(environment: Environment) -> Self {
        Self {
            environment,
            buyers: 200,
            tries: 3,
            stock: 50,
            strategy: "reentrant-lock".to_owned(),
            other_voucher_id: None,
            connections: 1024,
            timeout: Duration::from_secs(10),
            wait_limit: Duration::from_secs(30),
            spread: Duration::ZERO,
            wave: 1,
            seed: 0,
            traced: false,
            live: Arc::default(),
        }
    }

    /// The buyers by index, in the order in which they arrive, each with its time.
    pub(crate) fn arrivals(&self, buyers: usize) -> Vec<(usize, Duration)> {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let mut order: Vec<usize> = (0..buyers).collect();
        order.shuffle(&mut dice);
        let mut arrival_times: Vec<Duration> = order
            .iter()
            .map(|_| self.spread.mul_f64(dice.random()))
            .collect();
        arrival_times.sort_unstable();
        for wave in arrival_times.chunks_mut(self.wave.max(1)) {
            let first = wave[0];
            wave.fill(first);
        }
        order.into_iter().zip(arrival_times).collect()
    }

    /// Whether a buyer's attempt of this number is for [another voucher](Self::other_voucher_id).
    pub(crate) fn is_elsewhere(&self, attempt: u32) -> bool {
        self.other_voucher_id.is_some() && attempt == 0
    }

    /// How many connections so many attempts use: at least one to each target.
    pub(crate) fn connections_for(&self, attempts: usize) -> usize {
        self.connections
            .clamp(1, attempts.max(1))
            .max(self.environment.targets.len())
    }
}
