//! What the rules remember.

use std::collections::{BTreeSet, VecDeque};

use leyline::id::EpochIndex;
use leyline::state::SystemState;
use serde::{Deserialize, Serialize};

use super::{RiskRule, Verdict};

/// Epochs that are looked at together, at most and at least.
const WINDOW: usize = 8;
const LEAST: usize = 4;

/// What the rules remember from decision to decision.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RiskMemory {
    /// The first validation loss above 0.
    first_loss: Option<f64>,
    last_loss: Option<f64>,
    /// Rises of the validation loss, in parts of the first one, the latest last.
    rises: VecDeque<f64>,
    /// Gradient norms, the latest last.
    norms: VecDeque<f64>,
    /// The last epoch for which a spike holds growth back.
    conservative_until: Option<EpochIndex>,
    /// What fired at the decision before.
    fired: BTreeSet<RiskRule>,
    /// Whether the run began before there were rules: it goes on without.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_off: bool,
}

impl RiskMemory {
    /// Of a run that began before there were rules: what they compare with was not kept.
    pub(crate) fn of_an_earlier_version() -> Self {
        Self { is_off: true, ..Self::default() }
    }

    pub(super) fn is_of_an_earlier_version(&self) -> bool {
        self.is_off
    }

    /// Takes in what was measured; what is absent or not finite begins its window anew.
    pub(super) fn observe(&mut self, state: &SystemState) {
        let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
        let loss = finite(state.validation.as_ref().map(|score| score.loss));
        let before = std::mem::replace(&mut self.last_loss, loss);
        self.first_loss = self.first_loss.or(loss.filter(|loss| *loss > 0.0));
        match (before, loss, self.first_loss) {
            (Some(before), Some(loss), Some(first)) => keep(&mut self.rises, (loss - before) / first),
            _ => self.rises.clear(),
        }
        match finite(state.gradient_norm) {
            Some(norm) => keep(&mut self.norms, norm),
            None => self.norms.clear(),
        }
    }

    pub(super) fn spiked(&mut self, epoch: EpochIndex, epochs: u64) {
        self.conservative_until = Some(EpochIndex(epoch.0.saturating_add(epochs)));
    }

    /// Epochs, this one included, for which an earlier spike still holds growth back.
    pub(super) fn conservative_epochs(&self, epoch: EpochIndex) -> Option<u64> {
        self.conservative_until?.0.checked_sub(epoch.0).map(|left| left + 1)
    }

    pub(super) fn is_loss_unmeasured(&self) -> bool {
        self.last_loss.is_none()
    }

    /// The latest rise of the validation loss.
    pub(super) fn rise(&self) -> Option<f64> {
        self.rises.back().copied()
    }

    /// Root of the mean square of the latest rises, falls taken for 0.
    pub(super) fn volatility(&self) -> Option<f64> {
        let squares: f64 = self.rises.iter().map(|rise| rise.max(0.0).powi(2)).sum();
        (self.rises.len() >= LEAST).then(|| (squares / self.rises.len() as f64).sqrt())
    }

    /// Variance of the latest gradient norms, in parts of their squared mean.
    pub(super) fn gradient_variance(&self) -> Option<f64> {
        let count = self.norms.len() as f64;
        let mean = self.norms.iter().sum::<f64>() / count;
        let squares: f64 = self.norms.iter().map(|norm| (norm - mean).powi(2)).sum();
        (self.norms.len() >= LEAST).then_some(squares / count / (mean * mean))
    }

    /// Those of the verdicts that begin with this decision.
    pub(crate) fn beginning<'a>(&mut self, verdicts: &'a [Verdict]) -> Vec<&'a Verdict> {
        let before = std::mem::replace(&mut self.fired, verdicts.iter().map(|verdict| verdict.rule).collect());
        verdicts.iter().filter(|verdict| !before.contains(&verdict.rule)).collect()
    }
}

fn keep(window: &mut VecDeque<f64>, value: f64) {
    window.push_back(value);
    if window.len() > WINDOW {
        window.pop_front();
    }
}
