//! The raw data of a comparison: its document, and every attempt with its reply and the node's steps.
//! Enough to judge it again.

use serde::Serialize;

use super::{document::Document, run_state::RunState};
use crate::{generator::Record, reply::Reply};

/// A comparison with all attempts of each lane.
#[derive(Debug, Serialize)]
pub struct Raw {
    #[serde(flatten)]
    document: Document,
    /// Of each lane; empty until all are over.
    records: Vec<Vec<Attempt>>,
}

/// One attempt.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    user_id: u64,
    attempt: u32,
    /// Seconds since the first request.
    sent: f64,
    /// From when it was due.
    latency_ms: f64,
    reply: String,
    /// As text, since it passes 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    order_id: Option<String>,
    /// The node's steps, as its header had them.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
}

impl Raw {
    /// The raw data of this run, as far as there are any.
    pub fn of(run: &RunState) -> Self {
        let attempts = |records: &Vec<Record>| records.iter().map(Attempt::of).collect();
        let records = run.records.get().map(|lanes| lanes.iter().map(attempts).collect());
        Self { document: run.document(0), records: records.unwrap_or_default() }
    }
}

impl Attempt {
    fn of(record: &Record) -> Self {
        let id = match &record.observed.reply {
            Reply::Ordered(id) | Reply::Pending(id) | Reply::Withdrawn { id, .. } => Some(*id),
            Reply::AlreadyOrdered(id) | Reply::Unknown { id, .. } => *id,
            Reply::Refused(_) | Reply::Malformed => None,
        };
        Self {
            user_id: record.observed.user_id,
            attempt: record.observed.attempt,
            sent: record.sent.as_secs_f64(),
            latency_ms: record.latency().as_secs_f64() * 1e3,
            reply: record.observed.reply.label().to_owned(),
            order_id: id.map(|id| id.to_string()),
            trace: record.trace.as_deref().map(str::to_owned),
        }
    }
}
