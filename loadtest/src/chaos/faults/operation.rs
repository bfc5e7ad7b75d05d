//! Lost replies to what an operator or an owner does: publishing, adding stock, paying, cancelling.
//!
//! The operations are done while the replies get lost, so that each is certainly hit; those that happen in every round
//! are hit by the other faults where they meet.

use std::time::Duration;

use testkit::proxy::Mode;
use tokio::time::sleep;

use crate::chaos::{
    changes::What,
    operator::Operator,
    test_cluster::{ServerKind, TestCluster},
};

/// The operation whose replies from the database are lost. It happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationFault {
    /// Publishing a sale.
    Publish,
    /// Adding stock to a sale.
    AddStock,
    /// Paying or cancelling orders, on both instances at once.
    Change(What),
}

use OperationFault::{AddStock, Change, Publish};

impl OperationFault {
    /// Injects it, and undoes it.
    pub async fn inject(self, cluster: &TestCluster, operator: &Operator, lasts: Duration) {
        let set = |mode| cluster.set_proxies(ServerKind::Database, mode);
        set(Mode::LoseCommitReply);
        let operate = async {
            match self {
                Publish => operator.publish(0).await,
                AddStock => operator.add_stock(1).await,
                Change(what) => operator.change(what).await,
            }
        };
        let undo = async {
            // Long enough for the first attempt of each; later ones are to succeed.
            sleep(lasts + SPELL).await;
            set(Mode::Forward);
        };
        tokio::join!(operate, undo);
    }
}

/// How long replies get lost, at least.
const SPELL: Duration = Duration::from_millis(250);
