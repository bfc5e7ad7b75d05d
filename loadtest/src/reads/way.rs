//! The ways in which the service can read a shop, by the names it has for them.

use std::{fmt, str::FromStr};

use hyper::header::{HeaderName, HeaderValue};
use serde::Serialize;

use workload::http::Call;

/// One cache policy. A server with `--lab` lets the header `x-lab-cache` choose it for one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Look, load, store.
    CacheAside,
    /// The same, and absent rows are remembered.
    NullCaching,
    /// One load in the whole cluster, and all others wait for it.
    Mutex,
    /// Values never leave; an expired one is served while it is rebuilt.
    LogicalExpiry,
    /// Memory, then Redis, then one load per process and per cluster.
    Layered,
}

impl Way {
    /// All of them, in the order in which they are met by a person learning this field.
    pub const ALL: [Self; 5] =
        [Self::CacheAside, Self::NullCaching, Self::Mutex, Self::LogicalExpiry, Self::Layered];

    /// The service's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CacheAside => "cache-aside",
            Self::NullCaching => "null-caching",
            Self::Mutex => "mutex",
            Self::LogicalExpiry => "logical-expiry",
            Self::Layered => "layered",
        }
    }

    /// `GET /shop/{id}` this way.
    pub fn read(self, id: u64) -> Call {
        read(Some(self), id)
    }
}

/// The header that picks the read strategy of one request; a server without `--lab` ignores it.
const LAB_CACHE: HeaderName = HeaderName::from_static("x-lab-cache");

/// `GET /shop/{id}`, this way or the configured one.
pub fn read(way: Option<Way>, id: u64) -> Call {
    let call = Call::get(format!("/shop/{id}"));
    match way {
        Some(way) => call.header(LAB_CACHE, HeaderValue::from_static(way.name())),
        None => call,
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|way| way.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("there is no policy '{name}'; there are {known}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_travel_in_the_header() {
        for way in Way::ALL {
            assert_eq!(way.name().parse(), Ok(way));
            assert_eq!(way.read(7).headers[LAB_CACHE], way.name());
        }
        assert!("mutexes".parse::<Way>().is_err());
        let plain = read(None, 7);
        assert_eq!((plain.path.as_str(), plain.headers.len()), ("/shop/7", 0));
    }
}
