//! Rule PO-2: a decision names only what is in its state, and only moves that the lifecycle allows.

use std::collections::{BTreeMap, BTreeSet};

use leyline::command::Operation;
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::seed::{SeedStage, SlotState};
use leyline::state::SystemState;

/// Why an operation does not fit the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0} is not in the state")]
    UnknownSeed(SeedId),
    #[error("{seed} is {from} and cannot become {to}")]
    IllegalMove { seed: SeedId, from: SeedStage, to: SeedStage },
    #[error("{0} is paused, or its weights are still being fetched")]
    Waiting(SeedId),
    #[error("{0} is not in the state")]
    UnknownSlot(SlotId),
    #[error("{0} is not free")]
    Occupied(SlotId),
    #[error("{blueprint} is not on offer in {slot}")]
    NotOffered { slot: SlotId, blueprint: BlueprintId },
}

/// The state as it will be after the operations admitted so far.
pub(crate) struct Outlook<'a> {
    stages: BTreeMap<SeedId, SeedStage>,
    /// Seeds that can only be removed now: paused ones, and those without their weights.
    waiting: BTreeSet<SeedId>,
    slots: &'a [SlotState],
    taken: Vec<SlotId>,
}

impl<'a> Outlook<'a> {
    pub(crate) fn of(state: &'a SystemState) -> Self {
        let stages = state.seeds.iter().map(|seed| (seed.seed_id, seed.stage)).collect();
        let waiting = state.seeds.iter().filter(|seed| seed.paused || seed.weights_pending);
        let waiting = waiting.map(|seed| seed.seed_id).collect();
        Self { stages, waiting, slots: &state.slots, taken: Vec::new() }
    }

    /// Takes the operation in, or says why it cannot be.
    pub(crate) fn admit(&mut self, operation: &Operation) -> Result<(), Refusal> {
        match operation {
            Operation::Germinate { slot, blueprint, .. } => self.germinate(slot, blueprint),
            Operation::StartTraining { seed } => self.advance(*seed, SeedStage::Training),
            Operation::StartBlending { seed, .. } => self.advance(*seed, SeedStage::Blending),
            Operation::Hold { seed } => self.advance(*seed, SeedStage::Holding),
            Operation::Fossilize { seed } => self.advance(*seed, SeedStage::Fossilized),
            Operation::Cull { seed } | Operation::CullGradually { seed, .. } => self.advance(*seed, SeedStage::Pruned),
            Operation::Pause { seed } | Operation::Resume { seed } => self.known(*seed),
        }
    }

    fn known(&self, seed: SeedId) -> Result<(), Refusal> {
        self.stages.contains_key(&seed).then_some(()).ok_or(Refusal::UnknownSeed(seed))
    }

    fn advance(&mut self, seed: SeedId, to: SeedStage) -> Result<(), Refusal> {
        let from = self.stages.get_mut(&seed).ok_or(Refusal::UnknownSeed(seed))?;
        if !from.may_become(to) {
            return Err(Refusal::IllegalMove { seed, from: *from, to });
        }
        if to != SeedStage::Pruned && self.waiting.contains(&seed) {
            return Err(Refusal::Waiting(seed));
        }
        *from = to;
        Ok(())
    }

    fn germinate(&mut self, slot: &SlotId, blueprint: &BlueprintId) -> Result<(), Refusal> {
        let found = self.slots.iter().find(|s| s.slot == *slot).ok_or_else(|| Refusal::UnknownSlot(slot.clone()))?;
        if found.occupant.is_some() || self.taken.contains(slot) {
            return Err(Refusal::Occupied(slot.clone()));
        }
        if !found.offers.iter().any(|offer| offer.blueprint == *blueprint) {
            return Err(Refusal::NotOffered { slot: slot.clone(), blueprint: blueprint.clone() });
        }
        self.taken.push(slot.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leyline::command::{AlphaCurve, AlphaRamp};
    use leyline::seed::BlueprintOffer;
    use leyline::unit::Alpha;

    use super::*;

    fn slot(text: &str) -> SlotId {
        SlotId::new(text).unwrap()
    }

    fn germinate(at: &str, blueprint: &str) -> Operation {
        Operation::germinate(slot(at), BlueprintId::new(blueprint).unwrap())
    }

    /// One seed (id 1) in `stage`, a slot `full` that it occupies, and a free slot `free` that offers `mlp`.
    #[track_caller]
    fn check(stage: SeedStage, operations: &[Operation], expected: &[Option<Refusal>]) {
        check_while(false, stage, operations, expected);
    }

    #[track_caller]
    fn check_while(waits: bool, stage: SeedStage, operations: &[Operation], expected: &[Option<Refusal>]) {
        let offers = vec![BlueprintOffer { blueprint: BlueprintId::new("mlp").unwrap(), num_parameters: 1 }];
        let slots = [("full", Some(SeedId(1))), ("free", None)].map(|(name, occupant)| SlotState {
            slot: slot(name),
            occupant,
            num_fossilized: 0,
            offers: offers.clone(),
        });
        let stages = BTreeMap::from([(SeedId(1), stage)]);
        let waiting = waits.then_some(SeedId(1)).into_iter().collect();
        let mut outlook = Outlook { stages, waiting, slots: &slots, taken: Vec::new() };
        let found: Vec<Option<Refusal>> = operations.iter().map(|op| outlook.admit(op).err()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_seed_moves_only_as_its_lifecycle_allows() {
        let seed = SeedId(1);
        let ramp = AlphaRamp { target: Alpha::ONE, steps: 1, curve: AlphaCurve::Linear };
        let operations = [
            (Operation::StartTraining { seed }, SeedStage::Training),
            (Operation::StartBlending { seed, ramp }, SeedStage::Blending),
            (Operation::Hold { seed }, SeedStage::Holding),
            (Operation::Fossilize { seed }, SeedStage::Fossilized),
            (Operation::Cull { seed }, SeedStage::Pruned),
        ];
        for from in SeedStage::ALL {
            for (operation, to) in &operations {
                let refusal = (!from.may_become(*to)).then_some(Refusal::IllegalMove { seed, from, to: *to });
                check(from, std::slice::from_ref(operation), &[refusal]);
            }
        }
    }

    #[test]
    fn a_seed_that_waits_is_removed_or_left_alone() {
        let seed = SeedId(1);
        let waiting = || Some(Refusal::Waiting(seed));
        check_while(true, SeedStage::Germinated, &[Operation::StartTraining { seed }], &[waiting()]);
        check_while(
            true,
            SeedStage::Blending,
            &[Operation::Hold { seed }, Operation::Cull { seed }],
            &[waiting(), None],
        );
        check_while(true, SeedStage::Training, &[Operation::Resume { seed }], &[None]);
    }

    #[test]
    fn a_second_operation_is_judged_after_the_first() {
        let seed = SeedId(1);
        let illegal = Refusal::IllegalMove { seed, from: SeedStage::Pruned, to: SeedStage::Fossilized };
        check(SeedStage::Holding, &[Operation::Cull { seed }, Operation::Fossilize { seed }], &[None, Some(illegal)]);
        check(SeedStage::Blending, &[Operation::Hold { seed }, Operation::Fossilize { seed }], &[None, None]);
    }

    #[test]
    fn what_is_not_in_the_state_is_refused() {
        let foreign = Operation::Cull { seed: SeedId(2) };
        check(SeedStage::Training, &[foreign], &[Some(Refusal::UnknownSeed(SeedId(2)))]);
        check(SeedStage::Training, &[germinate("x", "mlp")], &[Some(Refusal::UnknownSlot(slot("x")))]);
    }

    #[test]
    fn a_seed_germinates_only_where_it_is_offered_and_nothing_else_is() {
        check(SeedStage::Training, &[germinate("full", "mlp")], &[Some(Refusal::Occupied(slot("full")))]);
        let conv = BlueprintId::new("conv").unwrap();
        let not_offered = Refusal::NotOffered { slot: slot("free"), blueprint: conv };
        check(SeedStage::Training, &[germinate("free", "conv")], &[Some(not_offered)]);
        let twice = [germinate("free", "mlp"), germinate("free", "mlp")];
        check(SeedStage::Training, &twice, &[None, Some(Refusal::Occupied(slot("free")))]);
    }
}
