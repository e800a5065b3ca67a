//! What is to be chosen at a decision, and what follows from it.

use leyline::command::Operation;
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::seed::{SeedStage, SeedState};
use leyline::state::SystemState;

use crate::policy::heuristic::budget::Room;
use crate::policy::heuristic::decide::Asks;
use crate::policy::heuristic::placement::Offered;
use crate::policy::heuristic::rules::{closing, fades, gate_is_open};
use crate::policy::learned::LearnedMemory;
use crate::policy::learned::features::{Row, Shown};
use crate::policy::proposal::{acts_in_full, full_ramp, live_seeds};
use crate::policy::{HeuristicConfig, Proposal};

// Indices of `OUTPUTS`.
const WAIT: usize = 0;
const ONWARD: usize = 1;
const CULL: usize = 2;
const REST: usize = 3;
const GERMINATE: usize = 4;
const SLOT: usize = 5;
const BLUEPRINT: usize = 6;

/// What a choice is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// Wait, go onward or cull.
    Seed(SeedId),
    /// Rest or germinate.
    Germination,
    /// In which of these free slots.
    Slot(Vec<SlotId>),
    /// Which of these blueprints in that slot.
    Blueprint(Vec<BlueprintId>),
}

/// Options that are allowed; what is not allowed is none of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// What it is about.
    pub about: About,
    /// What the network is shown.
    pub rows: Vec<Row>,
    /// A logit for each option: of which row, and which of [`OUTPUTS`](super::OUTPUTS).
    pub options: Vec<(usize, usize)>,
}

/// Takes an option of a choice: its index, and its probability.
pub(super) type Take<'a> = &'a mut dyn FnMut(&Choice) -> (usize, f64);

/// The move that a seed may make now, if any: none that the lifecycle or a gate that spoke would refuse.
fn onward(limits: &HeuristicConfig, state: &SystemState, seed: &SeedState) -> Option<Operation> {
    let id = seed.seed_id;
    let is_shut = |next| seed.last_gate.as_ref().is_some_and(|gate| gate.target == next && !gate.passed);
    let operation = match seed.stage {
        SeedStage::Germinated if !is_shut(SeedStage::Training) => Operation::StartTraining { seed: id },
        SeedStage::Training if gate_is_open(seed, SeedStage::Blending) => {
            let ramp = full_ramp(limits.blending.ramp_epochs, limits.blending.curve, state);
            Operation::StartBlending { seed: id, ramp }
        }
        SeedStage::Blending if acts_in_full(seed) && !is_shut(SeedStage::Holding) => Operation::Hold { seed: id },
        SeedStage::Holding if gate_is_open(seed, SeedStage::Fossilized) => Operation::Fossilize { seed: id },
        _ => return None,
    };
    (!seed.paused && !seed.weights_pending).then_some(operation)
}

fn one_row(about: About, row: Row, outputs: &[usize]) -> Choice {
    Choice { about, rows: vec![row], options: outputs.iter().map(|output| (0, *output)).collect() }
}

fn of_each(about: About, rows: Vec<Row>, output: usize) -> Choice {
    let options = (0..rows.len()).map(|row| (row, output)).collect();
    Choice { about, rows, options }
}

/// Asks `take` for every choice of a decision: first the limits, then each seed, then what germinates.
pub(super) fn propose(
    limits: &HeuristicConfig,
    memory: &mut LearnedMemory,
    state: &SystemState,
    take: Take<'_>,
) -> Vec<Proposal> {
    memory.observe(limits, state);
    let watched = &memory.watched;
    let mut proposals: Vec<Proposal> =
        state.seeds.iter().filter_map(|seed| closing(limits, &watched.evidence, state, seed)).collect();
    proposals.extend(limits.spent(watched, state, &proposals));
    let shown = Shown::of(limits, watched, memory.first_loss, state);
    let settled: Vec<SeedId> =
        proposals.iter().filter_map(|one| one.operation.as_ref().and_then(Operation::seed)).collect();
    for seed in live_seeds(state, &[]).filter(|seed| !settled.contains(&seed.seed_id) && !fades(seed)) {
        let onward = onward(limits, state, seed);
        let outputs: &[usize] = if onward.is_some() { &[WAIT, CULL, ONWARD] } else { &[WAIT, CULL] };
        let (taken, probability) = take(&one_row(About::Seed(seed.seed_id), shown.seed(seed), outputs));
        let operation = match (outputs[taken], onward) {
            (ONWARD, Some(onward)) => onward,
            (CULL, _) => Operation::Cull { seed: seed.seed_id },
            _ => continue,
        };
        let detail = format!("probability {probability:.3}, {} epochs in {}", seed.epochs_in_stage, seed.stage);
        proposals.push(Proposal::act(operation, "learned", detail));
    }
    let germination = match limits.against(watched, state, &proposals, Asks::Limits) {
        Some(against) => against,
        None => germinate(limits, (state, &shown), &limits.room(watched, state, &proposals), take),
    };
    if let Some(Operation::Germinate { slot, blueprint, .. }) = &germination.operation {
        memory.watched.record_germination(limits, state, (slot, blueprint));
    }
    proposals.push(germination);
    proposals
}

fn germinate(
    limits: &HeuristicConfig,
    (state, shown): (&SystemState, &Shown<'_>),
    room: &Room<'_>,
    take: Take<'_>,
) -> Proposal {
    let mut offers = room.offers();
    offers.retain(|offered| limits.germination.rank(&offered.offer.blueprint).is_some());
    let free: Vec<&[Offered<'_>]> = Offered::by_slot(&offers).collect();
    if free.is_empty() {
        return room.refusal();
    }
    if let Some(against) = limits.does_not_pay(state, &offers) {
        return against;
    }
    let (taken, probability) = take(&one_row(About::Germination, shown.run(), &[REST, GERMINATE]));
    if taken == 0 {
        return Proposal::wait("learned", format!("nothing germinates, probability {probability:.3}"));
    }
    let rows = free.iter().map(|offers| shown.slot(offers[0].index, offers[0].slot)).collect();
    let slots = free.iter().map(|offers| offers[0].slot.slot.clone()).collect();
    let (at, of_slot) = take(&of_each(About::Slot(slots), rows, SLOT));
    let rows = shown.offers(free[at]);
    let blueprints = free[at].iter().map(|offered| offered.offer.blueprint.clone()).collect();
    let (which, of_blueprint) = take(&of_each(About::Blueprint(blueprints), rows, BLUEPRINT));
    let Offered { slot, offer, .. } = free[at][which];
    let detail = format!("probability {probability:.3}, of the slot {of_slot:.3}, of the blueprint {of_blueprint:.3}");
    Proposal::act(Operation::germinate(slot.slot.clone(), offer.blueprint.clone()), "learned", detail)
}
