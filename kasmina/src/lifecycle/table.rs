//! The one table of the lifecycle: every legal move with its trigger, its gate and its effects. What the manager does
//! to a seed is what the row says; what has no row is refused.
//!
//! A row without a change of stage is no move: it has no [`Transition`](leyline::seed::Transition) and no entry in the
//! history. *moved* stands for: record history, reset epochs, forget evidence. *removed* stands for: *moved*, end pause,
//! zero alpha, leave network, free parameters.
//!
//! | from | when | trigger | to | gate | effects |
//! |---|---|---|---|---|---|
//! | dormant | active | germinate | germinated | G0 | record history, become idle |
//! | germinated | active | start_training | training | G1 | *moved*, become shadow |
//! | training | active | start_blending | blending | G2 | *moved*, become acting, start ramp |
//! | blending | active | start_blending | blending | - | start ramp |
//! | holding | active | start_blending | blending | - | *moved*, become acting, start ramp |
//! | blending | active | hold | holding | G3 | *moved*, become acting |
//! | holding | active | fossilize | fossilized | G4 | *moved*, become permanent, free slot |
//! | germinated | active | cull | pruned | - | *removed* |
//! | training | active | cull | pruned | - | *removed* |
//! | blending | active | cull | pruned | - | *removed* |
//! | holding | active | cull | pruned | - | *removed* |
//! | germinated | active | cull_gradually | pruned | - | *removed* |
//! | training | active | cull_gradually | pruned | - | *removed* |
//! | blending | active | cull_gradually | blending | - | start fade, become fading |
//! | holding | active | cull_gradually | blending | - | *moved*, start fade, become fading |
//! | germinated | active | pause | germinated | - | start pause, become idle |
//! | training | active | pause | training | - | start pause, become idle |
//! | blending | active | pause | blending | - | start pause, become idle |
//! | holding | active | pause | holding | - | start pause, become idle |
//! | blending | fading | cull | pruned | - | *removed* |
//! | blending | fading | pause | blending | - | start pause, become idle |
//! | blending | fading | fade end | pruned | - | *removed* |
//! | germinated | paused | resume | germinated | G1 | end pause, forget evidence, become idle |
//! | training | paused | resume | training | G1 | end pause, forget evidence, become shadow |
//! | blending | paused | resume | blending | G1 | end pause, forget evidence, become acting |
//! | holding | paused | resume | holding | G1 | end pause, forget evidence, become acting |
//! | germinated | paused | cull | pruned | - | *removed* |
//! | training | paused | cull | pruned | - | *removed* |
//! | blending | paused | cull | pruned | - | *removed* |
//! | holding | paused | cull | pruned | - | *removed* |
//! | germinated | paused | cull_gradually | pruned | - | *removed* |
//! | training | paused | cull_gradually | pruned | - | *removed* |
//! | blending | paused | cull_gradually | pruned | - | *removed* |
//! | holding | paused | cull_gradually | pruned | - | *removed* |
//! | pruned | active | epoch end | embargoed | - | *moved* |
//! | embargoed | active | epoch end | resetting | - | *moved* |
//! | resetting | active | epoch end | dormant | G5 | *moved*, free slot |
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
    /// The history gets an entry, and the stage before is kept.
    RecordHistory,
    /// The epochs in the stage count from 0.
    ResetEpochs,
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
    use SeedStage::{Blending, Dormant, Embargoed, Fossilized, Germinated, Holding, Pruned, Resetting, Training};
    use Trigger::{
        Cull, CullGradually, EpochEnd, FadeEnd, Fossilize, Germinate, Hold, Pause, Resume, StartBlending, StartTraining,
    };
    &[
        Move::new(Dormant, Active, Germinate, Germinated, &[Effect::RecordHistory, Effect::Become(Role::Idle)]),
        Move::new(Germinated, Active, StartTraining, Training, TRAIN),
        Move::new(Training, Active, StartBlending, Blending, BLEND),
        Move::new(Blending, Active, StartBlending, Blending, &[Effect::StartRamp]),
        Move::new(Holding, Active, StartBlending, Blending, BLEND),
        Move::new(Blending, Active, Hold, Holding, HOLD),
        Move::new(Holding, Active, Fossilize, Fossilized, STAY),
        Move::new(Germinated, Active, Cull, Pruned, REMOVE),
        Move::new(Training, Active, Cull, Pruned, REMOVE),
        Move::new(Blending, Active, Cull, Pruned, REMOVE),
        Move::new(Holding, Active, Cull, Pruned, REMOVE),
        Move::new(Germinated, Active, CullGradually, Pruned, REMOVE),
        Move::new(Training, Active, CullGradually, Pruned, REMOVE),
        Move::new(Blending, Active, CullGradually, Blending, &[Effect::StartFade, Effect::Become(Role::Fading)]),
        Move::new(Holding, Active, CullGradually, Blending, FADE),
        Move::new(Germinated, Active, Pause, Germinated, PAUSE),
        Move::new(Training, Active, Pause, Training, PAUSE),
        Move::new(Blending, Active, Pause, Blending, PAUSE),
        Move::new(Holding, Active, Pause, Holding, PAUSE),
        Move::new(Blending, Fading, Cull, Pruned, REMOVE),
        Move::new(Blending, Fading, Pause, Blending, PAUSE),
        Move::new(Blending, Fading, FadeEnd, Pruned, REMOVE),
        Move::new(Germinated, Paused, Resume, Germinated, &resume(Role::Idle)),
        Move::new(Training, Paused, Resume, Training, &resume(Role::Shadow)),
        Move::new(Blending, Paused, Resume, Blending, &resume(Role::Acting)),
        Move::new(Holding, Paused, Resume, Holding, &resume(Role::Acting)),
        Move::new(Germinated, Paused, Cull, Pruned, REMOVE),
        Move::new(Training, Paused, Cull, Pruned, REMOVE),
        Move::new(Blending, Paused, Cull, Pruned, REMOVE),
        Move::new(Holding, Paused, Cull, Pruned, REMOVE),
        Move::new(Germinated, Paused, CullGradually, Pruned, REMOVE),
        Move::new(Training, Paused, CullGradually, Pruned, REMOVE),
        Move::new(Blending, Paused, CullGradually, Pruned, REMOVE),
        Move::new(Holding, Paused, CullGradually, Pruned, REMOVE),
        Move::new(Pruned, Active, EpochEnd, Embargoed, MOVED),
        Move::new(Embargoed, Active, EpochEnd, Resetting, MOVED),
        Move::new(Resetting, Active, EpochEnd, Dormant, RELEASE),
    ]
};

const MOVED: &[Effect] = &[Effect::RecordHistory, Effect::ResetEpochs, Effect::ForgetEvidence];
const TRAIN: &[Effect] =
    &[Effect::RecordHistory, Effect::ResetEpochs, Effect::ForgetEvidence, Effect::Become(Role::Shadow)];
const BLEND: &[Effect] = &[
    Effect::RecordHistory,
    Effect::ResetEpochs,
    Effect::ForgetEvidence,
    Effect::Become(Role::Acting),
    Effect::StartRamp,
];
const HOLD: &[Effect] =
    &[Effect::RecordHistory, Effect::ResetEpochs, Effect::ForgetEvidence, Effect::Become(Role::Acting)];
const STAY: &[Effect] = &[
    Effect::RecordHistory,
    Effect::ResetEpochs,
    Effect::ForgetEvidence,
    Effect::Become(Role::Permanent),
    Effect::FreeSlot,
];
const FADE: &[Effect] = &[
    Effect::RecordHistory,
    Effect::ResetEpochs,
    Effect::ForgetEvidence,
    Effect::StartFade,
    Effect::Become(Role::Fading),
];
const REMOVE: &[Effect] = &[
    Effect::RecordHistory,
    Effect::ResetEpochs,
    Effect::ForgetEvidence,
    Effect::EndPause,
    Effect::ZeroAlpha,
    Effect::LeaveNetwork,
    Effect::FreeParameters,
];
const PAUSE: &[Effect] = &[Effect::StartPause, Effect::Become(Role::Idle)];
const RELEASE: &[Effect] = &[Effect::RecordHistory, Effect::ResetEpochs, Effect::ForgetEvidence, Effect::FreeSlot];

const fn resume(role: Role) -> [Effect; 3] {
    [Effect::EndPause, Effect::ForgetEvidence, Effect::Become(role)]
}

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
    use super::*;

    const MODULE: &str = include_str!("table.rs");

    fn words(effects: &[Effect]) -> String {
        let words: Vec<String> = effects
            .iter()
            .map(|effect| match effect {
                Effect::RecordHistory => "record history".to_owned(),
                Effect::ResetEpochs => "reset epochs".to_owned(),
                Effect::ForgetEvidence => "forget evidence".to_owned(),
                Effect::StartRamp => "start ramp".to_owned(),
                Effect::StartFade => "start fade".to_owned(),
                Effect::StartPause => "start pause".to_owned(),
                Effect::EndPause => "end pause".to_owned(),
                Effect::Become(role) => format!("become {role:?}").to_lowercase(),
                Effect::ZeroAlpha => "zero alpha".to_owned(),
                Effect::LeaveNetwork => "leave network".to_owned(),
                Effect::FreeParameters => "free parameters".to_owned(),
                Effect::FreeSlot => "free slot".to_owned(),
            })
            .collect();
        let moved = words.join(", ").replace("record history, reset epochs, forget evidence", "*moved*");
        moved.replace("*moved*, end pause, zero alpha, leave network, free parameters", "*removed*")
    }

    #[test]
    fn the_table_in_the_documentation_is_this_one() {
        let rows = MOVES.iter().map(|row| {
            let when = format!("{:?}", row.when).to_lowercase();
            let gate = row.gate.map_or("-", Gate::name);
            format!("//! | {} | {when} | {} | {} | {gate} | {} |", row.from, row.trigger, row.to, words(row.effects))
        });
        let written =
            MODULE.lines().take_while(|line| line.starts_with("//!")).filter(|line| line.starts_with("//! | "));
        assert_eq!(rows.collect::<Vec<_>>(), written.skip(1).collect::<Vec<_>>());
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
    fn a_move_is_recorded_and_forgets_what_was_measured() {
        for row in MOVES {
            let has = |effect| row.effects.contains(&effect);
            assert_eq!(row.changes_stage(), has(Effect::RecordHistory), "{row:?}");
            if row.changes_stage() && row.from != SeedStage::Dormant {
                assert!(has(Effect::ResetEpochs) && has(Effect::ForgetEvidence), "{row:?}");
            }
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
