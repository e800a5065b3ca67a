//! The `[seeds]` section, and what is looked at together with `[host]`, which the seed manager defines.

use std::collections::BTreeMap;

use kasmina::attribution::AttributionScope;
use kasmina::host::HostConfig;
use kasmina::init::InitMode;
use kasmina::isolation::IsolationConfig;
use kasmina::lifecycle::GateConfig;
use kasmina::{ActivationCheckpointing, KasminaConfig};
use leyline::seed::{AttributionMode, Gate};
use serde::{Deserialize, Serialize};
use tamiyo::policy::heuristic::GateEpochs;

use super::{Issue, LibraryConfig};

/// How seeds live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedsConfig {
    /// Width of a seed's bottleneck (features or channels).
    pub seed_width: usize,
    /// What a pass of a seed in the shadow and its backward pass may cost, in those of the network (above 0): a seed that costs more learns
    /// from the first samples of each microbatch. Runs of earlier versions have none: their seeds learn from all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_cost: Option<f64>,
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
    /// Accepted for configurations of earlier versions, and without effect: numbers refuse what was accepted before.
    #[serde(default = "default_nonce_capacity")]
    pub nonce_capacity: usize,
    /// What training keeps for its backward pass: `none` (everything stays), or `blocks`: inputs of segments, the rest being computed again.
    #[serde(default)]
    pub activation_checkpointing: ActivationCheckpointing,
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
    10_000
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
            seed_width: self.seed_width,
            shadow_cost: self.shadow_cost,
            embargo_epochs: self.embargo_epochs,
            init_seed,
            noise_blueprint: self.noise_blueprint,
            activation_checkpointing: self.activation_checkpointing,
            seed_init: self.seed_init,
            blueprints: self.blueprints.clone(),
            blueprint_budgets: self.blueprint_budgets.clone(),
            ..KasminaConfig::new(host)
        }
    }

    /// Epochs that gates ask for; 0 of those that are switched off.
    #[must_use]
    pub fn gate_epochs(&self) -> GateEpochs {
        let GateConfig { training_min_epochs, blending_min_epochs, holding_min_epochs, off, .. } = &self.gates;
        let of = |gate: Gate, epochs: &u64| if off.contains(&gate) { 0 } else { *epochs };
        GateEpochs {
            training: of(Gate::Stability, training_min_epochs),
            blending: of(Gate::Interface, blending_min_epochs),
            holding: of(Gate::SystemImpact, holding_min_epochs),
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
pub(super) fn issues(host: &HostConfig, seeds: &SeedsConfig) -> Vec<Issue> {
    let mut issues = host.validate_open();
    // The host was looked at; what is on offer does not depend on it.
    let whole = seeds.for_host(HostConfig::Mlp { inputs: 1, hidden: Vec::new(), classes: 2 }, 0);
    // Nor does this one know its blocks, which are looked at with the data.
    let whole = KasminaConfig { activation_checkpointing: ActivationCheckpointing::None, ..whole };
    issues.extend(whole.validate());
    let mut issues: Vec<Issue> = issues.into_iter().map(Issue::of_network).collect();
    issues.extend(seeds.library.iter().flat_map(|library| library.issues(&whole)));
    issues
}
