//! The instances' own counters of the cache of shops, from `GET /metrics` (Prometheus text format 0.0.4).

use workload::{
    Error, Target,
    http::{Call, Connection},
};

use super::reads::LIMIT;

/// What is read of a page: metric, label, and who has answered. The last two: a gauge of the loads under way, and
/// loads without Redis, which did not answer in time.
const SAMPLES: [(&str, &str, &str); 7] = [
    ("seckill_cache_hits_total", "layer=\"memory\"", "memory"),
    ("seckill_cache_hits_total", "layer=\"redis\"", "Redis, a value"),
    ("seckill_cache_hits_total", "layer=\"null\"", "Redis, a cached null"),
    ("seckill_cache_hits_total", "layer=\"filter\"", "Bloom filter"),
    ("seckill_cache_loads_total", "", "database"),
    ("seckill_cache_loads_running", "", ""),
    ("seckill_cache_bypassed_total", "", ""),
];
const FILTER: usize = 3;
const LOADS: usize = 4;
const RUNNING: usize = 5;
const BYPASSED: usize = 6;

/// Which layer answered how many reads, over all instances.
#[derive(Debug, Clone, Copy, Default)]
pub struct Layers([u64; SAMPLES.len()]);

impl Layers {
    /// These counts alone, for tests.
    #[cfg(test)]
    pub fn of(filter: u64, loads: u64, bypassed: u64) -> Self {
        Self([0, 0, 0, filter, loads, 0, bypassed])
    }

    /// Answered by the Bloom filter.
    pub fn filter(self) -> u64 {
        self.0[FILTER]
    }

    /// Reads of the database.
    pub fn loads(self) -> u64 {
        self.0[LOADS]
    }

    /// Reads of the database that are under way.
    pub fn loads_running(self) -> u64 {
        self.0[RUNNING]
    }

    /// Reads for which Redis did not answer in time.
    pub fn bypassed(self) -> u64 {
        self.0[BYPASSED]
    }

    /// What happened since `before`; nothing where an instance was started anew.
    pub fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(before.0[at])))
    }

    /// Each layer's name and count.
    pub fn each(self) -> impl Iterator<Item = (&'static str, u64)> {
        SAMPLES.into_iter().map(|(_, _, name)| name).zip(self.0).take(RUNNING)
    }
}

/// Scrapes instances.
pub struct Nodes(Vec<(String, Connection)>);

impl Nodes {
    /// Nothing is connected yet.
    pub fn new(targets: &[Target]) -> Self {
        let node = |target: &Target| (target.to_string(), Connection::new(target.clone(), LIMIT));
        Self(targets.iter().map(node).collect())
    }

    /// The sums over all instances.
    pub async fn layers(&mut self) -> Result<Layers, Error> {
        let mut sum = Layers::default();
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
            let page = String::from_utf8_lossy(&response.body);
            for (count, (name, label, _)) in sum.0.iter_mut().zip(SAMPLES) {
                let found = value(&page, name, label);
                *count += found.ok_or_else(|| Error::Metric { url: url.clone(), name })?;
            }
        }
        Ok(sum)
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

    #[test]
    fn the_samples_of_shops_are_read() {
        let page = "# HELP seckill_cache_loads_total loads\n\
            seckill_cache_loads_total{cache=\"shop-type\"} 5\nseckill_cache_loads_total{cache=\"shop\"} 17\n\
            seckill_cache_hits_total{cache=\"shop\",layer=\"redis\"} 2000\nseckill_cache_loads_running 1\n";
        let read = |at: usize| value(page, SAMPLES[at].0, SAMPLES[at].1);
        assert_eq!([read(LOADS), read(1), read(RUNNING)], [Some(17), Some(2000), Some(1)]);
        assert_eq!(read(FILTER), None);
    }
}
