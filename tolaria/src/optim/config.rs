//! Which optimizer, with which constants.

use leyline::layout::Segment;
use serde::{Deserialize, Serialize};

use super::muon::{self, Matrix};
use super::rules::Element;
use super::{adam_w, lion, sgd};

/// How gradients become updates. As TOML: `optimizer = { kind = "sgd", momentum = 0.9 }`.
///
/// # Examples
/// ```
/// use tolaria::optim::OptimizerConfig;
///
/// let config: OptimizerConfig = serde_json::from_str(r#"{ "kind": "adam_w" }"#)?;
/// assert_eq!(config.name(), "adam_w");
/// let wrong = OptimizerConfig::Sgd { momentum: 1.0, nesterov: false, weight_decay: 0.0 };
/// assert_eq!(wrong.validate()[0].0, "momentum");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Stochastic gradient descent as in PyTorch: `d = g + weight_decay p; v = momentum v + d; p -= lr v`, with
    /// Nesterov `p -= lr (d + momentum v)`.
    Sgd {
        /// In `[0, 1)`; 0 keeps no state.
        #[serde(default)]
        momentum: f64,
        /// Looks ahead by one step of momentum.
        #[serde(default)]
        nesterov: bool,
        /// At least 0; added to the gradient.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101), as in PyTorch.
    AdamW {
        /// Decay of the first moment, in `[0, 1)`.
        #[serde(default = "defaults::beta1")]
        beta1: f64,
        /// Decay of the second moment, in `[0, 1)`.
        #[serde(default = "defaults::beta2")]
        beta2: f64,
        /// Added to the root of the second moment, above 0.
        #[serde(default = "defaults::eps")]
        eps: f64,
        /// At least 0; the parameter shrinks by `lr weight_decay` per step, whatever its gradient.
        #[serde(default = "defaults::weight_decay")]
        weight_decay: f64,
    },
    /// The sign of a momentum: `p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p); m = beta2 m + (1 - beta2) g` (Chen et
    /// al. 2023, arXiv 2302.06675). Its rates are three to ten times smaller than those of AdamW.
    Lion {
        /// Of the direction, in `[0, 1)`.
        #[serde(default = "defaults::beta1")]
        beta1: f64,
        /// Decay of the momentum, in `[0, 1)`.
        #[serde(default = "defaults::lion_beta2")]
        beta2: f64,
        /// At least 0; the parameter shrinks by `lr weight_decay` per step, whatever its gradient.
        #[serde(default = "defaults::weight_decay")]
        weight_decay: f64,
    },
    /// Momentum made orthogonal by five Newton-Schulz iterations (Jordan et al. 2024), for parameters of two dimensions; Adam as
    /// [`Self::AdamW`] for all others, and for those with `embed` in their names, or a part that ends in `head` or is `wte`,
    /// `wpe` or `classifier`. The steps of matrices are as large as Adam's (Liu et al. 2025, arXiv 2502.16982), so that rates
    /// and decay are those of AdamW.
    Muon {
        /// Of matrices, in `[0, 1)`.
        #[serde(default = "defaults::muon_momentum")]
        momentum: f64,
        /// Looks ahead by one step of momentum.
        #[serde(default = "defaults::yes")]
        nesterov: bool,
        /// Of others: decay of the first moment, in `[0, 1)`.
        #[serde(default = "defaults::beta1")]
        beta1: f64,
        /// Of others: decay of the second moment, in `[0, 1)`.
        #[serde(default = "defaults::beta2")]
        beta2: f64,
        /// Of others: added to the root of the second moment, above 0.
        #[serde(default = "defaults::eps")]
        eps: f64,
        /// At least 0; the parameter shrinks by `lr weight_decay` per step, whatever its gradient.
        #[serde(default = "defaults::weight_decay")]
        weight_decay: f64,
    },
}

/// The constants of the papers and of PyTorch.
mod defaults {
    pub(super) fn beta1() -> f64 {
        0.9
    }

    pub(super) fn beta2() -> f64 {
        0.999
    }

    pub(super) fn lion_beta2() -> f64 {
        0.99
    }

    pub(super) fn muon_momentum() -> f64 {
        0.95
    }

    pub(super) fn yes() -> bool {
        true
    }

    pub(super) fn eps() -> f64 {
        1e-8
    }

    pub(super) fn weight_decay() -> f64 {
        0.01
    }
}

impl Default for OptimizerConfig {
    /// AdamW with the constants of the paper, but without weight decay.
    fn default() -> Self {
        Self::AdamW { beta1: defaults::beta1(), beta2: defaults::beta2(), eps: defaults::eps(), weight_decay: 0.0 }
    }
}

impl OptimizerConfig {
    /// What each setting means, by its key inside of the section.
    pub const MEANINGS: &[(&str, &str)] = &[
        ("momentum", "sgd: In `[0, 1)`; 0 keeps no state. muon: Of matrices, in `[0, 1)`; 0.95 when nothing is said."),
        ("nesterov", "sgd, muon: Looks ahead by one step of momentum; muon does when nothing is said."),
        (
            "weight_decay",
            "sgd: At least 0; added to the gradient. adam_w, lion, muon: At least 0; the parameter shrinks by `lr weight_decay` per step, whatever its gradient.",
        ),
        (
            "beta1",
            "adam_w, and muon for what is no matrix: Decay of the first moment, in `[0, 1)`. lion: Weight of the momentum in the direction, in `[0, 1)`.",
        ),
        (
            "beta2",
            "adam_w, and muon for what is no matrix: Decay of the second moment, in `[0, 1)`. lion: Decay of the momentum, in `[0, 1)`; 0.99 when nothing is said.",
        ),
        ("eps", "adam_w, and muon for what is no matrix: Added to the root of the second moment, above 0."),
        (
            "kind",
            "How gradients become updates: stochastic gradient descent, Adam with decoupled weight decay, the sign of a momentum, or momentum made orthogonal for matrices and Adam for others.",
        ),
    ];

    /// Sections of a file (TOML), one for each alternative; sizes are the largest, which limit others.
    pub const EXAMPLES: &[&str] =
        &[r#"{ kind = "adam_w" }"#, r#"{ kind = "sgd" }"#, r#"{ kind = "lion" }"#, r#"{ kind = "muon" }"#];

    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let checks = match *self {
            Self::Sgd { momentum, nesterov, weight_decay } => sgd::checks(momentum, nesterov, weight_decay),
            Self::AdamW { beta1, beta2, eps, weight_decay } => adam_w::checks([beta1, beta2], eps, weight_decay),
            Self::Lion { beta1, beta2, weight_decay } => lion::checks([beta1, beta2], weight_decay),
            Self::Muon { momentum, beta1, beta2, eps, weight_decay, .. } => {
                let of_others = adam_w::checks([beta1, beta2], eps, weight_decay);
                of_others.into_iter().chain([muon::check(momentum)]).collect()
            }
        };
        let broken = checks.into_iter().filter(|(_, sound, _)| !sound);
        broken.map(|(key, _, accepted)| (key.to_owned(), accepted.to_owned())).collect()
    }

    /// The name in configuration files and saved states.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::AdamW { .. } => "adam_w",
            Self::Lion { .. } => "lion",
            Self::Muon { .. } => "muon",
        }
    }

    /// The same without weight decay.
    pub(super) fn without_decay(mut self) -> Self {
        let (Self::Sgd { weight_decay, .. }
        | Self::AdamW { weight_decay, .. }
        | Self::Lion { weight_decay, .. }
        | Self::Muon { weight_decay, .. }) = &mut self;
        *weight_decay = 0.0;
        self
    }

    /// The parameter as a matrix, if it is one to this rule.
    pub(super) fn matrix(&self, segment: &Segment) -> Option<Matrix> {
        if matches!(self, Self::Muon { .. }) { Matrix::of(segment) } else { None }
    }

    /// The update of a parameter at its `steps`th step, from 1; the first one, of a rule over whole matrices.
    pub(super) fn element(&self, matrix: Option<Matrix>, learning_rate: f64, steps: u64) -> Element {
        match *self {
            Self::Sgd { momentum, nesterov, weight_decay } => {
                sgd::element(momentum, nesterov, weight_decay, learning_rate)
            }
            Self::AdamW { beta1, beta2, eps, weight_decay } => {
                adam_w::element([beta1, beta2], eps, weight_decay, learning_rate, steps)
            }
            Self::Lion { beta1, beta2, weight_decay } => lion::element([beta1, beta2], weight_decay, learning_rate),
            Self::Muon { momentum, nesterov, beta1, beta2, eps, weight_decay } => {
                muon::Settings { momentum, nesterov, betas: [beta1, beta2], eps, weight_decay }.element(
                    matrix,
                    learning_rate,
                    steps,
                )
            }
        }
    }

    /// Numbers kept per element of a parameter.
    pub(crate) fn num_moments(&self) -> usize {
        self.element(None, 0.0, 1).num_states()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };

    #[track_caller]
    fn check(json: &str, expected: OptimizerConfig, broken: &[&str]) {
        let config: OptimizerConfig = serde_json::from_str(json).unwrap();
        assert_eq!(config, expected);
        assert_eq!(serde_json::from_str::<OptimizerConfig>(&serde_json::to_string(&config).unwrap()).unwrap(), config);
        assert!(json.contains(&format!("\"{}\"", config.name())));
        let issues = config.validate();
        assert_eq!(issues.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), broken);
    }

    #[test]
    fn settings_have_defaults_and_ranges() {
        check(r#"{"kind":"sgd"}"#, PLAIN, &[]);
        check(
            r#"{"kind":"sgd","momentum":1.0,"nesterov":true,"weight_decay":-1.0}"#,
            OptimizerConfig::Sgd { momentum: 1.0, nesterov: true, weight_decay: -1.0 },
            &["momentum", "weight_decay"],
        );
        check(
            r#"{"kind":"sgd","nesterov":true}"#,
            OptimizerConfig::Sgd { momentum: 0.0, nesterov: true, weight_decay: 0.0 },
            &["nesterov"],
        );
        check(
            r#"{"kind":"adam_w"}"#,
            OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 },
            &[],
        );
        check(
            r#"{"kind":"adam_w","eps":1e-50}"#,
            OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-50, weight_decay: 0.01 },
            &["eps"],
        );
        check(
            r#"{"kind":"adam_w","beta1":-0.1,"beta2":1.0,"eps":0.0,"weight_decay":-2.0}"#,
            OptimizerConfig::AdamW { beta1: -0.1, beta2: 1.0, eps: 0.0, weight_decay: -2.0 },
            &["beta1", "beta2", "eps", "weight_decay"],
        );
    }

    #[test]
    fn lion_has_the_constants_of_its_paper() {
        check(r#"{"kind":"lion"}"#, OptimizerConfig::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.01 }, &[]);
        check(
            r#"{"kind":"lion","beta1":1.0,"beta2":-0.1,"weight_decay":-1.0}"#,
            OptimizerConfig::Lion { beta1: 1.0, beta2: -0.1, weight_decay: -1.0 },
            &["beta1", "beta2", "weight_decay"],
        );
    }

    #[test]
    fn muon_has_the_constants_of_its_papers() {
        let muon = |momentum, nesterov, beta1, eps| OptimizerConfig::Muon {
            momentum,
            nesterov,
            beta1,
            beta2: 0.999,
            eps,
            weight_decay: 0.01,
        };
        check(r#"{"kind":"muon"}"#, muon(0.95, true, 0.9, 1e-8), &[]);
        check(
            r#"{"kind":"muon","momentum":1.0,"nesterov":false,"beta1":1.0,"eps":0.0}"#,
            muon(1.0, false, 1.0, 0.0),
            &["beta1", "eps", "momentum"],
        );
    }

    #[test]
    fn unknown_settings_are_refused() {
        for bad in [r#"{"kind":"sgd","beta1":0.9}"#, r#"{"kind":"adam"}"#, r#"{"momentum":0.9}"#] {
            assert!(serde_json::from_str::<OptimizerConfig>(bad).is_err(), "{bad} was accepted");
        }
    }
}
