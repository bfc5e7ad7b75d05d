//! The service's own counters, from `GET /metrics` of each instance (Prometheus text format 0.0.4).

use std::{collections::HashMap, time::Duration};

use serde::Serialize;

use workload::{
    Error, Target,
    http::{Call, Connection},
};

/// The cache whose counters matter here.
const CACHE: &str = "shop";
/// Time limit of one scrape.
const LIMIT: Duration = Duration::from_secs(5);

/// One instance's metrics, as far as they concern the cache of shops.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    url: String,
    samples: HashMap<String, f64>,
}

impl Page {
    /// Reads the text; what cannot be read is left out, and missed only when asked for.
    pub fn parse(url: &str, text: &str) -> Self {
        let samples = text.lines().filter_map(sample).collect();
        Self { url: url.to_owned(), samples }
    }

    /// A counter or gauge of whole numbers, by its name, and after a space its layer where it has one.
    ///
    /// # Errors
    /// [`Error::Metric`] when it is not there or not a whole number.
    pub fn get(&self, name: &'static str) -> Result<u64, Error> {
        match self.samples.get(name) {
            Some(value) if *value >= 0.0 && value.fract() == 0.0 => Ok(*value as u64),
            _ => Err(Error::Metric { url: self.url.clone(), name }),
        }
    }
}

/// A sample's name, with its layer where it has one, and its value, if it is about our cache or about none
/// in particular.
fn sample(line: &str) -> Option<(String, f64)> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let (name, layer, rest) = match line.split_once('{') {
        Some((name, rest)) => {
            // A brace inside a label's value would end the labels early; no label of ours has one.
            let (labels, rest) = rest.split_once('}')?;
            let labelled = |name: &str| {
                let mut labels = labels.split(',').filter_map(|label| label.split_once('='));
                let (_, value) = labels.find(|(label, _)| label.trim() == name)?;
                Some(value.trim().trim_matches('"'))
            };
            if labelled("cache").is_some_and(|cache| cache != CACHE) {
                return None;
            }
            (name, labelled("layer"), rest)
        }
        None => {
            let (name, rest) = line.split_once(char::is_whitespace)?;
            (name, None, rest)
        }
    };
    // A time stamp may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    let name = name.trim();
    Some((layer.map_or(name.to_owned(), |layer| format!("{name} {layer}")), value))
}

/// Which layer answered how many reads, over all instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Layers {
    /// Reads of the database.
    pub loads: u64,
    /// Answered from an instance's memory.
    pub local_hits: u64,
    /// Answered by a value from Redis.
    pub redis_hits: u64,
    /// Answered by a cached null.
    pub null_hits: u64,
    /// Answered by the Bloom filter.
    pub filtered: u64,
    /// Answered by an old value while it was being rebuilt (counted as a Redis hit, too).
    pub stale_served: u64,
}

impl Layers {
    /// Reads one instance's page.
    ///
    /// # Errors
    /// [`Error::Metric`].
    pub fn read(page: &Page) -> Result<Self, Error> {
        Ok(Self {
            loads: page.get("seckill_cache_loads_total")?,
            local_hits: page.get("seckill_cache_hits_total memory")?,
            redis_hits: page.get("seckill_cache_hits_total redis")?,
            null_hits: page.get("seckill_cache_hits_total null")?,
            filtered: page.get("seckill_cache_hits_total filter")?,
            stale_served: page.get("seckill_cache_stale_served_total")?,
        })
    }

    /// Reads and sums all instances' pages.
    ///
    /// # Errors
    /// [`Error::Metric`].
    pub fn sum(pages: &[Page]) -> Result<Self, Error> {
        let mut sum = Self::default();
        for page in pages {
            sum = sum.plus(Self::read(page)?);
        }
        Ok(sum)
    }

    fn each(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            loads: f(self.loads, other.loads),
            local_hits: f(self.local_hits, other.local_hits),
            redis_hits: f(self.redis_hits, other.redis_hits),
            null_hits: f(self.null_hits, other.null_hits),
            filtered: f(self.filtered, other.filtered),
            stale_served: f(self.stale_served, other.stale_served),
        }
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// What happened since `before`; nothing where an instance was started anew.
    pub fn since(self, before: Self) -> Self {
        self.each(before, u64::saturating_sub)
    }
}

/// Scrapes instances.
#[derive(Debug)]
pub struct Nodes {
    nodes: Vec<(String, Connection)>,
}

impl Nodes {
    /// Nothing is connected yet.
    pub fn new(targets: &[Target]) -> Self {
        let node = |target: &Target| (target.to_string(), Connection::new(target.clone(), LIMIT));
        Self { nodes: targets.iter().map(node).collect() }
    }

    /// All pages, in the order of the targets.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn pages(&mut self) -> Result<Vec<Page>, Error> {
        let mut pages = Vec::with_capacity(self.nodes.len());
        for (url, connection) in &mut self.nodes {
            let failed = |reason: String| Error::Unreachable {
                url: url.clone(),
                what: "GET /metrics",
                reason,
            };
            let call = Call::get("/metrics");
            let response = connection.send(&call).await.map_err(|e| failed(e.to_string()))?;
            if response.status != 200 {
                return Err(failed(format!("HTTP {}", response.status)));
            }
            pages.push(Page::parse(url, &String::from_utf8_lossy(&response.body)));
        }
        Ok(pages)
    }

    /// The layers' counters, summed over all instances.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Metric`].
    pub async fn layers(&mut self) -> Result<Layers, Error> {
        Layers::sum(&self.pages().await?)
    }

    /// Sum of a gauge over all instances.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Metric`].
    pub async fn sum(&mut self, name: &'static str) -> Result<u64, Error> {
        let mut sum = 0;
        for page in self.pages().await? {
            sum += page.get(name)?;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP seckill_cache_loads_total loads\n# TYPE seckill_cache_loads_total counter\n\
        seckill_cache_loads_total{cache=\"shop-type\"} 5\nseckill_cache_loads_total{cache=\"shop\"} 17 1700000000\n\
        seckill_cache_hits_total{node=\"a\", cache=\"shop\",layer=\"memory\"} 3.0\n\n\
        seckill_cache_hits_total{layer=\"redis\"} 2e3\nseckill_cache_breaker_open 1\n\
        seckill_cache_hits_total{cache=\"shop\",layer=\"null\"} NaN\nrubbish\n";

    #[test]
    fn the_right_caches_samples_are_read_in_every_spelling() {
        let page = Page::parse("u", TEXT);
        assert_eq!(page.get("seckill_cache_loads_total").unwrap(), 17);
        assert_eq!(page.get("seckill_cache_hits_total memory").unwrap(), 3);
        assert_eq!(page.get("seckill_cache_hits_total redis").unwrap(), 2000);
        assert_eq!(page.get("seckill_cache_breaker_open").unwrap(), 1);
    }

    #[test]
    fn what_is_absent_or_no_number_is_named() {
        let page = Page::parse("http://x", TEXT);
        for name in ["seckill_cache_hits_total filter", "seckill_cache_hits_total null"] {
            let message = page.get(name).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("http://x"), "{message}");
        }
        assert!(Layers::read(&page).is_err());
    }

    #[test]
    fn differences_are_per_counter_and_never_negative() {
        let before = Layers { loads: 5, filtered: 9, ..Layers::default() };
        let now = Layers { loads: 7, filtered: 2, ..Layers::default() };
        assert_eq!(now.since(before), Layers { loads: 2, ..Layers::default() });
        assert_eq!(now.plus(before).loads, 12);
    }
}
