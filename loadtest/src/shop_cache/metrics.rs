//! The instances' own counters of the cache of shops, from `GET /metrics` (Prometheus text format 0.0.4).

use workload::{
    Error, Target,
    http::{Call, Connection},
};

use super::reads::LIMIT;

/// The counters by which [`Layers`] tells who answered: metric, label, name.
const COUNTERS: [(&str, &str, &str); 5] = [
    ("seckill_cache_hits_total", "layer=\"memory\"", "memory"),
    ("seckill_cache_hits_total", "layer=\"redis\"", "Redis, a value"),
    ("seckill_cache_hits_total", "layer=\"null\"", "Redis, a cached null"),
    ("seckill_cache_hits_total", "layer=\"filter\"", "Bloom filter"),
    ("seckill_cache_loads_total", "", "database"),
];
const MEMORY: usize = 0;
const REDIS: usize = 1;
const NULL: usize = 2;
const FILTER: usize = 3;
const LOADS: usize = 4;

/// The gauge of instances that have given Redis up.
pub const BREAKERS_OPEN: &str = "seckill_cache_breaker_open";
/// The gauge of loads under way.
pub const LOADS_RUNNING: &str = "seckill_cache_loads_running";

/// Which layer answered how many reads, over all instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layers([u64; COUNTERS.len()]);

impl Layers {
    /// These counts alone, for tests.
    #[cfg(test)]
    pub fn of(filter: u64, loads: u64) -> Self {
        Self([0, 0, 0, filter, loads])
    }

    /// Answered from an instance's memory.
    pub fn memory(self) -> u64 {
        self.0[MEMORY]
    }

    /// Answered by a value from Redis.
    pub fn redis(self) -> u64 {
        self.0[REDIS]
    }

    /// Answered by a cached null.
    pub fn null(self) -> u64 {
        self.0[NULL]
    }

    /// Answered by the Bloom filter.
    pub fn filter(self) -> u64 {
        self.0[FILTER]
    }

    /// Reads of the database.
    pub fn loads(self) -> u64 {
        self.0[LOADS]
    }

    /// What happened since `before`; nothing where an instance was started anew.
    pub fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(before.0[at])))
    }

    /// Each layer's name and count.
    pub fn each(self) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTERS.into_iter().map(|(_, _, name)| name).zip(self.0)
    }
}

/// Scrapes instances.
#[derive(Debug)]
pub struct Nodes(Vec<(String, Connection)>);

impl Nodes {
    /// Nothing is connected yet.
    pub fn new(targets: &[Target]) -> Self {
        let node = |target: &Target| (target.to_string(), Connection::new(target.clone(), LIMIT));
        Self(targets.iter().map(node).collect())
    }

    /// The layers' counters.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Metric`].
    pub async fn layers(&mut self) -> Result<Layers, Error> {
        let mut sum = Layers::default();
        for (url, page) in self.pages().await? {
            for (count, (name, label, _)) in sum.0.iter_mut().zip(COUNTERS) {
                *count +=
                    value(&page, name, label).ok_or(Error::Metric { url: url.clone(), name })?;
            }
        }
        Ok(sum)
    }

    /// The sum of a gauge.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Metric`].
    pub async fn gauge(&mut self, name: &'static str) -> Result<u64, Error> {
        let mut sum = 0;
        for (url, page) in self.pages().await? {
            sum += value(&page, name, "").ok_or(Error::Metric { url, name })?;
        }
        Ok(sum)
    }

    /// Each instance's address and page.
    async fn pages(&mut self) -> Result<Vec<(String, String)>, Error> {
        let mut pages = Vec::new();
        for (url, connection) in &mut self.0 {
            let failed = |reason: String| Error::Unreachable {
                url: url.clone(),
                what: "GET /metrics",
                reason,
            };
            let response = connection.send(&Call::get("/metrics")).await;
            let response = response.map_err(|error| failed(error.to_string()))?;
            if response.status != 200 {
                return Err(failed(format!("HTTP {}", response.status)));
            }
            pages.push((url.clone(), String::from_utf8_lossy(&response.body).into_owned()));
        }
        Ok(pages)
    }
}

/// The sample of this name and label that is about shops or about no cache in particular.
fn value(page: &str, name: &str, label: &str) -> Option<u64> {
    page.lines().find_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (found, labels) = series.split_once('{').unwrap_or((series, ""));
        let of_shops = !labels.contains("cache=\"") || labels.contains("cache=\"shop\"");
        let wanted = found == name && of_shops && labels.contains(label);
        if wanted { value.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP seckill_cache_loads_total loads\n\
        seckill_cache_loads_total{cache=\"shop-type\"} 5\nseckill_cache_loads_total{cache=\"shop\"} 17\n\
        seckill_cache_hits_total{cache=\"shop\",layer=\"memory\"} 3\n\
        seckill_cache_hits_total{cache=\"shop\",layer=\"redis\"} 2000\nseckill_cache_breaker_open 1\n";

    #[test]
    fn the_samples_of_shops_are_read() {
        assert_eq!(value(PAGE, "seckill_cache_loads_total", ""), Some(17));
        assert_eq!(value(PAGE, "seckill_cache_hits_total", "layer=\"redis\""), Some(2000));
        assert_eq!(value(PAGE, BREAKERS_OPEN, ""), Some(1));
        assert_eq!(value(PAGE, "seckill_cache_hits_total", "layer=\"filter\""), None);
        assert_eq!(value(PAGE, "seckill_cache_hits", ""), None);
    }

    #[test]
    fn differences_are_per_counter_and_never_negative() {
        let (before, now) = (Layers::of(9, 1), Layers::of(2, 4));
        assert_eq!(now.since(before), Layers::of(0, 3));
        assert_eq!((now.memory(), now.filter(), now.loads()), (0, 2, 4));
    }
}
