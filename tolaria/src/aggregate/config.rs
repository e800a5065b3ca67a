//! How gradients of one window become one gradient.

use super::weighting::{ConflictResolution, Parameters};
use crate::cpu::{SINGLE, is_single};

/// How a window is combined and clipped.
/// The default is the mean, not clipped.
///
/// # Examples
/// ```
/// use tolaria::aggregate::{AggregationConfig, ConflictResolution};
///
/// let mean = AggregationConfig::default();
/// let resolved = AggregationConfig { method: ConflictResolution::PcGrad, ..mean };
/// assert_eq!([mean, resolved].map(|config| config.tells_owners_apart()), [false, true]);
/// let of_norm = |norm| AggregationConfig { clip_norm: Some(norm), ..mean }.validate();
/// assert_eq!((of_norm(1.0).len(), of_norm(0.0)[0].0.as_str(), of_norm(1e-50)[0].0.as_str()), (0, "clip_norm", "clip_norm"));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AggregationConfig {
    /// How conflicts are resolved.
    pub method: ConflictResolution,
    /// Whether owners are told apart for the report even where the method does not need it. It changes no bit of the
    /// result and costs one more read of the gradients.
    pub measure_conflicts: bool,
    /// Parameters of the methods.
    pub parameters: Parameters,
    /// Largest norm of a domain's gradient; absent leaves gradients as they are.
    pub clip_norm: Option<f64>,
}

impl AggregationConfig {
    /// Every setting that cannot work, as (key, what is accepted).
    #[must_use]
    pub fn validate(&self) -> Vec<(String, String)> {
        let clip_norm = self.clip_norm.filter(|norm| !is_single(*norm));
        let clip_norm = clip_norm.map(|_| ("clip_norm".to_owned(), format!("{SINGLE}, or absent")));
        let others = self.parameters.refusals().map(|(key, accepted)| (key.to_owned(), accepted.to_owned()));
        clip_norm.into_iter().chain(others).collect()
    }

    /// Whether owners are told apart for the report alone.
    pub(super) fn only_measures(&self) -> bool {
        self.method == ConflictResolution::Mean
    }

    /// Whether inner products are worth their cost.
    #[must_use]
    pub fn tells_owners_apart(&self) -> bool {
        self.measure_conflicts || self.method != ConflictResolution::Mean
    }
}
