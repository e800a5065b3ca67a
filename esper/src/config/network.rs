//! The `[host]` and `[seeds]` sections: the network, without the sizes that follow from the data.

use std::collections::BTreeMap;

use kasmina::KasminaConfig;
use kasmina::attribution::AttributionScope;
use kasmina::host::{HostConfig, Pool};
use kasmina::init::InitMode;
use kasmina::isolation::IsolationConfig;
use kasmina::lifecycle::GateConfig;
use leyline::seed::AttributionMode;
use serde::{Deserialize, Serialize};

use super::{Issue, LibraryConfig};

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
    /// A transformer encoder over equal parts of a sample.
    Transformer {
        /// Features of one token: a divisor of the features of a sample.
        patch: usize,
        /// Features of one position inside.
        width: usize,
        /// Heads of each self-attention: a divisor of the width.
        heads: usize,
        /// Blocks.
        layers: usize,
        /// Width inside the two-layer part of a block, as a multiple of `width`.
        #[serde(default = "default_mlp_ratio")]
        mlp_ratio: usize,
    },
    /// Blocks of 2-D convolution and `ReLU`, then a linear layer.
    Cnn2d {
        /// Rows of one sample.
        height: usize,
        /// Columns of one sample.
        width: usize,
        /// Channels of one sample, by default 1.
        #[serde(default = "one_channel")]
        input_channels: usize,
        /// Channels of each block.
        channels: Vec<usize>,
        /// Positions one output sees along each side.
        kernel: usize,
        /// Positions from one output to the next along each side.
        stride: usize,
        /// How an image becomes a vector before the last layer: `mean` or `flatten`.
        #[serde(default)]
        pool: Pool,
    },
}

fn default_mlp_ratio() -> usize {
    HostConfig::DEFAULT_MLP_RATIO
}

fn one_channel() -> usize {
    1
}

impl HostChoice {
    /// Largest sample of any data.
    const MAX_FEATURES: usize = 1 << 20;

    /// A size of samples that allows all that any data allow: the largest one, or the largest whole number of tokens.
    fn most_features(&self) -> usize {
        match self {
            Self::Mlp { .. } | Self::Cnn1d { .. } | Self::Cnn2d { .. } => Self::MAX_FEATURES,
            &Self::Transformer { patch, .. } if (1..=Self::MAX_FEATURES).contains(&patch) => {
                Self::MAX_FEATURES - Self::MAX_FEATURES % patch
            }
            Self::Transformer { .. } => Self::MAX_FEATURES,
        }
    }

    /// The host for samples of so many features and classes.
    #[must_use]
    pub fn sized(&self, num_features: usize, num_classes: usize) -> HostConfig {
        match self.clone() {
            Self::Mlp { hidden } => HostConfig::Mlp { inputs: num_features, hidden, classes: num_classes },
            Self::Cnn1d { channels, kernel, stride, pool } => {
                HostConfig::Cnn1d { length: num_features, channels, kernel, stride, classes: num_classes, pool }
            }
            Self::Transformer { patch, width, heads, layers, mlp_ratio } => {
                let (inputs, classes) = (num_features, num_classes);
                HostConfig::Transformer { inputs, patch, width, heads, layers, mlp_ratio, classes }
            }
            Self::Cnn2d { height, width, input_channels, channels, kernel, stride, pool } => HostConfig::Cnn2d {
                height,
                width,
                input_channels,
                channels,
                kernel,
                stride,
                classes: num_classes,
                pool,
            },
        }
    }

    /// What is wrong where the samples have so many features; a host that takes its size from the data fits them all.
    #[must_use]
    pub fn misfit(&self, num_features: usize) -> Option<Issue> {
        let &Self::Cnn2d { height, width, input_channels, .. } = self else { return None };
        // Sides of a loaded configuration are small; others must not wrap around into a size that fits.
        let size = height.saturating_mul(width).saturating_mul(input_channels);
        (size != num_features).then(|| {
            let message = format!(
                "height {height} times width {width} times input_channels {input_channels} is {size}: expected the \
                 {num_features} features of the data"
            );
            Issue::new("host.cnn2d", message)
        })
    }
}

/// How seeds live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedsConfig {
    /// Width of a seed's bottleneck (features or channels).
    pub seed_width: usize,
    /// Epochs for which a slot stays embargoed after its seed was removed (count); in all it is empty for two more.
    pub embargo_epochs: u64,
    /// How the loss of a microbatch is attributed to seeds: `host_only`, `stage`, `alpha`, `contribution` or `probe`.
    #[serde(default)]
    pub attribution: AttributionMode,
    /// What shares are measured over: `batch` or `sample`.
    #[serde(default)]
    pub attribution_scope: AttributionScope,
    /// Offers the harmful `noise` blueprint too; for control experiments.
    #[serde(default)]
    pub noise_blueprint: bool,
    /// Nonces of accepted commands that are remembered (count).
    #[serde(default = "default_nonce_capacity")]
    pub nonce_capacity: usize,
    /// How the first layer of a new seed starts: `zero`, as drawn, or `grad_max`, from a batch.
    #[serde(default)]
    pub seed_init: InitMode,
    /// Blueprints on offer, of all there are; without it the standard ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blueprints: Option<Vec<String>>,
    /// Parameters that a seed of a blueprint may have (count); without an entry as many as it needs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blueprint_budgets: BTreeMap<String, u64>,
    /// Conditions for stage changes.
    #[serde(default)]
    pub gates: GateConfig,
    /// How often isolation is checked, and what a violation leads to.
    #[serde(default)]
    pub isolation: IsolationConfig,
    /// Where the weights of new seeds come from; they are drawn without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<LibraryConfig>,
}

fn default_nonce_capacity() -> usize {
    // The seed manager's default does not depend on the host.
    KasminaConfig::new(HostConfig::Mlp { inputs: 1, hidden: Vec::new(), classes: 1 }).nonce_capacity
}

impl SeedsConfig {
    /// The seed manager's whole configuration for `host`, with every initial weight drawn from `init_seed`.
    #[must_use]
    pub fn for_host(&self, host: HostConfig, init_seed: u64) -> KasminaConfig {
        KasminaConfig {
            gates: self.gates.clone(),
            attribution: self.attribution,
            attribution_scope: self.attribution_scope,
            isolation: self.isolation.clone(),
            nonce_capacity: self.nonce_capacity,
            seed_width: self.seed_width,
            embargo_epochs: self.embargo_epochs,
            init_seed,
            noise_blueprint: self.noise_blueprint,
            seed_init: self.seed_init,
            blueprints: self.blueprints.clone(),
            blueprint_budgets: self.blueprint_budgets.clone(),
            ..KasminaConfig::new(host)
        }
    }
}

impl Issue {
    /// What the seed manager refuses: a setting of the host, or one of its own section.
    pub(crate) fn of_network(issue: kasmina::ConfigIssue) -> Self {
        let is_host = issue.key == "host" || issue.key.starts_with("host.");
        Self::new(if is_host { issue.key } else { format!("seeds.{}", issue.key) }, issue.message)
    }
}

/// What cannot work in both sections, whatever the data are.
///
/// A kernel wider than a sample, or tokens that do not divide one, show only with the data; the sizes taken here allow all
/// that any data allow.
pub(super) fn issues(host: &HostChoice, seeds: &SeedsConfig) -> Vec<Issue> {
    let whole = seeds.for_host(host.sized(host.most_features(), 2), 0);
    let mut issues: Vec<Issue> = whole.validate().into_iter().map(Issue::of_network).collect();
    issues.extend(seeds.library.iter().flat_map(|library| library.issues(&whole)));
    issues
}
