//! The buyers of a run.

use std::sync::Arc;

use anyhow::Context;
use workload::buyers::Buyer;

use crate::bench::generator::wire::TOKEN;

/// Signed-in buyers, as the generator and the audit need them.
#[derive(Debug, Clone)]
pub struct Buyers {
    /// Their session tokens.
    pub tokens: Arc<[[u8; TOKEN]]>,
    /// Their user ids, in the same order.
    pub users: Arc<[u64]>,
}

impl Buyers {
    /// All of `signed_in`.
    pub fn of(signed_in: &[Buyer]) -> anyhow::Result<Self> {
        let tokens: Option<Arc<[[u8; TOKEN]]>> =
            signed_in.iter().map(|buyer| buyer.token.as_bytes().try_into().ok()).collect();
        let users = signed_in.iter().map(|buyer| buyer.user_id).collect();
        Ok(Self { tokens: tokens.context("a token's length")?, users })
    }

    /// `count` of them, spread over all; others for every `turn`.
    pub fn part(&self, count: usize, turn: usize) -> Self {
        let step = (self.users.len() / count.max(1)).max(1);
        let chosen = || (turn % step..self.users.len()).step_by(step).take(count);
        Self {
            tokens: chosen().map(|at| self.tokens[at]).collect(),
            users: chosen().map(|at| self.users[at]).collect(),
        }
    }
}
