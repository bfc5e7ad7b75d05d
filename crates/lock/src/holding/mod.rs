//! What is held: requests, holds, the registry of both, and the guards that release them.

pub(crate) mod guard;
pub(crate) mod hold;
pub(crate) mod registry;
pub(crate) mod request;
