//! Configuration of the seed manager.

use std::collections::BTreeMap;

use leyline::command::Blend;
pub use leyline::config::ConfigIssue;
use leyline::seed::AttributionMode;
use serde::{Deserialize, Serialize};

use crate::attribution::AttributionScope;
use crate::blueprint::{Blueprint as _, Registry, Widen};
use crate::host::HostConfig;
use crate::init::InitMode;
use crate::isolation::IsolationConfig;
use crate::lifecycle::GateConfig;
use crate::weight::ElementType;

/// What a training step keeps of its forward pass for the backward pass. No result differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationCheckpointing {
    /// Whatever the backward pass reads.
    #[default]
    None,
    /// Of a transformer or a language model, what enters each segment between two slots and each slot with seeds that act; the rest is
    /// computed again when it is needed. What lies behind the last slot is needed at once, and kept.
    Blocks,
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
    /// What shares are measured over.
    #[serde(default)]
    pub attribution_scope: AttributionScope,
    /// How often isolation is checked.
    #[serde(default)]
    pub isolation: IsolationConfig,
    /// What a pass of a seed in the shadow and its backward pass may cost, in those of the network (ratio, above 0): a seed that costs more
    /// learns from the first samples of each microbatch, from one at least; without it every seed learns from all.
    #[serde(default)]
    pub shadow_cost: Option<f64>,
    /// Width of a seed's bottleneck (features or channels).
    #[serde(default = "default_seed_width")]
    pub seed_width: usize,
    /// Epochs for which a removed seed stays embargoed (count). Its slot is empty for two more: the end of the epoch of
    /// the removal begins the embargo, and after it comes one epoch of reset. With 0 the slot is free at the second end
    /// of an epoch after the removal.
    #[serde(default = "default_embargo_epochs")]
    pub embargo_epochs: u64,
    /// Seed of every initial weight: the same number gives the same weights.
    #[serde(default)]
    pub init_seed: u64,
    /// Offers the harmful `noise` blueprint too; for control experiments.
    #[serde(default)]
    pub noise_blueprint: bool,
    /// Type of weights and signals.
    #[serde(default)]
    pub dtype: ElementType,
    /// What training keeps for its backward pass.
    #[serde(default)]
    pub activation_checkpointing: ActivationCheckpointing,
    /// How the first layer of a new seed starts.
    #[serde(default)]
    pub seed_init: InitMode,
    /// Blueprints on offer, of all there are; without it the standard ones. The order does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blueprints: Option<Vec<String>>,
    /// Elements that a seed of a blueprint may have (count); without an entry as many as it needs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blueprint_budgets: BTreeMap<String, u64>,
    /// How seeds are going to be blended: elements that such a blend has of its own count in what is on offer.
    #[serde(default, skip_serializing_if = "is_residual")]
    pub offered_blend: Blend,
}

fn is_residual(blend: &Blend) -> bool {
    *blend == Blend::Residual
}

fn default_seed_width() -> usize {
    32
}

fn default_embargo_epochs() -> u64 {
    3
}

impl KasminaConfig {
    /// Largest accepted bottleneck.
    pub(crate) const MAX_SEED_WIDTH: usize = 65_536;

    /// The defaults for this host.
    #[must_use]
    pub fn new(host: HostConfig) -> Self {
        Self {
            host,
            gates: GateConfig::default(),
            attribution: AttributionMode::default(),
            attribution_scope: AttributionScope::default(),
            isolation: IsolationConfig::default(),
            shadow_cost: None,
            seed_width: default_seed_width(),
            embargo_epochs: default_embargo_epochs(),
            init_seed: 0,
            noise_blueprint: false,
            dtype: ElementType::default(),
            activation_checkpointing: ActivationCheckpointing::default(),
            seed_init: InitMode::default(),
            blueprints: None,
            blueprint_budgets: BTreeMap::new(),
            offered_blend: Blend::default(),
        }
    }

    /// Whether the host has slots around its layers: where the blueprint for them is on offer.
    pub(crate) fn has_around(&self) -> bool {
        self.blueprints.iter().flatten().any(|name| name == Widen.name())
    }

    /// Everything that is wrong with the values; empty when they can be used.
    #[must_use]
    pub fn validate(&self) -> Vec<ConfigIssue> {
        let mut issues = self.validate_values();
        issues.extend(Registry::on_offer(self).issues(self));
        issues
    }

    /// As [`Self::validate`], but for the names of blueprints.
    pub(crate) fn validate_values(&self) -> Vec<ConfigIssue> {
        let mut issues = self.host.validate();
        issues.extend(self.gates.validate());
        let has_blocks = matches!(self.host, HostConfig::Transformer { .. } | HostConfig::LanguageModel { .. });
        if self.activation_checkpointing == ActivationCheckpointing::Blocks && !has_blocks {
            let message = "is `blocks`, and the host has none: expected `none`, or a `transformer` or `language_model`";
            issues.push(ConfigIssue::new("activation_checkpointing", message));
        }
        if let Some(cost) = self.shadow_cost.filter(|cost| !(*cost > 0.0 && cost.is_finite())) {
            let message = format!("is {cost}: expected a finite number above 0");
            issues.push(ConfigIssue::new("shadow_cost", message));
        }
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
        check(
            &format!(r#"{{{host},"shadow_cost":0.0}}"#),
            Some("`shadow_cost` is 0: expected a finite number above 0"),
        );
        check(&format!(r#"{{{host},"seed_with":3}}"#), Some("unknown field `seed_with`"));
        check(
            &format!(r#"{{{host},"gates":{{"min_gradient_health":2.0}}}}"#),
            Some("`gates.min_gradient_health` is 2"),
        );
        check(&format!(r#"{{{host},"attribution_scope":"sample","isolation":{{"strict":true}}}}"#), None);
        check(&format!(r#"{{{host},"isolation":{{"check_every":2}}}}"#), Some("unknown field `check_every`"));
        check(
            r#"{"host":{"mlp":{"inputs":0,"hidden":[4],"classes":10}}}"#,
            Some("is 0: expected none, it follows from the data at line 1 column 26"),
        );
        check(r#"{"host":{"mlp":{"inputs":64,"hidden":[4,0],"classes":10}}}"#, Some("`host.mlp.hidden[1]` is 0"));
        check(r#"{"host":{"mlp":{"inputs":64,"hidden":[4],"classes":10,"depth":2}}}"#, Some("unknown field `depth`"));
        check(&format!(r#"{{{host},"dtype":"bf16","seed_init":"grad_max","blueprints":["noise"]}}"#), None);
        check(
            &format!(r#"{{{host},"dtype":"f16"}}"#),
            Some("unknown variant `f16`, expected one of `f32`, `f64`, `bf16`"),
        );
        check(&format!(r#"{{{host},"seed_init":"best"}}"#), Some("unknown variant `best`"));
        for (names, part) in [
            (
                r#"["mlp","mpl"]"#,
                "`blueprints[1]` is `mpl`: expected one of attention, causal_attention, conv, depthwise, low_rank, mlp, noise, norm, norm_mlp, widen",
            ),
            (r#"["mlp","mlp"]"#, "`blueprints[1]` is `mlp` again"),
            ("[]", "`blueprints` is empty"),
        ] {
            check(&format!(r#"{{{host},"blueprints":{names}}}"#), Some(part));
        }
        let blocks = format!(r#"{{{host},"activation_checkpointing":"blocks"}}"#);
        check(&blocks, Some("`activation_checkpointing` is `blocks`, and the host has none: expected `none`"));
        let unknown = format!(r#"{{{host},"activation_checkpointing":"all"}}"#);
        check(&unknown, Some("unknown variant `all`, expected `none` or `blocks`"));
        let noise = format!(r#"{{{host},"noise_blueprint":true,"blueprints":["mlp"]}}"#);
        check(&noise, Some("`noise_blueprint` is true, but `blueprints` does not name `noise`"));
        check(
            &format!(r#"{{{host},"blueprint_budgets":{{"noise":10}}}}"#),
            Some(
                "`blueprint_budgets.noise` names no blueprint on offer: expected one of attention, causal_attention, conv, mlp, norm_mlp",
            ),
        );
        check(&format!(r#"{{{host},"blueprint_budgets":{{"mlp":0}}}}"#), Some("`blueprint_budgets.mlp` is 0"));
        let cnn = r#"{"host":{"cnn1d":{"length":8,"channels":[4],"kernel":9,"stride":1,"classes":3,"pool":"mean"}}}"#;
        check(cnn, Some("`host.cnn1d.kernel` is 9"));
    }
}
