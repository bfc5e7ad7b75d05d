//! Lost replies to what an operator or an owner does: publishing, adding stock, paying, cancelling.
//!
//! The operations are done while the replies get lost, so that each is certainly hit; those that happen in every round
//! are hit by the other faults where they meet.

use std::time::Duration;

use testkit::proxy::Mode;
use tokio::time::sleep;

use super::scene::Scene;
use crate::chaos::{operator::Operator, test_cluster::ServerKind::Database};
use workload::Error;

/// How long replies get lost, at least.
const SPELL: Duration = Duration::from_millis(250);

/// The operation happens, and its replies from the database are lost.
pub async fn lose_replies(
    it: Scene<'_>,
    operate: impl AsyncFnOnce(&Operator),
) -> Result<(), Error> {
    let Some(operator) = it.operator else { return Ok(()) };
    it.cluster.set_proxies(Database, Mode::LoseCommitReply);
    let undo = async {
        // Long enough for the first attempt of each; later ones are to succeed.
        sleep(it.lasts + SPELL).await;
        it.cluster.set_proxies(Database, Mode::Forward);
    };
    tokio::join!(operate(operator), undo);
    Ok(())
}
