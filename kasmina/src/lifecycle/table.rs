//! The one table of the lifecycle: every legal move with its trigger, its gate and its effects. What the manager does
//! to a seed is what the row says; what has no row is refused.
//!
//! A row without a change of stage is no move: it has no [`Transition`](leyline::seed::Transition) and no entry in the
//! history. Every move is recorded, starts the epochs of the stage at 0 and forgets what was measured; a row says what it
//! does beyond that.
//!
//! A gradual removal over 0 steps, or of a seed whose alpha is 0 already, is a cull. A paused seed that was fading goes
//! on fading when it is resumed. The gate of a resumption is G1 with the conditions that still apply: the weights are
//! there, and no leak was found.
#![deny(clippy::wildcard_enum_match_arm)]

use std::fmt;

use leyline::command::Operation;
use leyline::seed::{Gate, SeedStage};

use crate::graft::Role;

/// What holds for a seed beside its stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// Nothing in particular.
    Active,
    /// It loses its influence and is removed when it has none.
    Fading,
    /// It was taken out of the computation for a while.
    Paused,
}

/// What sets a seed in motion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trigger {
    /// The operation.
    Germinate,
    /// The operation.
    StartTraining,
    /// The operation.
    StartBlending,
    /// The operation.
    Hold,
    /// The operation.
    Fossilize,
    /// The operation.
    Cull,
    /// The operation, with something to fade.
    CullGradually,
    /// The operation.
    Pause,
    /// The operation.
    Resume,
    /// The optimizer step that ends a fade.
    FadeEnd,
    /// The end of an epoch.
    EpochEnd,
}

/// What a row does to a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What was measured does not count any more.
    ForgetEvidence,
    /// Alpha starts on its way to the target of the operation.
    StartRamp,
    /// Alpha starts on its way to 0, whatever ramp ran before.
    StartFade,
    /// The clocks of the stage stand still from here on.
    StartPause,
    /// They go on, if they stood still.
    EndPause,
    /// The part in the network; a seed that fades keeps fading.
    Become(Role),
    /// Alpha is 0 and rests.
    ZeroAlpha,
    /// The seed is in no forward pass and no layout.
    LeaveNetwork,
    /// The seed counts no parameters; its tensors are freed with the last copy of the network that has them.
    FreeParameters,
    /// Another seed may germinate in the slot.
    FreeSlot,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Stage before.
    pub from: SeedStage,
    /// What must hold beside the stage.
    pub when: Condition,
    /// What sets it off.
    pub trigger: Trigger,
    /// Stage after.
    pub to: SeedStage,
    /// What must be passed.
    pub gate: Option<Gate>,
    /// What it does, in order.
    pub effects: &'static [Effect],
}

/// Every legal move; one row at most for a stage, a condition and a trigger.
pub const MOVES: &[Move] = {
    use Condition::{Active, Fading, Paused};
    use Effect::{Become, EndPause, ForgetEvidence, FreeSlot, StartFade, StartRamp};
    use SeedStage::{Blending, Dormant, Embargoed, Fossilized, Germinated, Holding, Pruned, Resetting, Training};
    use Trigger::{
        Cull, CullGradually, EpochEnd, FadeEnd, Fossilize, Germinate, Hold, Pause, Resume, StartBlending, StartTraining,
    };
    &[
        Move::new(Dormant, Active, Germinate, Germinated, &[Become(Role::Idle)]),
        Move::new(Germinated, Active, StartTraining, Training, &[Become(Role::Shadow)]),
        Move::new(Training, Active, StartBlending, Blending, &[Become(Role::Acting), StartRamp]),
        Move::new(Blending, Active, StartBlending, Blending, &[StartRamp]),
        Move::new(Holding, Active, StartBlending, Blending, &[Become(Role::Acting), StartRamp]),
        Move::new(Blending, Active, Hold, Holding, &[Become(Role::Acting)]),
        Move::new(Holding, Active, Fossilize, Fossilized, &[Become(Role::Permanent), FreeSlot]),
        Move::new(Germinated, Active, Cull, Pruned, REMOVE),
        Move::new(Training, Active, Cull, Pruned, REMOVE),
        Move::new(Blending, Active, Cull, Pruned, REMOVE),
        Move::new(Holding, Active, Cull, Pruned, REMOVE),
        Move::new(Germinated, Active, CullGradually, Pruned, REMOVE),
        Move::new(Training, Active, CullGradually, Pruned, REMOVE),
        Move::new(Blending, Active, CullGradually, Blending, &[StartFade, Become(Role::Fading)]),
        Move::new(Holding, Active, CullGradually, Blending, &[StartFade, Become(Role::Fading)]),
        Move::new(Germinated, Active, Pause, Germinated, PAUSE),
        Move::new(Training, Active, Pause, Training, PAUSE),
        Move::new(Blending, Active, Pause, Blending, PAUSE),
        Move::new(Holding, Active, Pause, Holding, PAUSE),
        Move::new(Blending, Fading, Cull, Pruned, REMOVE),
        Move::new(Blending, Fading, Pause, Blending, PAUSE),
        Move::new(Blending, Fading, FadeEnd, Pruned, REMOVE),
        Move::new(Germinated, Paused, Resume, Germinated, &[EndPause, ForgetEvidence, Become(Role::Idle)]),
        Move::new(Training, Paused, Resume, Training, &[EndPause, ForgetEvidence, Become(Role::Shadow)]),
        Move::new(Blending, Paused, Resume, Blending, &[EndPause, ForgetEvidence, Become(Role::Acting)]),
        Move::new(Holding, Paused, Resume, Holding, &[EndPause, ForgetEvidence, Become(Role::Acting)]),
        Move::new(Germinated, Paused, Cull, Pruned, REMOVE),
        Move::new(Training, Paused, Cull, Pruned, REMOVE),
        Move::new(Blending, Paused, Cull, Pruned, REMOVE),
        Move::new(Holding, Paused, Cull, Pruned, REMOVE),
        Move::new(Germinated, Paused, CullGradually, Pruned, REMOVE),
        Move::new(Training, Paused, CullGradually, Pruned, REMOVE),
        Move::new(Blending, Paused, CullGradually, Pruned, REMOVE),
        Move::new(Holding, Paused, CullGradually, Pruned, REMOVE),
        Move::new(Pruned, Active, EpochEnd, Embargoed, &[]),
        Move::new(Embargoed, Active, EpochEnd, Resetting, &[]),
        Move::new(Resetting, Active, EpochEnd, Dormant, &[FreeSlot]),
    ]
};

const REMOVE: &[Effect] = &[Effect::EndPause, Effect::ZeroAlpha, Effect::LeaveNetwork, Effect::FreeParameters];
const PAUSE: &[Effect] = &[Effect::StartPause, Effect::Become(Role::Idle)];

impl Move {
    const fn new(
        from: SeedStage,
        when: Condition,
        trigger: Trigger,
        to: SeedStage,
        effects: &'static [Effect],
    ) -> Self {
        let gate = if matches!(trigger, Trigger::Resume) {
            Some(Gate::GradientHealth)
        } else if from.wire() == to.wire() {
            None
        } else {
            Gate::before(from, to)
        };
        Self { from, when, trigger, to, gate, effects }
    }

    /// The row for this stage, condition and trigger; none when that is not legal.
    #[must_use]
    pub fn find(from: SeedStage, when: Condition, trigger: Trigger) -> Option<&'static Self> {
        MOVES.iter().find(|row| row.from == from && row.when == when && row.trigger == trigger)
    }

    /// Whether the stage changes.
    #[must_use]
    pub fn changes_stage(&self) -> bool {
        self.from != self.to
    }
}

/// The role of a seed that is active in this stage; none when it has no place in the network then.
pub(crate) fn role(stage: SeedStage) -> Option<Role> {
    let given = effects_of_entry(stage).filter_map(Effect::role);
    given.filter(|role| *role != Role::Fading).last()
}

/// Whether a seed in this stage leaves its slot to others.
pub(crate) fn leaves_slot(stage: SeedStage) -> bool {
    effects_of_entry(stage).any(|effect| effect == Effect::FreeSlot)
}

fn effects_of_entry(stage: SeedStage) -> impl Iterator<Item = Effect> {
    let entries = MOVES.iter().filter(move |row| row.to == stage && row.changes_stage());
    entries.flat_map(|row| row.effects).copied()
}

impl Effect {
    fn role(self) -> Option<Role> {
        if let Self::Become(role) = self { Some(role) } else { None }
    }
}

impl Trigger {
    /// Every trigger.
    pub const ALL: [Self; 11] = [
        Self::Germinate,
        Self::StartTraining,
        Self::StartBlending,
        Self::Hold,
        Self::Fossilize,
        Self::Cull,
        Self::CullGradually,
        Self::Pause,
        Self::Resume,
        Self::FadeEnd,
        Self::EpochEnd,
    ];

    /// What an operation sets off.
    #[must_use]
    pub const fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Germinate { .. } => Self::Germinate,
            Operation::StartTraining { .. } => Self::StartTraining,
            Operation::StartBlending { .. } => Self::StartBlending,
            Operation::Hold { .. } => Self::Hold,
            Operation::Fossilize { .. } => Self::Fossilize,
            Operation::Cull { .. } | Operation::CullGradually { steps: 0, .. } => Self::Cull,
            Operation::CullGradually { .. } => Self::CullGradually,
            Operation::Pause { .. } => Self::Pause,
            Operation::Resume { .. } => Self::Resume,
        }
    }

    /// The stage it is meant to lead to; none when it is about no other stage.
    #[must_use]
    pub const fn aim(self) -> Option<SeedStage> {
        match self {
            Self::Germinate => Some(SeedStage::Germinated),
            Self::StartTraining => Some(SeedStage::Training),
            Self::StartBlending => Some(SeedStage::Blending),
            Self::Hold => Some(SeedStage::Holding),
            Self::Fossilize => Some(SeedStage::Fossilized),
            Self::Cull | Self::CullGradually | Self::FadeEnd => Some(SeedStage::Pruned),
            Self::Pause | Self::Resume | Self::EpochEnd => None,
        }
    }

    /// The name of the operation, or what it is about.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Germinate => "germinate",
            Self::StartTraining => "start_training",
            Self::StartBlending => "start_blending",
            Self::Hold => "hold",
            Self::Fossilize => "fossilize",
            Self::Cull => "cull",
            Self::CullGradually => "cull_gradually",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::FadeEnd => "fade end",
            Self::EpochEnd => "epoch end",
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use leyline::command::{AlphaCurve, AlphaRamp};
    use leyline::id::{BlueprintId, SeedId, SlotId};
    use leyline::unit::Alpha;

    use super::*;

    #[test]
    fn a_trigger_has_the_name_of_its_operation_and_no_other_has_it() {
        let seed = SeedId(1);
        let ramp = AlphaRamp { target: Alpha::ONE, steps: 4, curve: AlphaCurve::Linear };
        for operation in [
            Operation::germinate(SlotId::new("input").unwrap(), BlueprintId::new("mlp").unwrap()),
            Operation::StartTraining { seed },
            Operation::StartBlending { seed, ramp },
            Operation::Hold { seed },
            Operation::Fossilize { seed },
            Operation::Cull { seed },
            Operation::CullGradually { seed, steps: 4, curve: AlphaCurve::Linear },
            Operation::Pause { seed },
            Operation::Resume { seed },
        ] {
            assert_eq!(Trigger::of(&operation).to_string(), operation.name());
        }
        let names = BTreeSet::from(Trigger::ALL.map(Trigger::name));
        assert_eq!(names.len(), Trigger::ALL.len(), "{names:?}");
    }

    #[test]
    fn the_table_has_the_moves_of_the_contract_and_their_gates() {
        for from in SeedStage::ALL {
            for to in SeedStage::ALL {
                let rows: Vec<_> = MOVES.iter().filter(|row| (row.from, row.to) == (from, to)).collect();
                if from != to {
                    assert_eq!(!rows.is_empty(), from.may_become(to), "{from} to {to}");
                    assert!(rows.iter().all(|row| row.gate == Gate::before(from, to)), "{from} to {to}");
                }
            }
        }
    }

    #[test]
    fn a_stage_a_condition_and_a_trigger_have_one_row_at_most() {
        for row in MOVES {
            let same = MOVES.iter().filter(|r| (r.from, r.when, r.trigger) == (row.from, row.when, row.trigger));
            assert_eq!(same.count(), 1, "{row:?}");
            assert_eq!(Move::find(row.from, row.when, row.trigger), Some(row));
        }
    }

    #[test]
    fn every_row_into_a_stage_gives_the_same_role() {
        for row in MOVES.iter().filter(|row| row.when != Condition::Active || row.changes_stage()) {
            for found in row.effects.iter().filter_map(|effect| effect.role()) {
                let other = row.trigger == Trigger::Pause || found == Role::Fading;
                assert!(other || Some(found) == role(row.to), "{row:?}");
            }
        }
        let stages = SeedStage::ALL.into_iter().filter(|stage| role(*stage).is_some());
        assert!(stages.eq(SeedStage::ALL.into_iter().filter(|s| s.is_live() || *s == SeedStage::Fossilized)));
    }
}
