//! Construction of the seed manager, and its contract as one list of calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Device;
use esper_weights::Weights;
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{Blend, Operation, Order};
use leyline::error::ErrorType;
use leyline::id::{EpochIndex, SeedId, StepIndex, TopologyRevision};
use leyline::model::Parameter;
use leyline::region::{Eager, ThreadBinding};
use leyline::seed::{
    Applied, Attribution, Confirmation, Confirming, Costs, Evidence, SeedManager, SeedStage, SeedState, SlotState,
    Transition,
};
use leyline::task::Task;
use leyline::telemetry::{Event, Recorder};

use crate::attribution::Acting;
use crate::blueprint::Registry;
use crate::config::KasminaConfig;
use crate::error::Error;
use crate::graft::{GraftedModel, Role};
use crate::host::{Host, HostConfig, HostSlot};
use crate::init;
use crate::isolation::{Ledger, Monitor};
use crate::lifecycle::{Confirmations, SeedRecord, Spent, judged};
use crate::manager::costs::Known;
use crate::manager::device_cache::DeviceCache;
use crate::manager::library::Library;
use crate::manager::operation::{Done, Tools};
use crate::manager::state::{State, offers, weight_rng};
use crate::telemetry::{SeedReading, Telemetry, events};
use crate::weight::{WeightSet, WeightSource};

/// The seed manager of one run.
#[derive(Debug)]
pub struct Kasmina {
    pub(super) config: KasminaConfig,
    pub(super) registry: Registry,
    pub(super) state: State,
    /// Whether nothing was trained, applied or restored yet: nobody can have captured this network.
    pub(super) untouched: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) telemetry: Telemetry,
    pub(super) monitor: Monitor,
    pub(super) violations: Ledger,
    pub(super) library: Option<Library>,
    /// What the network is trained for, once that was told.
    pub(super) task: Option<Arc<dyn Task>>,
    pub(super) device_cache: DeviceCache,
    pub(super) thread: ThreadBinding,
    /// Whether the batch from which seeds start is of the epoch that goes on.
    pub(super) is_filling: bool,
    /// Of the network as it was when they were asked for last.
    pub(super) costs: RefCell<Option<Known>>,
}

impl Kasmina {
    /// Builds the host without seeds, with the blueprints that the configuration asks for.
    ///
    /// # Errors
    /// [`Error::Config`] with every unusable value, or when the device fails.
    pub fn new(
        config: KasminaConfig,
        device: &Device,
        clock: Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Self, Error> {
        let registry = Registry::on_offer(&config);
        Self::with_registry(config, registry, device, clock, recorder)
    }

    /// As [`Self::new`], with blueprints of the caller's choice, from which `blueprints` of the configuration chooses;
    /// `noise_blueprint` is not used.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_registry(
        config: KasminaConfig,
        registry: Registry,
        device: &Device,
        clock: Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Self, Error> {
        let mut registry = registry;
        let mut issues = config.validate_values();
        issues.extend(registry.issues(&config));
        if !issues.is_empty() {
            return Err(Error::Config { issues });
        }
        registry.configure(&config)?;
        let mut source = WeightSource::draw(weight_rng(config.init_seed, 0)).with_dtype(config.dtype.dtype());
        let host = Host::build(&config.host, config.has_around(), &mut source, device)?;
        let model = GraftedModel::new(host, device.clone(), TopologyRevision(1))?;
        let model = model.with_checkpointing(config.activation_checkpointing).with_shadow_cost(config.shadow_cost);
        let (seeds, unreturned) = (BTreeMap::new(), Vec::new());
        let (init_seed, latest_batch) = (config.init_seed, None);
        let state = State {
            model,
            seeds,
            unreturned,
            next_seed: 1,
            confirmations: Confirmations::default(),
            spent: Spent::default(),
            confirming_samples: None,
            init_seed,
            latest_batch,
        };
        let mut manager = Self {
            config,
            registry,
            state,
            untouched: true,
            clock,
            device_cache: DeviceCache::new(0, &*recorder),
            telemetry: Telemetry::new(recorder),
            monitor: Monitor::default(),
            violations: Ledger::default(),
            library: None,
            task: None,
            thread: ThreadBinding::new(),
            is_filling: false,
            costs: RefCell::new(None),
        };
        manager.report_host();
        manager.update_gauges();
        Ok(manager)
    }

    /// The slots of the network that `config` describes, all free, with what is on offer there. No tensor is made.
    ///
    /// # Errors
    /// [`Error::Config`] with every value that [`Self::new`] would refuse.
    pub fn preview(config: &KasminaConfig) -> Result<Vec<SlotState>, Error> {
        let issues = config.validate();
        if !issues.is_empty() {
            return Err(Error::Config { issues });
        }
        let mut registry = Registry::on_offer(config);
        registry.configure(config)?;
        let (host, _) = Host::preview(&config.host, config.has_around())?;
        let free = |slot: &HostSlot| SlotState {
            slot: slot.id.clone(),
            occupant: None,
            num_fossilized: 0,
            offers: offers(&registry, config, slot.shape),
        };
        Ok(host.slots().iter().map(free).collect())
    }

    /// Parameters of the network that `host` describes, without any seed (count). No tensor is made.
    ///
    /// # Errors
    /// [`Error::Config`] with every value that is none of a host, or when there would be more than 2^31.
    pub fn count_host_parameters(host: &HostConfig) -> Result<u64, Error> {
        let (_, tensors) = Host::preview(host, false)?;
        Ok(tensors.iter().map(|(_, shape)| shape.iter().product::<usize>() as u64).sum())
    }

    /// Keeps a batch from which new seeds may start, see [`InitMode`](crate::init::InitMode): beside those of the same epoch, up to 512 samples of them, and
    /// instead of those of the one before. Batches that are inspected are kept by themselves. Nothing is kept where seeds
    /// start as drawn.
    ///
    /// # Errors
    /// When the batches have other shapes.
    pub fn keep_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<(), Error> {
        self.thread.check(eager)?;
        if self.lacks_samples() {
            let kept = self.state.latest_batch.as_ref().filter(|_| self.is_filling);
            self.state.latest_batch = Some(init::with_batch(kept, batch)?);
            self.is_filling = true;
        }
        Ok(())
    }

    /// The weights of the module of `seed`, in the type of the network, for a library of weights.
    ///
    /// # Errors
    /// [`Error::UnknownSeed`] when it is not in the network; when the device fails.
    /// # Sync
    /// One device-to-host copy for each tensor.
    pub fn export_seed(&self, eager: &Eager, seed: SeedId) -> Result<Weights, Error> {
        self.thread.check(eager)?;
        self.state.model.graft(seed).ok_or(Error::UnknownSeed { seed })?.module.export()
    }

    /// Copies weights into the tensors of the module of `seed` in place, all or none; every clone of the network sees them.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use kasmina::{Error, Kasmina, KasminaConfig, host::HostConfig};
    /// # use esper_weights::Weights;
    /// # use leyline::{clock::SystemClock, id::SeedId, region::Eager, seed::SeedManager, telemetry::NullRecorder};
    /// # let config = KasminaConfig::new(HostConfig::Mlp { inputs: 4, hidden: vec![3], classes: 2 });
    /// # let device = candle_core::Device::Cpu;
    /// # let (clock, recorder) = (Arc::new(SystemClock::new()), Arc::new(NullRecorder));
    /// let mut manager = Kasmina::new(config, &device, clock, recorder)?;
    /// let weights = Weights::from_f32([("up.bias", vec![1], vec![0.5])])?;
    /// let mut eager = Eager::acquire()?;
    /// let refused = manager.load_seed(&mut eager, SeedId(9), &weights);
    /// # eager.record(|_| ());
    /// assert!(matches!(refused, Err(Error::UnknownSeed { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Not while a region is recorded:
    ///
    /// ```compile_fail,E0499
    /// # use std::sync::Arc;
    /// # use kasmina::{Error, Kasmina, KasminaConfig, host::HostConfig};
    /// # use esper_weights::Weights;
    /// # use leyline::{clock::SystemClock, id::SeedId, region::Eager, seed::SeedManager, telemetry::NullRecorder};
    /// # let config = KasminaConfig::new(HostConfig::Mlp { inputs: 4, hidden: vec![3], classes: 2 });
    /// # let device = candle_core::Device::Cpu;
    /// # let (clock, recorder) = (Arc::new(SystemClock::new()), Arc::new(NullRecorder));
    /// let mut manager = Kasmina::new(config, &device, clock, recorder)?;
    /// let weights = Weights::from_f32([("up.bias", vec![1], vec![0.5])])?;
    /// let mut eager = Eager::acquire()?;
    /// let refused = eager.record(|_| manager.load_seed(&mut eager, SeedId(9), &weights));
    /// # eager.record(|_| ());
    /// assert!(matches!(refused, Err(Error::UnknownSeed { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// and not by way of the network, which a region may run:
    ///
    /// ```compile_fail,E0599
    /// # use std::sync::Arc;
    /// # use kasmina::{Error, Kasmina, KasminaConfig, host::HostConfig};
    /// # use esper_weights::Weights;
    /// # use leyline::{clock::SystemClock, id::SeedId, region::Eager, seed::SeedManager, telemetry::NullRecorder};
    /// # let config = KasminaConfig::new(HostConfig::Mlp { inputs: 4, hidden: vec![3], classes: 2 });
    /// # let device = candle_core::Device::Cpu;
    /// # let (clock, recorder) = (Arc::new(SystemClock::new()), Arc::new(NullRecorder));
    /// let mut manager = Kasmina::new(config, &device, clock, recorder)?;
    /// let weights = Weights::from_f32([("up.bias", vec![1], vec![0.5])])?;
    /// let mut eager = Eager::acquire()?;
    /// let refused = manager.model().load_seed(&mut eager, SeedId(9), &weights);
    /// # eager.record(|_| ());
    /// assert!(matches!(refused, Err(Error::UnknownSeed { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownSeed`] when it is not in the network, [`Error::Artifact`] when the weights do not fit; when the
    /// device fails.
    /// # Sync
    /// none
    pub fn load_seed(&mut self, eager: &mut Eager, seed: SeedId, weights: &Weights) -> Result<(), Error> {
        self.thread.check(eager)?;
        self.state.model.graft(seed).ok_or(Error::UnknownSeed { seed })?.module.load(weights)
    }

    /// What it was built from.
    #[must_use]
    pub fn config(&self) -> &KasminaConfig {
        &self.config
    }

    /// The parameters of a seed, whether or not they train now; none once it is pruned.
    #[must_use]
    pub fn seed_parameters(&self, seed: SeedId) -> Option<Vec<Parameter>> {
        self.state.model.seed_parameters(seed)
    }

    /// Removes every seed that is not permanent, at once and in the order of their ids. Their slots are embargoed. For
    /// the place where orders are applied, between epochs.
    ///
    /// # Errors
    /// When the layout cannot be made; seeds before the one that failed are removed then.
    pub fn reset_registry(&mut self, eager: &mut Eager) -> Result<(), Error> {
        self.thread.check(eager)?;
        self.untouched = false;
        let live = self.state.seeds.values().filter(|record| record.stage().is_live());
        let seeds: Vec<SeedId> = live.map(|record| record.id).collect();
        seeds.iter().try_for_each(|&seed| self.cull(seed, "registry reset"))?;
        self.telemetry.event(Event::new(&events::REGISTRY_RESET).with("seeds_removed", seeds.len()));
        self.update_gauges();
        Ok(())
    }

    /// Removes a seed that is not permanent. The next end of an epoch returns the change of its stage.
    fn cull(&mut self, seed: SeedId, reason: &str) -> Result<(), Error> {
        let (config, registry, clock) = (&self.config, &self.registry, &*self.clock);
        let tools = Tools { config, registry, clock, task: self.task.as_deref() };
        for transition in self.state.carry_out(&Operation::Cull { seed }, reason, tools)?.transitions {
            self.report_transition(&transition);
            self.state.unreturned.push(transition);
        }
        Ok(())
    }

    /// Brings every gauge up to date.
    pub(super) fn update_gauges(&mut self) {
        let host = self.state.model.host().weights().map(WeightSet::num_elements).sum::<usize>() as u64;
        let (library, violations, model) = (&self.library, &self.violations, &self.state.model);
        let readings = self.state.export_seeds().into_iter().map(|state| {
            let fetched = library.as_ref().map(|library| library.fetched(state.seed_id)).unwrap_or_default();
            SeedReading {
                fetch_ms: fetched.latency_ms,
                is_fallback: fetched.is_fallback,
                leaks: violations.latest(state.seed_id).filter(|_| model.role(state.seed_id) == Some(Role::Shadow)),
                host_norm: host_norm(&state, host),
                state,
            }
        });
        self.telemetry.seeds(readings);
        let histories = self.state.seeds.values().map(|record| record.history_size());
        let (size, dropped) = histories.fold((0, 0), |sum, (size, dropped)| (sum.0 + size, sum.1 + dropped));
        self.telemetry.histories(size, dropped);
    }

    /// Says that the host stands, and how large it is.
    pub(super) fn report_host(&self) {
        let weights = self.state.model.host().weights();
        let parameters: usize = weights.map(WeightSet::num_elements).sum();
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let gib = (parameters * self.config.dtype.dtype().size_in_bytes()) as f64 / f64::from(1 << 30);
        let event = Event::new(&events::TEACHER_REGISTERED)
            .with("memory_gb", format_args!("{gib:.6}"))
            .with("parameters", parameters);
        self.telemetry.event(event);
    }

    pub(super) fn report_transition(&mut self, transition: &Transition) {
        let seed = transition.seed;
        let alpha = self.state.seeds.get(&seed).map_or(0.0, |record| record.alpha.alpha().get());
        self.telemetry.transition(transition, alpha);
        if transition.to == SeedStage::Pruned {
            let event = Event::new(&events::ROLLBACK_READY)
                .with("seed_id", seed)
                .with("stage", transition.from)
                .with("reason", &transition.reason);
            self.telemetry.event(event);
            if let Some(library) = &mut self.library {
                library.forget(seed, "seed_retired", &self.telemetry);
            }
        }
    }

    fn report_applied(&mut self, order: &Order, Done { applied, passed }: &Done) {
        let event = Event::new(&events::SEED_OPERATION).with("operation", order.operation.name());
        let mut event = numbered(event.with("seed_id", applied.seed), order).with("reason", &order.reason);
        if let Some(record) = self.state.seeds.get(&applied.seed) {
            event = event.with("blueprint_id", &record.blueprint).with("slot_id", &record.slot);
        }
        self.telemetry.event(event);
        self.report_details(&order.operation, applied.seed);
        if let Some(report) = passed {
            self.telemetry.gate(Some(applied.seed), report);
        }
        for transition in &applied.transitions {
            self.report_transition(transition);
        }
        self.update_gauges();
    }

    /// What an operation says beside its answer.
    fn report_details(&self, operation: &Operation, seed: SeedId) {
        let stage = self.state.seeds.get(&seed).map(|record| record.stage());
        let about = |desc| {
            let event = Event::new(desc).with("seed_id", seed);
            stage.into_iter().fold(event, |event, stage| event.with("stage", stage))
        };
        match operation {
            Operation::Germinate { blend, .. } => {
                let event = Event::new(&events::BLEND_CONFIG).with("seed_id", seed).with("mode", blend.mode());
                let event = event.with("source", "command");
                self.telemetry.event(match blend {
                    Blend::Channel(weights) => event.with("alpha_vec_len", weights.get().len()),
                    Blend::Convex | Blend::Residual | Blend::Confidence(_) | Blend::Multiply | Blend::Gate => event,
                });
                if let Some(latency) = self.state.seeds.get(&seed).and_then(|record| record.prewarm_ms()) {
                    self.telemetry.prewarmed(latency);
                }
            }
            Operation::Pause { .. } => self.telemetry.event(about(&events::SEED_PAUSED)),
            Operation::Resume { .. } => self.telemetry.event(about(&events::SEED_RESUMED)),
            Operation::StartTraining { .. }
            | Operation::StartBlending { .. }
            | Operation::Hold { .. }
            | Operation::Fossilize { .. }
            | Operation::Cull { .. }
            | Operation::CullGradually { .. } => {}
        }
    }

    fn report_refused(&self, order: &Order, error: &Error) {
        let event = Event::new(&events::OPERATION_REFUSED).with("operation", order.operation.name());
        let mut event = numbered(event, order).with("error", error);
        if let Some(seed) = order.operation.seed() {
            event = event.with("seed_id", seed);
        }
        self.telemetry.event(event);
        match error {
            Error::GateFailed { seed, report } => self.telemetry.gate(Some(*seed), report),
            Error::OverBudget { report, .. } => self.telemetry.gate(None, report),
            _ => {}
        }
    }

    /// Carries out an order and answers it.
    fn act_on(&mut self, order: &Order) -> Result<Applied, Error> {
        self.untouched = false;
        let outcome = self.carry_out(order);
        match &outcome {
            Ok(done) => self.report_applied(order, done),
            Err(error) => self.report_refused(order, error),
        }
        self.telemetry.annotations(order);
        outcome.map(|done| done.applied)
    }

    /// Carries out an operation with what it needs from the library: all of it or nothing.
    fn carry_out(&mut self, order: &Order) -> Result<Done, Error> {
        order.check_verified()?;
        let ticket = self.request_weights(&order.operation)?;
        let (config, registry, clock) = (&self.config, &self.registry, &*self.clock);
        let tools = Tools { config, registry, clock, task: self.task.as_deref() };
        let done = self.state.perform(&order.operation, &order.reason, tools)?;
        if let Some(ticket) = ticket {
            self.await_weights(done.applied.seed, ticket);
        }
        Ok(done)
    }

    /// Seeds that can influence the loss, ordered by id. A paused one cannot, nor one whose α is zero in the type of the
    /// network: the graft knows.
    pub(super) fn acting(&self) -> Vec<Acting> {
        let acts = |seed| self.state.model.graft(seed).is_some_and(|graft| graft.part().is_some());
        let acting = self.state.seeds.values().filter(|record| record.stage().acts_on_output() && !record.is_paused());
        acting
            .map(|record| Acting { seed: record.id, stage: record.stage(), alpha: record.alpha.alpha() })
            .filter(|acting| !acting.alpha.is_zero() && acts(acting.seed))
            .collect()
    }
}

/// An event with the number of the order that it is about, where it has one.
pub(crate) fn numbered(event: Event, order: &Order) -> Event {
    order.sequence.into_iter().fold(event, |event, sequence| event.with("sequence", sequence))
}

/// Norm of the host's gradient, from the seed's and their ratio per parameter.
#[expect(clippy::cast_precision_loss, reason = "parameters are counted far below 2^53")]
fn host_norm(state: &SeedState, host_parameters: u64) -> Option<f64> {
    let gradient = state.gradient?;
    let ratio = gradient.host_ratio.filter(|ratio| *ratio > 0.0 && state.num_parameters > 0)?;
    Some(gradient.norm / ratio * (host_parameters as f64 / state.num_parameters as f64).sqrt())
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
        self.thread.check(eager)?;
        self.measure_batch(eager, batch)
    }

    fn export_seed_states(&self, eager: &Eager) -> Result<Vec<SeedState>, Error> {
        self.thread.check(eager)?;
        Ok(self.state.export_seeds())
    }

    fn export_slot_states(&self, eager: &Eager) -> Result<Vec<SlotState>, Error> {
        self.thread.check(eager)?;
        Ok(self.state.export_slots(&self.registry, &self.config))
    }

    /// # Sync
    /// none; passes over one sample of zeros where the network has changed
    fn costs(&self, eager: &Eager, batch_size: usize) -> Result<Option<Costs>, Error> {
        self.thread.check(eager)?;
        self.known_costs(batch_size).map(Some)
    }

    /// Every order is answered by exactly one event: `seed_operation` when it was carried out, `operation_refused` when its
    /// operation was not possible or the device failed. A `gate_failure` may follow an `operation_refused` with the conditions
    /// that failed; it is no answer of its own. A call that breaks a region rule looks at no order and is answered by its
    /// error alone.
    fn apply(&mut self, eager: &mut Eager, order: &Order) -> Result<Applied, Error> {
        self.thread.check(eager)?;
        let began = self.clock.now();
        let outcome = self.act_on(order);
        self.telemetry.applied(self.clock.now().saturating_sub(began));
        outcome
    }

    fn train_for(&mut self, eager: &Eager, task: &Arc<dyn Task>) -> Result<(), Error> {
        self.thread.check(eager)?;
        self.task = Some(Arc::clone(task));
        Ok(())
    }

    fn wants_batch(&self, _eager: &Eager) -> bool {
        self.lacks_samples() || self.audit_is_due()
    }

    fn inspect_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<(), Error> {
        self.can_audit_when_due()?;
        self.keep_batch(eager, batch)?;
        self.audit_when_due(eager, batch)
    }

    fn record_evidence(&mut self, eager: &Eager, evidence: &[Evidence]) -> Result<(), Error> {
        self.thread.check(eager)?;
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

    fn confirm_on(&mut self, eager: &Eager, num_samples: u64) -> Result<(), Error> {
        self.thread.check(eager)?;
        self.state.confirming_samples = Some(num_samples);
        Ok(())
    }

    fn confirming(&self, eager: &Eager) -> Result<Option<Confirming>, Error> {
        self.thread.check(eager)?;
        Ok(self.state.confirming(&self.config))
    }

    fn wants_confirmation(&self, eager: &Eager) -> Result<Vec<SeedId>, Error> {
        self.thread.check(eager)?;
        let wants = |record: &&SeedRecord| {
            record.wants_confirmation(&self.config.gates, self.state.surroundings(record.id, &self.config))
        };
        Ok(self.state.seeds.values().filter(wants).map(|record| record.id).collect())
    }

    /// The gate ahead is asked again at once, and tells when it opens.
    fn record_confirmation(&mut self, eager: &Eager, seed: SeedId, measured: &Confirmation) -> Result<(), Error> {
        self.thread.check(eager)?;
        self.state.record(seed)?;
        let around = self.state.surroundings(seed, &self.config);
        let judged_after =
            |before: Confirmations| judged(measured, before.next(&self.config.gates, measured.num_samples));
        let counted = self.state.confirmations;
        let counted = self.state.spent.before(counted, seed, &judged_after(counted));
        let answer = judged_after(counted);
        let Some(record) = self.state.seeds.get_mut(&seed) else { return Ok(()) };
        if !record.confirm(answer) {
            return Ok(());
        }
        let confirmed = answer.passed;
        let Confirmations { read, confirmed: num_confirmed } = counted;
        let counted = Confirmations { read: read + 1, confirmed: num_confirmed + u64::from(confirmed) };
        self.state.confirmations = counted;
        self.state.spent.note(counted, seed, answer);
        let event = Event::new(if confirmed { &events::GAIN_CONFIRMED } else { &events::GAIN_NOT_CONFIRMED });
        let event = event.with("seed_id", seed).with("loss_gain", measured.loss_gain);
        let event = event.with("p_value", measured.p_value).with("level", answer.level);
        self.telemetry.event(event.with("samples", measured.num_samples));
        if let Some(report) = record.judge_next(&self.config.gates, around) {
            self.telemetry.gate(Some(seed), report);
        }
        Ok(())
    }

    fn remove_seed(&mut self, eager: &mut Eager, seed: SeedId, reason: &str) -> Result<bool, Error> {
        self.thread.check(eager)?;
        let is_live = self.state.record(seed)?.stage().is_live();
        if is_live {
            self.untouched = false;
            self.cull(seed, reason)?;
            self.update_gauges();
        }
        Ok(is_live)
    }

    /// A seed whose gradual cull ends leaves the computation, and the layout's revision grows; its parameters left the
    /// layout when the cull began. The transition is reported at once and returned by the next [`Self::finish_epoch`].
    fn finish_step(&mut self, eager: &mut Eager, step: StepIndex) -> Result<(), Error> {
        self.end_step(eager, step)
    }

    fn finish_epoch(&mut self, eager: &mut Eager, epoch: EpochIndex) -> Result<Vec<Transition>, Error> {
        self.end_epoch(eager, epoch)
    }
}
