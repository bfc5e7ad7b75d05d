//! Faults with which the Rust client can be started, to test that the scenarios detect them.

use clap::ValueEnum as _;

/// A fault of this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// It ignores release messages: a waiter tries again only when the holder's lease ends.
    IgnoresMessages,
    /// It releases without publishing a message.
    PublishesNothing,
    /// It does not lock at all.
    NeverLocks,
    /// It has no watchdog.
    NeverRenews,
    /// Its first release of a hold count above one frees the lock.
    ReleasesAllHolds,
    /// It learns of a loss only by its next renewal.
    HearsNoLoss,
    /// Its fair locks do not queue.
    IgnoresQueues,
    /// It acquires one permit when it is to acquire several.
    AcquiresOnePermit,
    /// Its leased permits have a lease of its own choice.
    IgnoresLeases,
}

impl std::fmt::Display for Fault {
    /// As on the command line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}
