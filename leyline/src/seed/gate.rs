//! Gates: what guards a change of stage, and their verdicts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::seed::SeedStage;

/// A gate. The numbers are the wire numbers of the older system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Gate {
    /// Before germination: slot, blueprint, shape and budget.
    Sanity = 1,
    /// Before training: the seed has its weights and its gradients can be kept apart.
    GradientHealth = 2,
    /// Before blending: it has learned something that helps, steadily.
    Stability = 3,
    /// Before holding: it acts in full.
    Interface = 4,
    /// Before becoming permanent: it helps the whole network, at a bearable cost.
    SystemImpact = 5,
    /// Before its slot is free: nothing of it is left.
    Reset = 6,
}

impl Gate {
    /// Every gate in wire order.
    pub const ALL: [Self; 6] =
        [Self::Sanity, Self::GradientHealth, Self::Stability, Self::Interface, Self::SystemImpact, Self::Reset];

    /// The wire number.
    #[must_use]
    pub const fn wire(self) -> u8 {
        self as u8
    }

    /// The gate before a move between these stages; none for a move that needs no evidence.
    #[must_use]
    pub const fn before(from: SeedStage, to: SeedStage) -> Option<Self> {
        match (from, to) {
            // A way back, which takes influence away.
            (SeedStage::Holding, SeedStage::Blending) => None,
            (_, SeedStage::Germinated) => Some(Self::Sanity),
            (_, SeedStage::Training) => Some(Self::GradientHealth),
            (_, SeedStage::Blending) => Some(Self::Stability),
            (_, SeedStage::Holding) => Some(Self::Interface),
            (_, SeedStage::Fossilized) => Some(Self::SystemImpact),
            (_, SeedStage::Dormant) => Some(Self::Reset),
            (_, SeedStage::Pruned | SeedStage::Embargoed | SeedStage::Resetting) => None,
        }
    }

    /// The short name, `G0` to `G5`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sanity => "G0",
            Self::GradientHealth => "G1",
            Self::Stability => "G2",
            Self::Interface => "G3",
            Self::SystemImpact => "G4",
            Self::Reset => "G5",
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Verdict of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "GateReportForm")]
pub struct GateReport {
    /// The gate.
    pub gate: Gate,
    /// Stage it guards.
    pub target: SeedStage,
    /// Whether the seed may pass.
    pub passed: bool,
    /// How far its conditions are met, in `[0, 1]`; 1 exactly when it lets the seed pass. For people and policies: what
    /// counts is `passed`.
    pub score: f64,
    /// Conditions that were met.
    pub met: Vec<String>,
    /// Conditions that were not met, with the measured value or `not measured`.
    pub failed: Vec<String>,
}

/// A report as it may have been written: earlier versions named neither gate nor score.
#[derive(Deserialize)]
struct GateReportForm {
    gate: Option<Gate>,
    target: SeedStage,
    passed: bool,
    score: Option<f64>,
    met: Vec<String>,
    failed: Vec<String>,
}

/// A verdict on a move that has no gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no gate is before {0}")]
struct NoGate(SeedStage);

impl TryFrom<GateReportForm> for GateReport {
    type Error = NoGate;

    fn try_from(form: GateReportForm) -> Result<Self, NoGate> {
        let GateReportForm { gate, target, passed, score, met, failed } = form;
        let gate = gate.or(Gate::before(SeedStage::Dormant, target)).ok_or(NoGate(target))?;
        #[expect(clippy::cast_precision_loss, reason = "a gate has a handful of conditions")]
        let share = || if passed { 1.0 } else { met.len() as f64 / (met.len() + failed.len()).max(1) as f64 };
        let score = score.unwrap_or_else(share);
        Ok(Self { gate, target, passed, score, met, failed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_an_earlier_version_gets_its_gate_from_its_target() {
        let old = r#"{"target":"holding","passed":false,"met":["a"],"failed":["b"]}"#;
        let read: GateReport = serde_json::from_str(old).unwrap();
        assert_eq!((read.gate, read.score.to_bits()), (Gate::Interface, 0.5_f64.to_bits()));
        assert_eq!(serde_json::from_str::<GateReport>(&serde_json::to_string(&read).unwrap()).unwrap(), read);
        assert!(
            serde_json::from_str::<GateReport>(r#"{"target":"pruned","passed":true,"met":[],"failed":[]}"#).is_err()
        );
    }

    #[test]
    fn wire_numbers_and_short_names_agree() {
        for gate in Gate::ALL {
            assert_eq!(format!("G{}", gate.wire() - 1), gate.name());
        }
    }

    #[test]
    fn every_legal_move_onward_has_a_gate_and_no_removal_has_one() {
        for from in SeedStage::ALL {
            for &to in from.successors() {
                let gate = Gate::before(from, to);
                let removal = matches!(to, SeedStage::Pruned | SeedStage::Embargoed | SeedStage::Resetting);
                let back = (from, to) == (SeedStage::Holding, SeedStage::Blending);
                assert_eq!(gate.is_none(), removal || back, "{from} to {to}: {gate:?}");
            }
        }
    }
}
