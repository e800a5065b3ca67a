//! Configuration of the seed manager.

use std::fmt;

use leyline::seed::AttributionMode;
use serde::{Deserialize, Serialize};

use crate::host::HostConfig;
use crate::lifecycle::GateConfig;

/// A value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigIssue {
    /// Which value: a dotted path below the seed manager's section.
    pub key: String,
    /// What is wrong and what is accepted.
    pub message: String,
}

impl ConfigIssue {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl fmt::Display for ConfigIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.key, self.message)
    }
}

/// The section of the seed manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KasminaConfig {
    /// The host network.
    pub host: HostConfig,
    /// Conditions for stage changes.
    #[serde(default)]
    pub gates: GateConfig,
    /// How the loss of a microbatch is attributed to seeds.
    #[serde(default)]
    pub attribution: AttributionMode,
    /// Width of a seed's bottleneck (features or channels).
    #[serde(default = "default_seed_width")]
    pub seed_width: usize,
    /// Epochs for which a slot is barred after its seed was removed (count).
    #[serde(default = "default_embargo_epochs")]
    pub embargo_epochs: u64,
    /// Seed of every initial weight: the same number gives the same weights.
    #[serde(default)]
    pub init_seed: u64,
    /// Offers the harmful `noise` blueprint too; for control experiments.
    #[serde(default)]
    pub noise_blueprint: bool,
}

fn default_seed_width() -> usize {
    32
}

fn default_embargo_epochs() -> u64 {
    3
}

impl KasminaConfig {
    /// Largest accepted bottleneck.
    const MAX_SEED_WIDTH: usize = 65_536;

    /// The defaults for this host.
    #[must_use]
    pub fn new(host: HostConfig) -> Self {
        Self {
            host,
            gates: GateConfig::default(),
            attribution: AttributionMode::default(),
            seed_width: default_seed_width(),
            embargo_epochs: default_embargo_epochs(),
            init_seed: 0,
            noise_blueprint: false,
        }
    }

    /// Everything that is wrong with the values; empty when they can be used.
    #[must_use]
    pub fn validate(&self) -> Vec<ConfigIssue> {
        let mut issues = self.host.validate();
        issues.extend(self.gates.validate());
        if !(1..=Self::MAX_SEED_WIDTH).contains(&self.seed_width) {
            let message = format!("is {}: expected 1 to {}", self.seed_width, Self::MAX_SEED_WIDTH);
            issues.push(ConfigIssue::new("seed_width", message));
        }
        issues
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mlp() -> HostConfig {
        HostConfig::Mlp { inputs: 64, hidden: vec![4], classes: 10 }
    }

    #[track_caller]
    fn check(json: &str, part_of_error: Option<&str>) {
        match (serde_json::from_str::<KasminaConfig>(json), part_of_error) {
            (Ok(config), None) => assert_eq!(config.validate(), []),
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
            (Ok(config), Some(part)) => {
                let issues: Vec<String> = config.validate().iter().map(ToString::to_string).collect();
                assert!(issues.iter().any(|issue| issue.contains(part)), "{issues:?}");
            }
            (Err(error), None) => panic!("{error}"),
        }
    }

    #[test]
    fn the_host_alone_is_a_complete_configuration() {
        let read: KasminaConfig =
            serde_json::from_str(r#"{"host":{"mlp":{"inputs":64,"hidden":[4],"classes":10}}}"#).unwrap();
        assert_eq!(read, KasminaConfig::new(mlp()));
    }

    #[test]
    fn an_unusable_value_is_reported_with_its_key() {
        let host = r#""host":{"mlp":{"inputs":64,"hidden":[4],"classes":10}}"#;
        check(&format!("{{{host}}}"), None);
        check(&format!(r#"{{{host},"seed_width":0}}"#), Some("`seed_width` is 0: expected 1 to 65536"));
        check(&format!(r#"{{{host},"seed_with":3}}"#), Some("unknown field `seed_with`"));
        check(
            &format!(r#"{{{host},"gates":{{"min_gradient_health":2.0}}}}"#),
            Some("`gates.min_gradient_health` is 2"),
        );
        check(r#"{"host":{"mlp":{"inputs":0,"hidden":[4],"classes":10}}}"#, Some("`host.mlp.inputs` is 0"));
        check(r#"{"host":{"mlp":{"inputs":64,"hidden":[4,0],"classes":10}}}"#, Some("`host.mlp.hidden[1]` is 0"));
        check(r#"{"host":{"mlp":{"inputs":64,"hidden":[4],"classes":10,"depth":2}}}"#, Some("unknown field `depth`"));
        let cnn = r#"{"host":{"cnn1d":{"length":8,"channels":[4],"kernel":9,"stride":1,"classes":3,"pool":"mean"}}}"#;
        check(cnn, Some("`host.cnn1d.kernel` is 9"));
    }
}
