//! The record of one seed: its stage, age, alpha and evidence, and the moves between stages.
#![deny(clippy::wildcard_enum_match_arm)]

use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::seed::{Counterfactual, Evidence, GateReport, GradientHealth, SeedStage, SeedState, Transition};
use leyline::unit::Alpha;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::lifecycle::gate::{self, Subject};
use crate::lifecycle::{AlphaController, GateConfig, measured};

/// Everything about a seed but its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeedRecord {
    pub(crate) id: SeedId,
    pub(crate) slot: SlotId,
    pub(crate) blueprint: BlueprintId,
    /// Width of its bottleneck.
    pub(crate) width: usize,
    /// Trainable elements; 0 once pruned.
    pub(crate) num_parameters: u64,
    pub(crate) alpha: AlphaController,
    stage: SeedStage,
    age_epochs: u64,
    epochs_in_stage: u64,
    #[serde(with = "measured::counterfactual")]
    counterfactual: Option<Counterfactual>,
    #[serde(with = "measured::gradient")]
    gradient: Option<GradientHealth>,
    last_gate: Option<GateReport>,
}

impl SeedRecord {
    /// A seed that just germinated.
    pub(crate) fn germinated(
        id: SeedId,
        slot: SlotId,
        blueprint: BlueprintId,
        width: usize,
        num_parameters: u64,
    ) -> Self {
        Self {
            id,
            slot,
            blueprint,
            width,
            num_parameters,
            alpha: AlphaController::new(Alpha::ZERO),
            stage: SeedStage::Germinated,
            age_epochs: 0,
            epochs_in_stage: 0,
            counterfactual: None,
            gradient: None,
            last_gate: None,
        }
    }

    pub(crate) fn stage(&self) -> SeedStage {
        self.stage
    }

    /// Whether it bars its slot for others.
    pub(crate) fn occupies_slot(&self) -> bool {
        match self.stage {
            SeedStage::Germinated
            | SeedStage::Training
            | SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => true,
            SeedStage::Dormant | SeedStage::Fossilized => false,
        }
    }

    /// Refuses a move that the lifecycle does not allow.
    pub(crate) fn check_move(&self, to: SeedStage) -> Result<(), Error> {
        if self.stage.may_become(to) {
            Ok(())
        } else {
            Err(Error::IllegalTransition { seed: self.id, from: self.stage, to })
        }
    }

    /// The verdict of the gate before `to`; none when the move has no gate.
    pub(crate) fn judge(&self, gates: &GateConfig, to: SeedStage) -> Option<GateReport> {
        let subject = Subject {
            stage: self.stage,
            epochs_in_stage: self.epochs_in_stage,
            alpha: &self.alpha,
            counterfactual: self.counterfactual,
            gradient: self.gradient,
        };
        gate::evaluate(gates, &subject, to)
    }

    /// Asks the gate a live seed stands before, and keeps the verdict as the latest one. Returns it when it lets the
    /// seed pass and did not before.
    pub(crate) fn judge_next(&mut self, gates: &GateConfig) -> Option<&GateReport> {
        let next = match self.stage {
            SeedStage::Germinated => SeedStage::Training,
            SeedStage::Training => SeedStage::Blending,
            SeedStage::Blending => SeedStage::Holding,
            SeedStage::Holding => SeedStage::Fossilized,
            SeedStage::Dormant
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => return None,
        };
        let verdict = self.judge(gates, next);
        let before = std::mem::replace(&mut self.last_gate, verdict);
        let passed_before = before.is_some_and(|before| before.target == next && before.passed);
        self.last_gate.as_ref().filter(|report| report.passed && !passed_before)
    }

    /// Moves on. What was measured before does not count in the new stage.
    ///
    /// # Errors
    /// [`Error::IllegalTransition`]; nothing changed.
    pub(crate) fn move_to(
        &mut self,
        to: SeedStage,
        verdict: Option<GateReport>,
        reason: String,
    ) -> Result<Transition, Error> {
        self.check_move(to)?;
        let from = std::mem::replace(&mut self.stage, to);
        self.epochs_in_stage = 0;
        (self.counterfactual, self.gradient) = (None, None);
        if verdict.is_some() {
            self.last_gate = verdict;
        }
        if to == SeedStage::Pruned {
            self.alpha = AlphaController::new(Alpha::ZERO);
            self.num_parameters = 0;
        }
        Ok(Transition { seed: self.id, from, to, reason })
    }

    /// Keeps what was measured; what was not measured this time stays as it was.
    pub(crate) fn record(&mut self, evidence: &Evidence) {
        self.counterfactual = evidence.counterfactual.or(self.counterfactual);
        self.gradient = evidence.gradient.or(self.gradient);
    }

    /// Ends an epoch: the seed grows older, and one that was removed moves towards the release of its slot.
    pub(crate) fn finish_epoch(&mut self, embargo_epochs: u64) -> Result<Vec<Transition>, Error> {
        self.age_epochs += 1;
        self.epochs_in_stage += 1;
        let mut transitions = Vec::new();
        while let Some((next, reason)) = self.due(embargo_epochs) {
            transitions.push(self.move_to(next, None, reason.to_owned())?);
        }
        Ok(transitions)
    }

    fn due(&self, embargo_epochs: u64) -> Option<(SeedStage, &'static str)> {
        let (epochs, next, reason) = match self.stage {
            SeedStage::Pruned => (1, SeedStage::Embargoed, "the slot is barred after a removal"),
            SeedStage::Embargoed => (embargo_epochs, SeedStage::Resetting, "the embargo is over"),
            SeedStage::Resetting => (1, SeedStage::Dormant, "the slot is free"),
            SeedStage::Dormant
            | SeedStage::Germinated
            | SeedStage::Training
            | SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Fossilized => return None,
        };
        (self.epochs_in_stage >= epochs).then_some((next, reason))
    }

    /// The seed as others see it.
    pub(crate) fn export(&self) -> SeedState {
        let alpha_target = match self.stage {
            // In shadow training the side loss sees the seed in full, and that is where blending will lead.
            SeedStage::Germinated | SeedStage::Training => Alpha::ONE,
            SeedStage::Dormant
            | SeedStage::Blending
            | SeedStage::Holding
            | SeedStage::Fossilized
            | SeedStage::Pruned
            | SeedStage::Embargoed
            | SeedStage::Resetting => self.alpha.target(),
        };
        SeedState {
            seed_id: self.id,
            slot: self.slot.clone(),
            blueprint: self.blueprint.clone(),
            stage: self.stage,
            age_epochs: self.age_epochs,
            epochs_in_stage: self.epochs_in_stage,
            alpha: self.alpha.alpha(),
            alpha_target,
            alpha_mode: self.alpha.mode(),
            num_parameters: self.num_parameters,
            counterfactual: self.counterfactual,
            gradient: self.gradient,
            last_gate: self.last_gate.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use leyline::id::EpochIndex;

    use super::*;

    fn record() -> SeedRecord {
        let (slot, blueprint) = (SlotId::new("input").unwrap(), BlueprintId::new("mlp").unwrap());
        SeedRecord::germinated(SeedId(1), slot, blueprint, 8, 76)
    }

    #[test]
    fn every_pair_of_stages_moves_or_is_refused_as_the_contract_says() {
        for from in SeedStage::ALL {
            for to in SeedStage::ALL {
                let mut seed = SeedRecord { stage: from, epochs_in_stage: 3, ..record() };
                let before = seed.clone();
                match seed.move_to(to, None, "test".into()) {
                    Ok(transition) => {
                        assert!(from.may_become(to), "{from} became {to}");
                        assert_eq!((transition.from, transition.to, seed.stage), (from, to, to));
                        assert_eq!(seed.epochs_in_stage, 0);
                    }
                    Err(Error::IllegalTransition { .. }) => {
                        assert!(!from.may_become(to), "{from} did not become {to}");
                        assert_eq!(seed, before);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn a_move_forgets_the_evidence_of_the_stage_before() {
        let mut seed = record();
        let gradient = Some(GradientHealth { norm: 1.0, host_ratio: None, health: 1.0 });
        let measured = Counterfactual { loss_gain: 1.0, std_error: 0.0, accuracy_gain_pp: 0.0, num_samples: 1 };
        seed.record(&Evidence { seed: seed.id, epoch: EpochIndex(1), counterfactual: Some(measured), gradient });
        seed.record(&Evidence { seed: seed.id, epoch: EpochIndex(2), counterfactual: None, gradient: None });
        assert_eq!((seed.export().counterfactual, seed.export().gradient), (Some(measured), gradient));
        seed.move_to(SeedStage::Training, None, String::new()).unwrap();
        assert_eq!((seed.export().counterfactual, seed.export().gradient), (None, None));
    }

    #[track_caller]
    fn check_cooldown(embargo_epochs: u64, stages: &[SeedStage]) {
        let mut seed = record();
        seed.move_to(SeedStage::Pruned, None, String::new()).unwrap();
        for (epoch, &expected) in stages.iter().enumerate() {
            assert!(seed.occupies_slot());
            seed.finish_epoch(embargo_epochs).unwrap();
            assert_eq!(seed.stage, expected, "after epoch {}", epoch + 1);
        }
        assert!(!seed.occupies_slot());
    }

    #[test]
    fn a_removed_seed_bars_its_slot_for_the_embargo_and_one_epoch_of_reset() {
        use SeedStage::{Dormant, Embargoed, Resetting};
        check_cooldown(0, &[Resetting, Dormant]);
        check_cooldown(1, &[Embargoed, Resetting, Dormant]);
        check_cooldown(3, &[Embargoed, Embargoed, Embargoed, Resetting, Dormant]);
    }
}
