//! What each command does: checks first, then a changed copy, then the swap, so a refusal changes nothing (SM-3).
//!
//! A copy of the network shares its tensors and costs a few reference counts.
#![deny(clippy::wildcard_enum_match_arm)]

use leyline::command::{AlphaRamp, Operation};
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::model::TrainableModel;
use leyline::seed::{Applied, SeedStage, Transition};
use leyline::unit::Alpha;

use crate::blueprint::{Registry, SeedModule};
use crate::config::KasminaConfig;
use crate::error::Error;
use crate::graft::{AlphaCell, Graft, GraftedModel, Role};
use crate::lifecycle::SeedRecord;
use crate::manager::state::{State, weight_rng};
use crate::weight::WeightSource;

impl State {
    /// Carries out an operation, whole or not at all.
    pub(super) fn carry_out(
        &mut self,
        operation: &Operation,
        reason: &str,
        config: &KasminaConfig,
        registry: &Registry,
    ) -> Result<Applied, Error> {
        match operation {
            Operation::Germinate { slot, blueprint } => self.germinate(slot, blueprint, reason, config, registry),
            Operation::StartTraining { seed } => self.advance(*seed, SeedStage::Training, None, reason, config),
            Operation::StartBlending { seed, ramp } => self.start_blending(*seed, *ramp, reason, config),
            Operation::Hold { seed } => self.advance(*seed, SeedStage::Holding, None, reason, config),
            Operation::Fossilize { seed } => self.advance(*seed, SeedStage::Fossilized, None, reason, config),
            Operation::Cull { seed } => self.advance(*seed, SeedStage::Pruned, None, reason, config),
        }
    }

    fn germinate(
        &mut self,
        slot: &SlotId,
        blueprint: &BlueprintId,
        reason: &str,
        config: &KasminaConfig,
        registry: &Registry,
    ) -> Result<Applied, Error> {
        let (slot_index, host_slot) = self.slot(slot)?;
        if let Some(record) = self.occupant(slot) {
            return Err(Error::SlotOccupied { slot: slot.clone(), seed: record.id, stage: record.stage() });
        }
        let kind = registry.get(blueprint)?;
        let shape = host_slot.shape;
        if !kind.fits(shape) {
            return Err(Error::BlueprintDoesNotFit { blueprint: blueprint.clone(), slot: slot.clone(), shape });
        }
        let seed = SeedId(self.next_seed);
        let next_seed = self.next_seed.checked_add(1).ok_or(Error::OutOfSeedIds)?;
        let mut source = WeightSource::draw(weight_rng(self.init_seed, seed.0));
        let device = self.model.device();
        let module = SeedModule::build(kind, seed, shape, config.seed_width, &mut source, device)?;
        let num_parameters = module.weights().num_elements() as u64;
        let graft = Graft { seed, role: Role::Idle, module, alpha: AlphaCell::new(Alpha::ZERO, device)? };
        let mut model = self.model.clone();
        model.insert(slot_index, graft);

        let (slot, blueprint) = (slot.clone(), blueprint.clone());
        let record = SeedRecord::germinated(seed, slot, blueprint, config.seed_width, num_parameters);
        let transition =
            Transition { seed, from: SeedStage::Dormant, to: SeedStage::Germinated, reason: reason.to_owned() };
        self.next_seed = next_seed;
        self.commit(model, record, vec![transition])
    }

    fn start_blending(
        &mut self,
        seed: SeedId,
        ramp: AlphaRamp,
        reason: &str,
        config: &KasminaConfig,
    ) -> Result<Applied, Error> {
        let record = self.record(seed)?;
        if record.stage() == SeedStage::Blending {
            // A seed that rests at a partial alpha gets another target; its stage stays.
            let mut record = record.clone();
            let mut model = self.model.clone();
            retarget(&mut record, &mut model, ramp)?;
            return self.commit(model, record, Vec::new());
        }
        if record.stage() == SeedStage::Training && ramp.target.is_zero() {
            return Err(Error::RampToNothing { seed });
        }
        self.advance(seed, SeedStage::Blending, Some(ramp), reason, config)
    }

    /// Moves a seed to another stage, if the lifecycle and the gate allow it.
    fn advance(
        &mut self,
        seed: SeedId,
        to: SeedStage,
        ramp: Option<AlphaRamp>,
        reason: &str,
        config: &KasminaConfig,
    ) -> Result<Applied, Error> {
        let mut record = self.record(seed)?.clone();
        record.check_move(to)?;
        let verdict = record.judge(&config.gates, to);
        if let Some(report) = verdict.as_ref().filter(|report| !report.passed) {
            return Err(Error::GateFailed { seed, report: report.clone() });
        }
        let mut model = self.model.clone();
        let (slot_index, mut graft) = model.take_live(seed).ok_or(Error::UnknownSeed { seed })?;
        let transition = record.move_to(to, verdict, reason.to_owned())?;
        // A removed seed is not put back: its tensors are freed with the last copy of the network that has it.
        if let Some(role) = Role::of(to) {
            graft.role = role;
            model.insert(slot_index, graft);
        }
        if let Some(ramp) = ramp {
            retarget(&mut record, &mut model, ramp)?;
        }
        self.commit(model, record, vec![transition])
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

fn retarget(record: &mut SeedRecord, model: &mut GraftedModel, ramp: AlphaRamp) -> Result<(), Error> {
    let seed = record.id;
    record.alpha.retarget(ramp).map_err(|running| Error::RampRunning { seed, steps_left: running.steps_left })?;
    model.write_alpha(seed, record.alpha.alpha())
}
