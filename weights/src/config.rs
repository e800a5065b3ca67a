//! Configuration of the prefetch.

use serde::{Deserialize, Serialize};

use esper_safety::BreakerConfig;
use leyline::config::ConfigIssue;

/// How artifacts are fetched and kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrefetchConfig {
    /// Fetches at a time: one thread each (count).
    pub concurrency: usize,
    /// Threads beside these that may be left behind in a store that does not come back; each was replaced (count).
    pub abandoned: usize,
    /// Time from a request to its answer.
    pub deadline_ms: u64,
    /// Bytes of artifacts kept; 0 keeps none.
    pub cache_bytes: u64,
    /// How long an artifact is kept, from its arrival (seconds); 0 = until it is displaced.
    pub cache_ttl_s: u64,
    /// Fetches that may wait for a worker (count).
    pub queue: usize,
    /// When a failing store is left alone.
    pub breaker: BreakerConfig,
}

impl Default for PrefetchConfig {
    fn default() -> Self {
        Self {
            concurrency: 6,
            abandoned: 32,
            deadline_ms: 1_000,
            cache_bytes: 512 << 20,
            cache_ttl_s: 300,
            queue: 256,
            breaker: BreakerConfig::default(),
        }
    }
}

impl PrefetchConfig {
    /// Most threads and most waiting fetches: beyond these a number is a slip, not a wish.
    const MAX_CONCURRENCY: usize = 256;
    const MAX_QUEUE: usize = 65_536;
    /// A day.
    const MAX_MS: u64 = 86_400_000;

    /// Everything that is wrong with the values; empty when they can be used.
    #[must_use]
    pub fn validate(&self) -> Vec<ConfigIssue> {
        let count = |n: usize| n as u64;
        let rows = [
            ("prefetch.concurrency", count(self.concurrency), count(Self::MAX_CONCURRENCY)),
            ("prefetch.abandoned", count(self.abandoned), count(Self::MAX_CONCURRENCY)),
            ("prefetch.deadline_ms", self.deadline_ms, Self::MAX_MS),
            ("prefetch.queue", count(self.queue), count(Self::MAX_QUEUE)),
        ];
        let bad = rows.into_iter().filter(|(_, value, max)| !(1..=*max).contains(value));
        let own = bad.map(|(key, value, max)| ConfigIssue::new(key, format!("is {value}: expected 1 to {max}")));
        own.chain(self.breaker.validate("prefetch.breaker")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_is_the_default_and_the_default_can_be_used() {
        let read: PrefetchConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(read, PrefetchConfig::default());
        assert_eq!(read.validate(), []);
        let text = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<PrefetchConfig>(&text).unwrap(), read);
    }

    #[test]
    fn an_unusable_value_is_reported_with_its_key() {
        for (json, expected) in [
            (r#"{"concurrency":0}"#, "`prefetch.concurrency` is 0: expected 1 to 256"),
            (r#"{"concurrency":257}"#, "`prefetch.concurrency` is 257"),
            (r#"{"abandoned":0}"#, "`prefetch.abandoned` is 0: expected 1 to 256"),
            (r#"{"deadline_ms":0}"#, "`prefetch.deadline_ms` is 0"),
            (r#"{"queue":0}"#, "`prefetch.queue` is 0"),
            (r#"{"breaker":{"failures":0}}"#, "`prefetch.breaker.failures` is 0"),
            (r#"{"breaker":{"successes":0}}"#, "`prefetch.breaker.successes` is 0"),
            (r#"{"breaker":{"open_ms":86400001}}"#, "`prefetch.breaker.open_ms` is 86400001: expected 1 to 86400000"),
        ] {
            let config: PrefetchConfig = serde_json::from_str(json).unwrap();
            let issues: Vec<String> = config.validate().iter().map(ToString::to_string).collect();
            assert!(issues.len() == 1 && issues[0].starts_with(expected), "{json}: {issues:?}");
        }
        for json in [r#"{"cache_byte":1}"#, r#"{"breaker":{"success":1}}"#] {
            let error = serde_json::from_str::<PrefetchConfig>(json).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{error}");
        }
    }
}
