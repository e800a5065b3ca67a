//! How gradients of one window become one gradient.

use serde::{Deserialize, Serialize};

/// How conflicts between owners are resolved.
///
/// Every method gives each owner's gradient a weight; with the weight 1 for all the plain gradient results. All follow
/// from the inner products of the owners' gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictResolution {
    /// The mean over samples.
    #[default]
    Mean,
    /// Each owner's gradient loses what points against another owner's (Yu et al. 2020).
    #[serde(rename = "pcgrad")]
    PcGrad,
    /// The shortest vector between the owners' gradients (Désidéri 2012; Sener and Koltun 2018).
    Mgda,
    /// The sum of the projections onto the directions that harm no owner (Quinton and Rey 2024).
    #[serde(rename = "upgrad")]
    UpGrad,
    /// The best worst case near the mean (Liu et al. 2021).
    #[serde(rename = "cagrad")]
    CaGrad,
    /// Principal components of one length (Senushkin et al. 2023).
    AlignedMtl,
}

impl ConflictResolution {
    /// Name of the kernel that finds the weights on a GPU.
    pub(super) fn kernel(self) -> &'static str {
        match self {
            Self::Mean => "solve_mean",
            Self::PcGrad => "solve_pcgrad",
            Self::Mgda => "solve_mgda",
            Self::UpGrad => "solve_upgrad",
            Self::CaGrad => "solve_cagrad",
            Self::AlignedMtl => "solve_aligned_mtl",
        }
    }
}

/// How a window is combined and clipped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AggregationConfig {
    /// How conflicts are resolved.
    pub method: ConflictResolution,
    /// Whether owners are told apart for the report even where the method does not need it. It changes no bit of the
    /// result and costs one more read of the gradients.
    pub measure_conflicts: bool,
    /// How far CAGrad goes from the mean, as a part of its norm, in `[0, 1)`.
    pub cagrad_radius: f64,
    /// Largest norm of a domain's gradient; absent leaves gradients as they are.
    pub clip_norm: Option<f64>,
}

impl Default for AggregationConfig {
    /// The mean, not clipped.
    fn default() -> Self {
        Self { method: ConflictResolution::Mean, measure_conflicts: false, cagrad_radius: 0.4, clip_norm: None }
    }
}

impl AggregationConfig {
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
