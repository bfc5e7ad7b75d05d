//! Who answered the reads of shops, by two independent counts: the instances' own metrics (`GET /metrics`, Prometheus text
//! format 0.0.4), and the statements that the database says it has executed.

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
/// Places in [`Counts`]: reads that the Bloom filter answered, reads of the database, those of them that are under way, and
/// reads for which Redis did not answer in time.
pub const FILTER: usize = 3;
pub const LOADS: usize = 4;
pub const RUNNING: usize = 5;
pub const BYPASSED: usize = 6;
/// The place of the prepared statements that the database has executed, of whatever client.
pub const STATEMENTS: usize = SAMPLES.len();

/// All counts so far: those of the metrics over all instances, then the database's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts(pub [u64; SAMPLES.len() + 1]);

impl Counts {
    /// Counts at these places alone, for tests.
    #[cfg(test)]
    pub fn of(counts: &[(usize, u64)]) -> Self {
        let mut all = Self::default();
        counts.iter().for_each(|(at, count)| all.0[*at] = *count);
        all
    }

    /// What happened since `before`; nothing where an instance was started anew.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(before.0[at])))
    }

    /// Who answered, and how many reads.
    pub fn layers(self) -> impl Iterator<Item = (&'static str, u64)> {
        SAMPLES.into_iter().map(|(_, _, name)| name).zip(self.0).take(RUNNING)
    }

    /// The sums over all instances, without the database's count.
    pub async fn of_instances(nodes: &[Target]) -> Result<Self, Error> {
        let mut sums = Self::default();
        for node in nodes {
            let failed = |reason: String| Error::Unreachable {
                url: node.to_string(),
                what: "GET /metrics",
                reason,
            };
            let response = Connection::new(node.clone(), LIMIT).send(&Call::get("/metrics")).await;
            let response = response.map_err(|error| failed(error.to_string()))?;
            if response.status != 200 {
                return Err(failed(format!("HTTP {}", response.status)));
            }
            let page = String::from_utf8_lossy(&response.body);
            for (sum, (name, label, _)) in sums.0.iter_mut().zip(SAMPLES) {
                let found = value(&page, name, label);
                *sum += found.ok_or_else(|| {
                    failed(format!(
                        "no readable {name} for the cache of shops; is it a proxy, or a Java node?"
                    ))
                })?;
            }
        }
        Ok(sums)
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
