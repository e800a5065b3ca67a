//! The `[host]` and `[seeds]` sections: the network, without the sizes that follow from the data.

use kasmina::KasminaConfig;
use kasmina::host::{HostConfig, Pool};
use kasmina::lifecycle::GateConfig;
use leyline::seed::AttributionMode;
use serde::{Deserialize, Serialize};

use super::Issue;

/// The host network; one table named after its kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HostChoice {
    /// Linear layers with `ReLU` between them.
    Mlp {
        /// Width of each hidden layer.
        hidden: Vec<usize>,
    },
    /// Blocks of 1-D convolution and `ReLU`, then a linear layer.
    Cnn1d {
        /// Channels of each block.
        channels: Vec<usize>,
        /// Positions one output sees.
        kernel: usize,
        /// Positions from one output to the next.
        stride: usize,
        /// How a signal becomes a vector before the last layer: `mean` or `flatten`.
        #[serde(default)]
        pool: Pool,
    },
}

impl HostChoice {
    /// The host for samples of so many features and classes.
    #[must_use]
    pub fn sized(&self, num_features: usize, num_classes: usize) -> HostConfig {
        match self.clone() {
            Self::Mlp { hidden } => HostConfig::Mlp { inputs: num_features, hidden, classes: num_classes },
            Self::Cnn1d { channels, kernel, stride, pool } => {
                HostConfig::Cnn1d { length: num_features, channels, kernel, stride, classes: num_classes, pool }
            }
        }
    }
}

/// How seeds live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedsConfig {
    /// Width of a seed's bottleneck (features or channels).
    pub seed_width: usize,
    /// Epochs for which a slot is barred after its seed was removed (count).
    pub embargo_epochs: u64,
    /// How the loss of a microbatch is attributed to seeds: `host_only`, `stage`, `alpha`, `contribution` or `probe`.
    #[serde(default)]
    pub attribution: AttributionMode,
    /// Offers the harmful `noise` blueprint too; for control experiments.
    #[serde(default)]
    pub noise_blueprint: bool,
    /// Conditions for stage changes.
    #[serde(default)]
    pub gates: GateConfig,
}

impl SeedsConfig {
    /// The seed manager's whole configuration for `host`, with every initial weight drawn from `init_seed`.
    #[must_use]
    pub fn for_host(&self, host: HostConfig, init_seed: u64) -> KasminaConfig {
        KasminaConfig {
            host,
            gates: self.gates.clone(),
            attribution: self.attribution,
            seed_width: self.seed_width,
            embargo_epochs: self.embargo_epochs,
            init_seed,
            noise_blueprint: self.noise_blueprint,
        }
    }
}

/// What cannot work in both sections, whatever the data are.
///
/// A kernel wider than a sample shows only with the data; the sizes taken here allow all that any data allow.
pub(super) fn issues(host: &HostChoice, seeds: &SeedsConfig) -> Vec<Issue> {
    const LARGEST_SAMPLE: usize = 1 << 20;
    let key = |key: String| if key.starts_with("host.") { key } else { format!("seeds.{key}") };
    let issues = seeds.for_host(host.sized(LARGEST_SAMPLE, 2), 0).validate();
    issues.into_iter().map(|issue| Issue::new(key(issue.key), issue.message)).collect()
}
