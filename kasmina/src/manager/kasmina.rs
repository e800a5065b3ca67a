//! Construction of the seed manager, and its contract as one list of calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Device;
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{Command, SignedCommand};
use leyline::error::ErrorType;
use leyline::id::{EpochIndex, RunId, SeedId, StepIndex, TopologyRevision};
use leyline::model::Parameter;
use leyline::region::Eager;
use leyline::seed::{
    AlphaMode, Applied, Attribution, AttributionMode, Evidence, SeedManager, SeedStage, SeedState, SlotState,
    Transition,
};
use leyline::telemetry::{Event, Recorder};

use crate::attribution::{self, Acting};
use crate::blueprint::Registry;
use crate::command::{CommandKey, Verifier};
use crate::config::KasminaConfig;
use crate::error::Error;
use crate::graft::GraftedModel;
use crate::host::Host;
use crate::isolation::{self, Violation};
use crate::manager::state::{State, weight_rng};
use crate::telemetry::{self, Telemetry};
use crate::weight::WeightSource;

/// The seed manager of one run.
#[derive(Debug)]
pub struct Kasmina {
    pub(super) config: KasminaConfig,
    pub(super) registry: Registry,
    pub(super) state: State,
    pub(super) verifier: Verifier,
    /// Whether nothing was trained, applied or restored yet: nobody can have captured this network.
    pub(super) untouched: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) telemetry: Telemetry,
}

impl Kasmina {
    /// Builds the host without seeds, with the blueprints that the configuration asks for.
    ///
    /// # Errors
    /// [`Error::Config`] with every unusable value, or when the device fails.
    pub fn new(
        config: KasminaConfig,
        device: &Device,
        run_id: RunId,
        key: CommandKey,
        clock: Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Self, Error> {
        let registry = if config.noise_blueprint { Registry::with_noise() } else { Registry::standard() };
        Self::with_registry(config, registry, device, run_id, key, clock, recorder)
    }

    /// As [`Self::new`], with blueprints of the caller's choice; `noise_blueprint` of the configuration is not used.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_registry(
        config: KasminaConfig,
        registry: Registry,
        device: &Device,
        run_id: RunId,
        key: CommandKey,
        clock: Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Self, Error> {
        let issues = config.validate();
        if !issues.is_empty() {
            return Err(Error::Config { issues });
        }
        let host = Host::build(&config.host, &mut WeightSource::draw(weight_rng(config.init_seed, 0)), device)?;
        let model = GraftedModel::new(host, device.clone(), TopologyRevision(1))?;
        let state = State { model, seeds: BTreeMap::new(), next_seed: 1, init_seed: config.init_seed };
        let verifier = Verifier::new(run_id, key);
        let telemetry = Telemetry::new(recorder);
        let mut manager = Self { config, registry, state, verifier, untouched: true, clock, telemetry };
        manager.update_gauges();
        Ok(manager)
    }

    /// What it was built from.
    #[must_use]
    pub fn config(&self) -> &KasminaConfig {
        &self.config
    }

    /// The parameters of a seed, whether or not they train now; none once it is pruned.
    #[must_use]
    pub fn seed_parameters(&self, seed: SeedId) -> Option<&[Parameter]> {
        self.state.model.seed_parameters(seed)
    }

    /// Runs the [isolation audit](isolation::audit) on a batch, and counts and reports what it finds.
    ///
    /// # Errors
    /// When a forward or backward pass fails.
    /// # Sync
    /// As the audit.
    pub fn audit_isolation(&mut self, eager: &Eager, batch: &Batch) -> Result<Vec<Violation>, Error> {
        eager.check()?;
        let violations = isolation::audit(&self.state.model, &self.state.model.without_shadows()?, batch)?;
        if let Some(first) = violations.first() {
            self.telemetry.violations(violations.len() as u64, &first.to_string());
        }
        Ok(violations)
    }

    /// Brings every gauge up to date.
    pub(super) fn update_gauges(&mut self) {
        let seeds = self.state.seeds.values();
        self.telemetry.seeds(seeds.map(|record| (record.export(), record.alpha.steps_done())));
    }

    fn report_transition(&self, transition: &Transition) {
        let alpha = self.state.seeds.get(&transition.seed).map_or(0.0, |record| record.alpha.alpha().get());
        self.telemetry.transition(transition, alpha);
    }

    fn report_applied(&mut self, command: &Command, applied: &Applied) {
        let mut event = Event::new(&telemetry::SEED_OPERATION)
            .with("operation", command.operation.name())
            .with("seed_id", applied.seed)
            .with("sequence", command.sequence)
            .with("reason", &command.reason);
        if let Some(record) = self.state.seeds.get(&applied.seed) {
            event = event.with("blueprint_id", &record.blueprint).with("slot_id", &record.slot);
        }
        self.telemetry.event(event);
        for transition in &applied.transitions {
            self.report_transition(transition);
        }
        self.update_gauges();
    }

    fn report_refused(&self, command: &Command, error: &Error) {
        let mut event = Event::new(&telemetry::OPERATION_REFUSED)
            .with("operation", command.operation.name())
            .with("sequence", command.sequence)
            .with("error", error);
        if let Some(seed) = command.operation.seed() {
            event = event.with("seed_id", seed);
        }
        self.telemetry.event(event);
        if let Error::GateFailed { seed, report } = error {
            let event = Event::new(&telemetry::GATE_FAILURE)
                .with("seed_id", seed)
                .with("target", report.target)
                .with("failed", report.failed.join("; "));
            self.telemetry.event(event);
        }
    }

    /// Seeds that can influence the loss, ordered by id.
    fn acting(&self) -> Vec<Acting> {
        let acting = self.state.seeds.values().filter(|record| record.stage().acts_on_output());
        acting
            .map(|record| Acting { seed: record.id, stage: record.stage(), alpha: record.alpha.alpha() })
            .filter(|acting| !acting.alpha.is_zero())
            .collect()
    }
}

impl ErrorType for Kasmina {
    type Error = Error;
}

impl SeedManager for Kasmina {
    type Model = GraftedModel;

    fn model(&self) -> &GraftedModel {
        &self.state.model
    }

    fn attribute_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<Attribution, Error> {
        eager.check()?;
        let wanted = self.config.attribution;
        let acting = self.acting();
        let attribution = attribution::attribute(wanted, &self.state.model, &acting, batch)?;
        let fell_back = !acting.is_empty() && wanted != AttributionMode::HostOnly && attribution.used() != wanted;
        self.telemetry.attribution(wanted, attribution.used(), fell_back);
        Ok(attribution)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Error> {
        eager.check()?;
        Ok(self.state.seeds.values().map(|record| record.export()).collect())
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Error> {
        eager.check()?;
        Ok(self.state.export_slots(&self.registry, self.config.seed_width))
    }

    /// A refused operation uses up the command's sequence number, a command that fails its security checks does not.
    fn apply(&mut self, eager: &mut Eager, command: &SignedCommand) -> Result<Applied, Error> {
        eager.check()?;
        self.untouched = false;
        let command = self.verifier.accept(command, &*self.clock).map_err(|rejection| {
            self.telemetry.rejected(&rejection);
            Error::Command(rejection)
        })?;
        self.telemetry.accepted.add(1);
        let outcome = self.state.carry_out(&command.operation, &command.reason, &self.config, &self.registry);
        match &outcome {
            Ok(applied) => self.report_applied(&command, applied),
            Err(error) => self.report_refused(&command, error),
        }
        outcome
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Error> {
        eager.check()?;
        for item in evidence {
            self.state.record(item.seed)?;
        }
        for item in evidence {
            if let Some(record) = self.state.seeds.get_mut(&item.seed) {
                record.record(item);
            }
        }
        Ok(())
    }

    /// When a ramp ends at 0 the seed leaves the computation, and the layout's revision grows.
    fn finish_step(&mut self, eager: &mut Eager, step: StepIndex) -> Result<(), Error> {
        eager.check()?;
        self.untouched = false;
        let ramping = self.state.seeds.values_mut().filter(|record| record.alpha.mode() != AlphaMode::Hold);
        for record in ramping {
            let mut alpha = record.alpha;
            let finished = alpha.advance();
            self.state.model.write_alpha(record.id, alpha.alpha())?;
            record.alpha = alpha;
            self.telemetry.alpha(record.id, alpha.alpha().get(), alpha.steps_done());
            if finished {
                let event = Event::new(&telemetry::RAMP_FINISHED)
                    .with("seed_id", record.id)
                    .with("alpha", alpha.alpha())
                    .with("step", step);
                self.telemetry.event(event);
            }
        }
        self.state.model.refresh()
    }

    fn finish_epoch(&mut self, eager: &mut Eager, _epoch: EpochIndex) -> Result<Vec<Transition>, Error> {
        eager.check()?;
        self.untouched = false;
        let mut transitions = Vec::new();
        for record in self.state.seeds.values_mut() {
            transitions.extend(record.finish_epoch(self.config.embargo_epochs)?);
            let seed_id = record.id;
            if let Some(report) = record.judge_next(&self.config.gates) {
                let event = Event::new(&telemetry::GATE_PASSED)
                    .with("seed_id", seed_id)
                    .with("target", report.target)
                    .with("met", report.met.join("; "));
                self.telemetry.event(event);
            }
        }
        self.state.seeds.retain(|_, record| record.stage() != SeedStage::Dormant);
        for transition in &transitions {
            self.report_transition(transition);
        }
        self.update_gauges();
        Ok(transitions)
    }
}
