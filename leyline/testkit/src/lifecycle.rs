//! The lifecycle of seeds without tensors: what [`FakeSeedManager`](crate::fake_seed_manager::FakeSeedManager) and
//! [`World`](crate::world::World) have in common. Every legal move succeeds: there are no gates.

use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::seed::{AlphaMode, Applied, BlueprintOffer, Evidence, SeedStage, SeedState, SlotState, Transition};
use leyline::unit::Alpha;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::toy::Graft;

/// Epochs for which a slot is barred after a removal.
const EMBARGO_EPOCHS: u64 = 2;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RampProgress {
    seed: SeedId,
    from: Alpha,
    ramp: AlphaRamp,
    steps_taken: u64,
    then_cull: bool,
}

/// Seeds and slots with their clocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lifecycle {
    seeds: Vec<SeedState>,
    slots: Vec<SlotState>,
    ramps: Vec<RampProgress>,
    num_germinated: u32,
}

impl Lifecycle {
    /// `num_slots` free slots `slot-0`, `slot-1`, …, each with the blueprints `linear` and `linear-wide` on offer.
    #[must_use]
    pub fn new(num_slots: usize) -> Self {
        let offer = |name: &str| BlueprintOffer {
            blueprint: BlueprintId::new(name).expect("lower case letters and a dash"),
            num_parameters: Graft::NUM_PARAMETERS,
        };
        let slots = (0..num_slots)
            .map(|index| SlotState {
                slot: SlotId::new(format!("slot-{index}")).expect("lower case letters, a dash and digits"),
                occupant: None,
                num_fossilized: 0,
                offers: vec![offer("linear"), offer("linear-wide")],
            })
            .collect();
        Self { seeds: Vec::new(), slots, ramps: Vec::new(), num_germinated: 0 }
    }

    /// Seeds from germination to reset, ordered by id; fossilized ones stay.
    #[must_use]
    pub fn seeds(&self) -> &[SeedState] {
        &self.seeds
    }

    /// Slots in network order.
    #[must_use]
    pub fn slots(&self) -> &[SlotState] {
        &self.slots
    }

    /// Carries out `operation`, whole or not at all.
    ///
    /// # Errors
    /// [`Error::UnknownSeed`], [`Error::IllegalTransition`], or [`Error::Rejected`] for a germination that has no place.
    pub fn apply(&mut self, operation: &Operation) -> Result<Applied, Error> {
        match operation {
            Operation::Germinate { slot, blueprint, .. } => self.germinate(slot, blueprint),
            Operation::StartTraining { seed } => self.advance(*seed, SeedStage::Training, operation),
            Operation::StartBlending { seed, ramp } => {
                let applied = self.advance(*seed, SeedStage::Blending, operation)?;
                self.start_ramp(*seed, *ramp);
                Ok(applied)
            }
            Operation::Hold { seed } => self.advance(*seed, SeedStage::Holding, operation),
            Operation::Fossilize { seed } => {
                let applied = self.advance(*seed, SeedStage::Fossilized, operation)?;
                self.ramps.retain(|ramp| ramp.seed != *seed);
                let slot = self.slot_of(*seed);
                slot.occupant = None;
                slot.num_fossilized += 1;
                Ok(applied)
            }
            Operation::Cull { seed } => self.cull(*seed, operation),
            Operation::CullGradually { seed, steps, curve } => {
                let acts = self.state_mut(*seed)?.stage.acts_on_output();
                if *steps == 0 || !acts || self.state_mut(*seed)?.stage == SeedStage::Fossilized {
                    return self.cull(*seed, operation);
                }
                self.start_ramp(*seed, AlphaRamp { target: Alpha::ZERO, steps: *steps, curve: *curve });
                self.ramps.iter_mut().filter(|ramp| ramp.seed == *seed).for_each(|ramp| ramp.then_cull = true);
                Ok(Applied { seed: *seed, transitions: Vec::new(), topology_changed: false })
            }
            Operation::Pause { seed } => self.set_paused(*seed, true),
            Operation::Resume { seed } => self.set_paused(*seed, false),
        }
    }

    /// Keeps evidence for all the seeds named, or for none.
    ///
    /// # Errors
    /// [`Error::UnknownSeed`].
    pub fn record(&mut self, evidence: &[Evidence]) -> Result<(), Error> {
        for item in evidence {
            self.index_of(item.seed)?;
        }
        for item in evidence {
            let state = self.state_mut(item.seed)?;
            if item.counterfactual.is_some() && Some(item.epoch) > state.counterfactual_epoch {
                (state.counterfactual, state.counterfactual_epoch) = (item.counterfactual, Some(item.epoch));
            }
            if item.gradient.is_some() && Some(item.epoch) > state.gradient_epoch {
                (state.gradient, state.gradient_epoch) = (item.gradient, Some(item.epoch));
            }
        }
        Ok(())
    }

    /// Moves ramps on by one optimizer step. Whether a seed was removed at the end of its ramp.
    pub fn finish_step(&mut self) -> bool {
        for index in 0..self.ramps.len() {
            let seed = self.ramps[index].seed;
            if self.seeds.iter().any(|state| state.seed_id == seed && state.paused) {
                continue;
            }
            self.ramps[index].steps_taken += 1;
            let RampProgress { seed, from, ramp, steps_taken, .. } = self.ramps[index].clone();
            let alpha = interpolate(from, ramp, steps_taken);
            if let Some(state) = self.seeds.iter_mut().find(|state| state.seed_id == seed) {
                state.alpha = alpha;
                if steps_taken >= ramp.steps {
                    state.alpha_mode = AlphaMode::Hold;
                }
            }
        }
        let ended: Vec<_> = self.ramps.extract_if(.., |ramp| ramp.steps_taken >= ramp.ramp.steps).collect();
        let mut removed = false;
        for ramp in ended.into_iter().filter(|ramp| ramp.then_cull) {
            removed |= self.cull(ramp.seed, &Operation::Cull { seed: ramp.seed }).is_ok();
        }
        removed
    }

    /// Moves clocks on by one epoch: pruned → embargoed → resetting → gone.
    pub fn finish_epoch(&mut self) -> Vec<Transition> {
        let mut transitions = Vec::new();
        for state in &mut self.seeds {
            state.age_epochs += 1;
            if state.paused {
                continue;
            }
            state.epochs_in_stage += 1;
            let next = match state.stage {
                SeedStage::Pruned => SeedStage::Embargoed,
                SeedStage::Embargoed if state.epochs_in_stage >= EMBARGO_EPOCHS => SeedStage::Resetting,
                SeedStage::Resetting => SeedStage::Dormant,
                _ => continue,
            };
            transitions.push(enter(state, next, "its time is over"));
        }
        for gone in self.seeds.extract_if(.., |state| state.stage == SeedStage::Dormant) {
            for slot in self.slots.iter_mut().filter(|slot| slot.occupant == Some(gone.seed_id)) {
                slot.occupant = None;
            }
        }
        transitions
    }

    fn germinate(&mut self, slot: &SlotId, blueprint: &BlueprintId) -> Result<Applied, Error> {
        let place = self.slots.iter_mut().find(|state| state.slot == *slot).ok_or(Error::Rejected("no such slot"))?;
        if place.occupant.is_some() {
            return Err(Error::Rejected("the slot is occupied"));
        }
        let offer = place.offers.iter().find(|offer| offer.blueprint == *blueprint);
        let num_parameters = offer.ok_or(Error::Rejected("the blueprint is not on offer"))?.num_parameters;
        self.num_germinated += 1;
        let seed = SeedId(self.num_germinated);
        place.occupant = Some(seed);
        let mut state = SeedState {
            stage: SeedStage::Dormant,
            ..SeedState::germinated(seed, slot.clone(), blueprint.clone(), num_parameters)
        };
        let transition = enter(&mut state, SeedStage::Germinated, "germinate");
        self.seeds.push(state);
        Ok(Applied { seed, transitions: vec![transition], topology_changed: false })
    }

    fn cull(&mut self, seed: SeedId, operation: &Operation) -> Result<Applied, Error> {
        let applied = self.advance(seed, SeedStage::Pruned, operation)?;
        self.ramps.retain(|ramp| ramp.seed != seed);
        let state = self.state_mut(seed)?;
        (state.num_parameters, state.alpha, state.alpha_mode) = (0, Alpha::ZERO, AlphaMode::Hold);
        state.paused = false;
        Ok(applied)
    }

    fn set_paused(&mut self, seed: SeedId, paused: bool) -> Result<Applied, Error> {
        let state = self.state_mut(seed)?;
        if !state.stage.is_live() || state.paused == paused {
            return Err(Error::Rejected("only a live seed is paused, and only a paused one resumed"));
        }
        state.paused = paused;
        let topology_changed = state.stage != SeedStage::Germinated;
        Ok(Applied { seed, transitions: Vec::new(), topology_changed })
    }

    fn advance(&mut self, seed: SeedId, next: SeedStage, operation: &Operation) -> Result<Applied, Error> {
        let state = self.state_mut(seed)?;
        if state.paused && next != SeedStage::Pruned {
            return Err(Error::Rejected("the seed is paused"));
        }
        if !state.stage.may_become(next) {
            return Err(Error::IllegalTransition { seed, stage: state.stage, operation: operation.name() });
        }
        let topology_changed = changes_topology(state.stage, next);
        let transition = enter(state, next, operation.name());
        Ok(Applied { seed, transitions: vec![transition], topology_changed })
    }

    fn start_ramp(&mut self, seed: SeedId, ramp: AlphaRamp) {
        self.ramps.retain(|progress| progress.seed != seed);
        let state = self.seeds.iter_mut().find(|state| state.seed_id == seed).expect("the caller found it");
        let from = state.alpha;
        state.alpha_target = ramp.target;
        if ramp.steps == 0 {
            (state.alpha, state.alpha_mode) = (ramp.target, AlphaMode::Hold);
            return;
        }
        state.alpha_mode = if ramp.target >= from { AlphaMode::Up } else { AlphaMode::Down };
        self.ramps.push(RampProgress { seed, from, ramp, steps_taken: 0, then_cull: false });
    }

    fn index_of(&self, seed: SeedId) -> Result<usize, Error> {
        self.seeds.binary_search_by_key(&seed, |state| state.seed_id).map_err(|_| Error::UnknownSeed { seed })
    }

    fn state_mut(&mut self, seed: SeedId) -> Result<&mut SeedState, Error> {
        let index = self.index_of(seed)?;
        Ok(&mut self.seeds[index])
    }

    fn slot_of(&mut self, seed: SeedId) -> &mut SlotState {
        self.slots.iter_mut().find(|slot| slot.occupant == Some(seed)).expect("a live seed occupies its slot")
    }
}

fn enter(state: &mut SeedState, to: SeedStage, reason: &str) -> Transition {
    let transition = Transition { seed: state.seed_id, from: state.stage, to, reason: reason.to_owned() };
    state.previous_stage = Some(state.stage);
    state.stage = to;
    state.epochs_in_stage = 0;
    (state.counterfactual, state.counterfactual_epoch) = (None, None);
    transition
}

/// Whether parameters, their owners or the graph of the toy model differ between two stages.
fn changes_topology(from: SeedStage, to: SeedStage) -> bool {
    let shape = |stage: SeedStage| match stage {
        SeedStage::Training => 1,
        SeedStage::Blending | SeedStage::Holding => 2,
        SeedStage::Fossilized => 3,
        SeedStage::Dormant
        | SeedStage::Germinated
        | SeedStage::Pruned
        | SeedStage::Embargoed
        | SeedStage::Resetting => 0,
    };
    shape(from) != shape(to)
}

#[expect(clippy::cast_precision_loss, reason = "step counts of tests are far below 2^52")]
fn interpolate(from: Alpha, ramp: AlphaRamp, steps_taken: u64) -> Alpha {
    if steps_taken >= ramp.steps {
        return ramp.target;
    }
    let t = steps_taken as f64 / ramp.steps as f64;
    let logistic = |t: f64| 1.0 / (1.0 + (-12.0 * (t - 0.5)).exp());
    let shape = match ramp.curve {
        AlphaCurve::Linear => t,
        AlphaCurve::Cosine => 0.5 - 0.5 * (std::f64::consts::PI * t).cos(),
        AlphaCurve::Sigmoid => (logistic(t) - logistic(0.0)) / (logistic(1.0) - logistic(0.0)),
    };
    let value = from.get() + (ramp.target.get() - from.get()) * shape;
    Alpha::new(value.clamp(0.0, 1.0)).expect("the value lies between two alphas")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_culled_seed_leaves_after_its_embargo_and_its_slot_is_free_again() {
        let mut life = Lifecycle::new(1);
        let operation = Operation::germinate(life.slots()[0].slot.clone(), blueprint());
        let seed = life.apply(&operation).unwrap().seed;
        life.apply(&Operation::Cull { seed }).unwrap();
        let stages: Vec<_> =
            (0..5).map(|_| life.finish_epoch().pop().map_or(SeedStage::Pruned, |moved| moved.to)).collect();
        use SeedStage::{Dormant, Embargoed, Pruned, Resetting};
        assert_eq!(stages, [Embargoed, Pruned, Resetting, Dormant, Pruned], "`Pruned` stands for no move");
        assert_eq!(life.slots()[0].occupant, None);
        assert_eq!(life.apply(&operation).unwrap().seed, SeedId(2), "ids are not used twice");
    }

    #[test]
    fn a_ramp_ends_exactly_at_its_target_for_every_curve() {
        for curve in [AlphaCurve::Linear, AlphaCurve::Cosine, AlphaCurve::Sigmoid] {
            let mut life = Lifecycle::new(1);
            let slot = life.slots()[0].slot.clone();
            let seed = life.apply(&Operation::germinate(slot, blueprint())).unwrap().seed;
            life.apply(&Operation::StartTraining { seed }).unwrap();
            let ramp = AlphaRamp { target: Alpha::ONE, steps: 3, curve };
            life.apply(&Operation::StartBlending { seed, ramp }).unwrap();
            let mut previous = Alpha::ZERO;
            for _ in 0..3 {
                life.finish_step();
                assert!(life.seeds()[0].alpha > previous, "{curve:?} does not rise");
                previous = life.seeds()[0].alpha;
            }
            assert!(previous.is_one(), "{curve:?} ends at {previous}");
            assert_eq!(life.seeds()[0].alpha_mode, AlphaMode::Hold);
        }
    }

    fn blueprint() -> BlueprintId {
        BlueprintId::new("linear").unwrap()
    }
}
