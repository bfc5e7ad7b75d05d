//! What an operator gives the tool to reach the service's servers.
//!
//! Holds addresses and secrets, opens nothing. Secrets are never printed: `Debug` hides them.

use std::fmt;

use chrono_tz::Tz;

/// Addresses and secrets of the deployment under test.
#[derive(Clone)]
pub struct Access {
    /// The service's database, `mysql://user:password@host:port/database`.
    pub database_url: String,
    /// The service's Redis, `redis://host:port/`.
    pub redis_url: String,
    /// The value of `x-admin-token`; publishing a sale needs it.
    pub admin_token: String,
    /// The zone in which the service reads and writes date-times.
    pub time_zone: Tz,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("time_zone", &self.time_zone).finish_non_exhaustive()
    }
}
