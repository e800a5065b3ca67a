//! What each command does: checks first, then a changed copy, then the swap, so a refusal changes nothing (SM-3).
//!
//! A copy of the network shares its tensors and costs a few reference counts.
#![deny(clippy::wildcard_enum_match_arm)]

use candle_core::{DType, Device};
use leyline::clock::Clock;
use leyline::command::{AlphaRamp, Blend, Operation};
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::model::TrainableModel;
use leyline::seed::{Applied, GateReport, Transition};
use leyline::task::Task;
use leyline::unit::Alpha;

use crate::blueprint::{Registry, SeedModule};
use crate::config::KasminaConfig;
use crate::error::Error;
use crate::graft::{AlphaCell, Graft, GraftedModel, Role, SeedBlend};
use crate::host::SlotShape;
use crate::init::{self, InitMode};
use crate::lifecycle::table::{Effect, Move, Trigger};
use crate::lifecycle::{Cause, Germination, Newborn, SeedRecord};
use crate::manager::state::{State, weight_rng};
use crate::weight::{WeightSet, WeightSource};

/// Forward passes that a latency is taken from.
const NUM_PASSES: usize = 5;

/// What an operation needs beside the state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tools<'a> {
    pub(super) config: &'a KasminaConfig,
    pub(super) registry: &'a Registry,
    pub(super) clock: &'a dyn Clock,
    pub(super) task: Option<&'a dyn Task>,
}

/// What an operation did.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) applied: Applied,
    /// The verdict of the gate that let the seed pass, unless the end of an epoch has announced it.
    pub(super) passed: Option<GateReport>,
}

impl State {
    /// Carries out an operation, whole or not at all.
    pub(super) fn carry_out(
        &mut self,
        operation: &Operation,
        reason: &str,
        tools: Tools<'_>,
    ) -> Result<Applied, Error> {
        self.perform(operation, reason, tools).map(|done| done.applied)
    }

    /// As [`Self::carry_out`], with the verdict of a gate that is still to be told.
    pub(super) fn perform(&mut self, operation: &Operation, reason: &str, tools: Tools<'_>) -> Result<Done, Error> {
        let (seed, ramp) = match operation {
            Operation::Germinate { slot, blueprint, blend } => {
                return self.germinate((slot, blueprint, blend), reason, tools);
            }
            Operation::StartBlending { seed, ramp } => {
                self.record(*seed)?;
                // At the end of such a ramp its parameters would leave the layout in the middle of an epoch.
                let cell = self.model.graft(*seed).map(|graft| &graft.alpha);
                if ramp.target.is_zero() || cell.is_some_and(|cell| cell.rounds_to_zero(ramp.target)) {
                    return Err(Error::RampToNothing { seed: *seed });
                }
                (*seed, Some(*ramp))
            }
            Operation::CullGradually { seed, steps, curve } => {
                (*seed, Some(AlphaRamp { target: Alpha::ZERO, steps: *steps, curve: *curve }))
            }
            Operation::StartTraining { seed }
            | Operation::Hold { seed }
            | Operation::Fossilize { seed }
            | Operation::Cull { seed }
            | Operation::Pause { seed }
            | Operation::Resume { seed } => (*seed, None),
        };
        self.follow(seed, Trigger::of(operation), Cause { reason, ramp }, tools.config)
    }

    fn germinate(
        &mut self,
        (slot, blueprint, blend): (&SlotId, &BlueprintId, &Blend),
        reason: &str,
        Tools { config, registry, clock, task }: Tools<'_>,
    ) -> Result<Done, Error> {
        let (slot_index, host_slot) = self.slot(slot)?;
        if let Some(record) = self.occupant(slot) {
            return Err(Error::SlotOccupied { slot: slot.clone(), seed: record.id, stage: record.stage() });
        }
        let kind = registry.get(blueprint)?;
        let shape = host_slot.shape;
        if !kind.fits(shape) {
            return Err(Error::BlueprintDoesNotFit { blueprint: blueprint.clone(), slot: slot.clone(), shape });
        }
        // Before anything is allocated.
        registry.check_size(blueprint, shape, config.seed_width, SeedBlend::num_elements(blend, shape))?;
        let seed = SeedId(self.next_seed);
        let next_seed = self.next_seed.checked_add(1).ok_or(Error::OutOfSeedIds)?;
        let mut source = WeightSource::draw(weight_rng(self.init_seed, seed.0)).with_dtype(self.model.dtype());
        let device = self.model.device();
        let module = SeedModule::build(kind, seed, shape, config.seed_width, &mut source, device)?;
        let seed_blend = SeedBlend::build(blend, seed, shape, &mut source, device)?;
        if let (InitMode::GradMax, Some(batch)) = (config.seed_init, &self.latest_batch) {
            let task = task.ok_or(Error::NoTask { what: "`seed_init = \"grad_max\"`" })?;
            init::grad_max(&self.model, slot_index, (batch, task), &module, &seed_blend, config.seed_width)?;
        }
        let alpha = AlphaCell::new(Alpha::ZERO, self.model.dtype(), device)?;
        let graft = Graft { seed, role: Role::Idle, module, blend: seed_blend, alpha };
        let num_parameters = graft.weights().map(WeightSet::num_elements).sum::<usize>() as u64;
        // What was not so has a typed refusal of its own above; the report says that it was looked at.
        let germination = Germination {
            slot_is_free: true,
            blueprint_is_known: true,
            blueprint_fits: true,
            shape_is_kept: true,
            num_parameters,
            network_parameters: self.network_parameters().saturating_add(num_parameters),
        };
        // A time differs from run to run, and so would the saved state: none is taken that no gate asks for.
        let timed = config
            .gates
            .latency_budget_ms
            .map(|_| least_latency(&graft.module, shape, self.model.dtype(), clock, device));
        let newborn = Newborn {
            id: seed,
            slot: slot.clone(),
            blueprint: blueprint.clone(),
            blend: blend.clone(),
            width: config.seed_width,
            num_parameters,
            prewarm_ms: timed.transpose()?,
        };
        let (record, transitions) = SeedRecord::germinated(newborn, &config.gates, &germination, reason)
            .map_err(|report| Error::OverBudget { blueprint: blueprint.clone(), slot: slot.clone(), report })?;
        let mut model = self.model.clone();
        model.insert(slot_index, graft);
        let passed = record.latest_gate().cloned();
        let applied = self.commit(model, record, transitions)?;
        self.next_seed = next_seed;
        Ok(Done { applied, passed })
    }

    /// Follows the row of the table for a trigger, if there is one and its gate lets the seed pass.
    fn follow(
        &mut self,
        seed: SeedId,
        trigger: Trigger,
        cause: Cause<'_>,
        config: &KasminaConfig,
    ) -> Result<Done, Error> {
        let mut record = self.record(seed)?.clone();
        let row = record.find_move(trigger)?;
        let verdict = record.judge(&config.gates, self.surroundings(seed, config), row);
        if let Some(report) = verdict.as_ref().filter(|report| !report.passed) {
            return Err(Error::GateFailed { seed, report: report.clone() });
        }
        let mut model = self.model.clone();
        let passed = verdict.clone().filter(|_| !record.has_announced(row));
        let transition = record.follow(row, verdict, cause)?;
        arrange(&mut model, &record, row)?;
        let applied = self.commit(model, record, transition.into_iter().collect())?;
        Ok(Done { applied, passed })
    }

    /// Removes a seed whose fade has ended. The caller renews the layout.
    pub(super) fn end_fade(&mut self, seed: SeedId, reason: &str) -> Result<Option<Transition>, Error> {
        let record = self.seeds.get_mut(&seed).ok_or(Error::UnknownSeed { seed })?;
        let row = record.find_move(Trigger::FadeEnd)?;
        let transition = record.follow(row, None, Cause { reason, ramp: None })?;
        arrange(&mut self.model, record, row)?;
        Ok(transition)
    }

    fn commit(
        &mut self,
        mut model: GraftedModel,
        record: SeedRecord,
        transitions: Vec<Transition>,
    ) -> Result<Applied, Error> {
        model.refresh()?;
        let topology_changed = model.layout().revision() != self.model.layout().revision();
        let seed = record.id;
        self.model = model;
        self.seeds.insert(seed, record);
        Ok(Applied { seed, transitions, topology_changed })
    }
}

/// Least time of five forward passes of a seed's module, ms: one alone may have met a busy machine or a cold cache.
pub(super) fn least_latency(
    module: &SeedModule,
    shape: SlotShape,
    dtype: DType,
    clock: &dyn Clock,
    device: &Device,
) -> candle_core::Result<f64> {
    let passes = (0..NUM_PASSES).map(|_| module.prewarm(shape, dtype, clock, device));
    passes.reduce(|least, next| Ok(least?.min(next?))).expect("there is a first pass")
}

/// Carries out the effects of a row on the network, after those on the record.
fn arrange(model: &mut GraftedModel, record: &SeedRecord, row: &Move) -> Result<(), Error> {
    let seed = record.id;
    for effect in row.effects {
        match effect {
            // Its tensors are freed with the last copy of the network that has it.
            Effect::LeaveNetwork => {
                model.take_live(seed).ok_or(Error::UnknownSeed { seed })?;
            }
            Effect::Become(_) => {
                let (slot_index, graft) = model.take_live(seed).ok_or(Error::UnknownSeed { seed })?;
                // A paused seed that was fading takes that role up again: the record knows.
                let role = record.role().ok_or(Error::UnknownSeed { seed })?;
                model.insert(slot_index, Graft { role, ..graft });
            }
            Effect::StartRamp | Effect::StartFade => model.write_alpha(seed, record.alpha.alpha())?,
            // Parts of the record.
            Effect::ForgetEvidence
            | Effect::StartPause
            | Effect::EndPause
            | Effect::ZeroAlpha
            | Effect::FreeParameters
            | Effect::FreeSlot => {}
        }
    }
    Ok(())
}
