//! The model of the lifecycle: which rows there are is said by the table, what they mean is written down a second time.

use std::collections::BTreeMap;

use kasmina::graft::Role;
use kasmina::lifecycle::table::{Condition, Move, Trigger};
use leyline::error::ErrorKind;
use leyline::id::SeedId;
use leyline::seed::{Gate, SeedStage};
use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;

pub(crate) const SLOTS: [&str; 2] = ["input", "hidden0"];
const EMBARGO_EPOCHS: u64 = 1;

/// A seed, from where, to where.
pub(crate) type Moved = (u32, SeedStage, SeedStage);

/// An operation on a seed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    StartTraining,
    StartBlending { target: f64, steps: u64 },
    Hold,
    Fossilize,
    Cull,
    CullGradually { steps: u64 },
    Pause,
    Resume,
}

/// Every order, with how often it is given among those that are legal.
fn orders() -> [(u32, Order); 17] {
    let blending = |target, steps| Order::StartBlending { target, steps };
    [
        (12, Order::StartTraining),
        (2, blending(0.0, 0)),
        (1, blending(0.0, 2)),
        (1, blending(0.5, 0)),
        (1, blending(0.5, 3)),
        (6, blending(1.0, 0)),
        (2, blending(1.0, 1)),
        (2, blending(1.0, 3)),
        (12, Order::Hold),
        (2, Order::Fossilize),
        (1, Order::Cull),
        (1, Order::CullGradually { steps: 0 }),
        (1, Order::CullGradually { steps: 1 }),
        (1, Order::CullGradually { steps: 2 }),
        (1, Order::CullGradually { steps: 3 }),
        (2, Order::Pause),
        (3, Order::Resume),
    ]
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    Germinate { slot: usize },
    Send { seed: u32, order: Order },
    Measure { seed: u32, useful: bool },
    EndStep,
    EndEpoch,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Moved(Vec<Moved>),
    Refused(ErrorKind),
}

/// A linear ramp.
#[derive(Debug, Clone, Copy)]
struct Ramp {
    start: f64,
    target: f64,
    steps: u64,
    done: u64,
}

/// One seed.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    slot: usize,
    pub(crate) stage: SeedStage,
    pub(crate) previous: Option<SeedStage>,
    pub(crate) paused: bool,
    fading: bool,
    pub(crate) age: u64,
    pub(crate) epochs: u64,
    rest: f64,
    ramp: Option<Ramp>,
    /// Whether each measurement in this stage showed a gain, latest last.
    gains: Vec<bool>,
    /// Ends of epochs since the latest measurement; an epoch is measured once.
    since_measured: Option<u64>,
}

/// All seeds.
#[derive(Debug, Clone)]
pub(crate) struct Lives {
    pub(crate) seeds: BTreeMap<u32, Life>,
    pub(crate) next_seed: u32,
    unreturned: Vec<Moved>,
    /// Of the latest action.
    pub(crate) outcome: Outcome,
}

impl Life {
    fn new(slot: usize) -> Self {
        Self {
            slot,
            stage: SeedStage::Germinated,
            previous: None,
            paused: false,
            fading: false,
            age: 0,
            epochs: 0,
            rest: 0.0,
            ramp: None,
            gains: Vec::new(),
            since_measured: None,
        }
    }

    pub(crate) fn alpha(&self) -> f64 {
        self.ramp.map_or(self.rest, |ramp| {
            let share = (ramp.done as f64 + 1.0) / (ramp.steps as f64 + 1.0);
            ramp.start + (ramp.target - ramp.start) * share
        })
    }

    pub(crate) fn stability(&self) -> Option<f64> {
        let latest = &self.gains[self.gains.len().saturating_sub(8)..];
        let useful = latest.iter().filter(|useful| **useful).count();
        (!latest.is_empty()).then(|| useful as f64 / latest.len() as f64)
    }

    pub(crate) fn role(&self) -> Option<Role> {
        let role = match self.stage {
            SeedStage::Germinated => Role::Idle,
            SeedStage::Training => Role::Shadow,
            SeedStage::Blending | SeedStage::Holding if self.fading => Role::Fading,
            SeedStage::Blending | SeedStage::Holding => Role::Acting,
            SeedStage::Fossilized => Role::Permanent,
            _ => return None,
        };
        Some(if self.paused { Role::Idle } else { role })
    }

    /// Its part in a training step.
    fn part(&self) -> Option<Role> {
        self.role().filter(|role| match role {
            Role::Idle => false,
            Role::Acting | Role::Fading => self.alpha() > 0.0,
            Role::Shadow | Role::Permanent => true,
        })
    }

    pub(crate) fn acts(&self) -> bool {
        self.part().is_some_and(|role| role != Role::Shadow)
    }

    pub(crate) fn condition(&self) -> Condition {
        match (self.paused, self.fading) {
            (true, _) => Condition::Paused,
            (false, true) => Condition::Fading,
            (false, false) => Condition::Active,
        }
    }

    fn start(&mut self, target: f64, steps: u64) {
        let start = self.alpha();
        self.ramp = (steps > 0).then_some(Ramp { start, target, steps, done: 0 });
        self.rest = target;
    }

    fn passes(&self, gate: Gate) -> bool {
        // Of the epoch that just ended, or of the one before.
        let fresh = self.since_measured.is_some_and(|epochs| epochs <= 2);
        let useful = fresh && self.gains.last() == Some(&true) && self.stability().is_some_and(|share| share >= 0.5);
        match gate {
            Gate::Sanity | Gate::GradientHealth | Gate::Reset => true,
            Gate::Stability | Gate::SystemImpact => self.epochs >= 1 && useful,
            Gate::Interface => self.ramp.is_none() && self.rest >= 1.0,
        }
    }

    /// What the gate ahead waits for.
    fn missing(&self, seed: u32) -> Option<Action> {
        let measure = || if self.is_measured() { Action::EndEpoch } else { Action::Measure { seed, useful: true } };
        match self.stage {
            SeedStage::Training | SeedStage::Holding if self.epochs == 0 => Some(Action::EndEpoch),
            SeedStage::Training if !self.passes(Gate::Stability) => Some(measure()),
            SeedStage::Holding if !self.passes(Gate::SystemImpact) => Some(measure()),
            SeedStage::Blending if self.ramp.is_some() => Some(Action::EndStep),
            _ => None,
        }
    }

    /// In the epoch that is not over yet.
    fn is_measured(&self) -> bool {
        self.since_measured == Some(0)
    }

    fn measure(&mut self, useful: bool) {
        if !self.is_measured() {
            self.gains.push(useful);
            self.since_measured = Some(0);
        }
    }

    fn enter(&mut self, to: SeedStage) {
        self.previous = Some(self.stage);
        self.stage = to;
        self.epochs = 0;
        self.gains.clear();
        if to == SeedStage::Pruned {
            (self.rest, self.ramp, self.paused, self.fading) = (0.0, None, false, false);
        }
    }

    /// What an order sets off.
    pub(crate) fn trigger(&self, order: Order) -> Trigger {
        let influence = !self.stage.acts_on_output() || self.alpha() > 0.0;
        match order {
            Order::StartTraining => Trigger::StartTraining,
            Order::StartBlending { .. } => Trigger::StartBlending,
            Order::Hold => Trigger::Hold,
            Order::Fossilize => Trigger::Fossilize,
            Order::CullGradually { steps } if steps > 0 && influence => Trigger::CullGradually,
            Order::Cull | Order::CullGradually { .. } => Trigger::Cull,
            Order::Pause => Trigger::Pause,
            Order::Resume => Trigger::Resume,
        }
    }

    fn carry_out(&mut self, seed: u32, order: Order) -> Outcome {
        if let Order::StartBlending { target, .. } = order
            && target <= 0.0
        {
            return Outcome::Refused(ErrorKind::Rejected);
        }
        let trigger = self.trigger(order);
        let Some(row) = Move::find(self.stage, self.condition(), trigger) else {
            let in_the_way = Move::find(self.stage, Condition::Active, trigger).is_some();
            let rejected = in_the_way || trigger.aim().is_none();
            return Outcome::Refused(if rejected { ErrorKind::Rejected } else { ErrorKind::IllegalTransition });
        };
        if row.gate.is_some_and(|gate| !self.passes(gate)) {
            return Outcome::Refused(ErrorKind::Rejected);
        }
        let from = self.stage;
        match order {
            Order::StartBlending { .. } if self.ramp.is_some() => {
                return Outcome::Refused(ErrorKind::IllegalTransition);
            }
            Order::StartBlending { target, steps } => self.start(target, steps),
            Order::CullGradually { steps } if row.to == SeedStage::Blending => {
                self.start(0.0, steps);
                self.fading = true;
            }
            Order::Pause => self.paused = true,
            Order::Resume => {
                self.paused = false;
                self.gains.clear();
            }
            _ => {}
        }
        if row.to == from {
            return Outcome::Moved(Vec::new());
        }
        self.enter(row.to);
        Outcome::Moved(vec![(seed, from, row.to)])
    }

    /// Whether a fade ended.
    fn end_step(&mut self) -> bool {
        let Some(ramp) = self.ramp.as_mut().filter(|_| !self.paused) else { return false };
        ramp.done += 1;
        if ramp.done < ramp.steps {
            return false;
        }
        self.ramp = None;
        self.fading
    }

    fn end_epoch(&mut self, seed: u32, moved: &mut Vec<Moved>) {
        self.age += 1;
        self.since_measured = self.since_measured.map(|epochs| epochs + 1);
        if self.paused {
            return;
        }
        self.epochs += 1;
        let (needed, next) = match self.stage {
            SeedStage::Pruned => (1, SeedStage::Embargoed),
            SeedStage::Embargoed => (EMBARGO_EPOCHS, SeedStage::Resetting),
            SeedStage::Resetting => (1, SeedStage::Dormant),
            _ => return,
        };
        if self.epochs >= needed {
            moved.push((seed, self.stage, next));
            self.enter(next);
        }
    }
}

impl Lives {
    /// Who takes which part in a training step.
    pub(crate) fn structure(&self) -> Vec<(SeedId, Role)> {
        self.seeds.iter().filter_map(|(&seed, life)| Some((SeedId(seed), life.part()?))).collect()
    }

    /// Whose parameters are trained.
    pub(crate) fn learning(&self) -> Vec<SeedId> {
        let learning = self.structure().into_iter().filter(|(_, role)| *role != Role::Fading);
        learning.map(|(seed, _)| seed).collect()
    }

    fn germinate(&mut self, slot: usize) -> Outcome {
        let taken = |life: &Life| life.slot == slot && life.stage != SeedStage::Fossilized;
        if self.seeds.values().any(taken) {
            return Outcome::Refused(ErrorKind::Rejected);
        }
        let seed = self.next_seed;
        self.next_seed += 1;
        self.seeds.insert(seed, Life::new(slot));
        Outcome::Moved(vec![(seed, SeedStage::Dormant, SeedStage::Germinated)])
    }

    fn end_step(&mut self) -> Outcome {
        for (&seed, life) in &mut self.seeds {
            if life.end_step() {
                self.unreturned.push((seed, SeedStage::Blending, SeedStage::Pruned));
                life.enter(SeedStage::Pruned);
            }
        }
        Outcome::Moved(Vec::new())
    }

    fn end_epoch(&mut self) -> Outcome {
        let mut moved = std::mem::take(&mut self.unreturned);
        for (&seed, life) in &mut self.seeds {
            life.end_epoch(seed, &mut moved);
        }
        self.seeds.retain(|_, life| life.stage != SeedStage::Dormant);
        Outcome::Moved(moved)
    }
}

impl ReferenceStateMachine for Lives {
    type State = Self;
    type Transition = Action;

    fn init_state() -> BoxedStrategy<Self> {
        let outcome = Outcome::Moved(Vec::new());
        Just(Self { seeds: BTreeMap::new(), next_seed: 1, unreturned: Vec::new(), outcome }).boxed()
    }

    /// Mostly what is legal now, for else most lives would end before they begin; now and then anything at all.
    fn transitions(state: &Self) -> BoxedStrategy<Action> {
        let latest = state.next_seed;
        let any_seed = (latest.saturating_sub(3)..=latest).boxed();
        let any_order = prop::sample::select(orders().map(|(_, order)| order).to_vec());
        let mut legal: Vec<(u32, Action)> = Vec::new();
        for (&seed, life) in &state.seeds {
            legal.extend(life.missing(seed).map(|action| (20, action)));
            legal.extend(orders().into_iter().filter_map(|(weight, order)| {
                let carried_out = matches!(life.clone().carry_out(seed, order), Outcome::Moved(_));
                carried_out.then_some((weight, Action::Send { seed, order }))
            }));
        }
        let legal: Vec<Action> =
            legal.into_iter().flat_map(|(weight, action)| std::iter::repeat_n(action, weight as usize)).collect();
        let legal = if legal.is_empty() { vec![Action::Germinate { slot: 0 }] } else { legal };
        let known: Vec<u32> = state.seeds.keys().copied().chain([latest]).collect();
        prop_oneof![
            2 => (0..SLOTS.len()).prop_map(|slot| Action::Germinate { slot }),
            20 => prop::sample::select(legal),
            3 => (any_seed, any_order).prop_map(|(seed, order)| Action::Send { seed, order }),
            3 => (prop::sample::select(known), prop::bool::weighted(0.85))
                .prop_map(|(seed, useful)| Action::Measure { seed, useful }),
            3 => Just(Action::EndStep),
            4 => Just(Action::EndEpoch),
        ]
        .boxed()
    }

    fn apply(mut state: Self, action: &Action) -> Self {
        state.outcome = match *action {
            Action::Germinate { slot } => state.germinate(slot),
            Action::Send { seed, order } => match state.seeds.get_mut(&seed) {
                Some(life) => life.carry_out(seed, order),
                None => Outcome::Refused(ErrorKind::UnknownSeed),
            },
            Action::Measure { seed, useful } => {
                if let Some(life) = state.seeds.get_mut(&seed) {
                    life.measure(useful);
                }
                Outcome::Moved(Vec::new())
            }
            Action::EndStep => state.end_step(),
            Action::EndEpoch => state.end_epoch(),
        };
        state
    }
}
