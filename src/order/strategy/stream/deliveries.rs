//! Entries that the admission script leaves to this process's consumer as it adds them, so that the consumer does not read
//! what the process has just written: it holds them ([`super::held`]). While the consumer takes none, it reads them as it
//! reads those of other nodes, or another node does.

use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::entry::Entry;

/// What one call of the script delivered.
#[derive(Debug, PartialEq)]
pub(super) struct Delivery {
    /// The lease's generation in which the call began.
    pub generation: u64,
    /// Older ones, which are pending under the consumer's name.
    pub older: Vec<Entry>,
    /// Those that were added, which the consumer holds.
    pub held: Vec<Entry>,
    /// Whether others are left in the stream that are not delivered to anybody.
    pub left_some: bool,
}

/// The way from the admission script to the consumer.
pub(super) struct Deliveries {
    /// The lease's generation in which the consumer takes entries; `None` where it takes none now.
    taken_in: Mutex<Option<u64>>,
    /// Without a bound of its own: the consumer takes none when it has no room, and there is one call at a time.
    sender: UnboundedSender<Delivery>,
}

impl Deliveries {
    /// The way, and its end, for the consumer.
    pub fn new() -> (Self, UnboundedReceiver<Delivery>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Deliveries { taken_in: Mutex::default(), sender }, receiver)
    }

    /// For the consumer: from now on it takes entries in this generation, or none.
    pub fn take_in(&self, generation: Option<u64>) {
        *self.taken_in.lock() = generation;
    }

    /// For the script: the generation in which the consumer takes entries. One that has ended takes none, also where it
    /// panicked: what is pending under the name of a live process is taken over by nobody.
    pub fn taken_in(&self) -> Option<u64> {
        self.taken_in.lock().filter(|_| !self.sender.is_closed())
    }

    pub fn send(&self, delivery: Delivery) {
        // Fails where the consumer has ended: then the entries are left to another node, as all that are pending.
        self.sender.send(delivery).ok();
    }
}
