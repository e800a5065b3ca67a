//! Weights from a library: what a germination asks for, and what happens when the answer comes.

use std::sync::Arc;

use esper_weights::{Artifact, KernelStore, PrefetchError, Ticket};
use leyline::command::Operation;
use leyline::id::{BlueprintId, SeedId};
use leyline::region::Eager;
use leyline::telemetry::{Event, EventDesc};

use crate::error::Error;
use crate::manager::Kasmina;
use crate::manager::device_cache::DeviceCache;
use crate::manager::library::{Arrival, Fetched, Library, LibraryConfig, OnFailure};
use crate::manager::operation::Tools;
use crate::telemetry::events;

impl Kasmina {
    /// Takes the weights of new seeds from `store`, as `config` says. Seeds that wait already are asked for again there.
    ///
    /// # Errors
    /// [`Error::Config`] with every unusable value; [`Error::Prefetch`] when no thread can be started.
    pub fn with_library(mut self, store: Arc<dyn KernelStore>, config: LibraryConfig) -> Result<Self, Error> {
        let issues = config.validate_with(&self.registry);
        if !issues.is_empty() {
            return Err(Error::Config { issues });
        }
        if let Some(library) = &mut self.library {
            library.waiting().into_iter().for_each(|seed| library.forget(seed, "library_replaced", &self.telemetry));
        }
        let recorder = Arc::clone(self.telemetry.recorder());
        self.device_cache = DeviceCache::new(config.device_capacity, &*recorder);
        let library = Library::new(store, config, Arc::clone(&self.clock), &*recorder).map_err(Error::Prefetch)?;
        self.library = Some(library);
        // Seeds may wait already, after a restore or for another library.
        self.await_restored()?;
        self.update_gauges();
        Ok(self)
    }

    /// Drops everything that can be fetched again, on host and device, and cancels what is being fetched; the seeds that
    /// wait for it are treated at the end of the step as if their fetch had failed.
    ///
    /// # Errors
    /// [`Error::Region`] only.
    pub fn emergency_cleanup(&mut self, eager: &mut Eager) -> Result<(), Error> {
        self.thread.check(eager)?;
        let kept = self.library.as_mut().map_or(0, Library::clear);
        let event = Event::new(&events::EMERGENCY_CLEANUP)
            .with("kernel_cache_cleared", kept)
            .with("gpu_cache_cleared", self.device_cache.clear());
        self.telemetry.event(event);
        self.report_library();
        Ok(())
    }

    /// Asks for the weights of a germination; none for other operations and where no library has them. Whoever drops the
    /// ticket takes the request back.
    pub(super) fn request_weights(&self, operation: &Operation) -> Result<Option<Ticket>, Error> {
        match (&self.library, operation) {
            (Some(library), Operation::Germinate { blueprint, .. }) => {
                library.request(blueprint).map_err(Error::Prefetch)
            }
            _ => Ok(None),
        }
    }

    /// The seed waits for these weights from now on.
    pub(super) fn await_weights(&mut self, seed: SeedId, ticket: Ticket) {
        if let (Some(library), Some(record)) = (&mut self.library, self.state.seeds.get_mut(&seed)) {
            record.set_weights_pending(true);
            library.accept(seed, ticket, &self.telemetry);
        }
        self.report_library();
    }

    /// Asks again for the weights that seeds of a restored state wait for.
    pub(super) fn await_restored(&mut self) -> Result<(), Error> {
        let pending = self.state.seeds.values().filter(|record| record.export().weights_pending);
        let waiting: Vec<(SeedId, BlueprintId)> = pending.map(|record| (record.id, record.blueprint.clone())).collect();
        for (seed, blueprint) in waiting {
            let reason = match self.library.as_ref().map(|library| library.request(&blueprint)) {
                Some(Ok(Some(ticket))) => {
                    self.await_weights(seed, ticket);
                    continue;
                }
                Some(Err(error)) => error.to_string(),
                Some(Ok(None)) | None => "no library has its weights".to_owned(),
            };
            self.report_fetch(&events::PREFETCH_ERROR, seed, &blueprint, &reason);
            self.give_up(seed, &blueprint, &reason)?;
        }
        self.report_library();
        Ok(())
    }

    /// Puts weights that arrived in their places, and settles what failed. Never waits for the library.
    ///
    /// What a failing device keeps from being settled is left for the next call: no seed waits for an answer that was
    /// thrown away.
    pub(super) fn settle_arrivals(&mut self) -> Result<(), Error> {
        let mut is_settled = false;
        for seed in self.library.as_ref().map(Library::waiting).unwrap_or_default() {
            let Some(arrival) = self.library.as_ref().and_then(|library| library.arrival(seed)) else { continue };
            self.settle(seed, arrival)?;
            is_settled = true;
        }
        if is_settled {
            self.report_library();
            self.update_gauges();
        }
        Ok(())
    }

    fn settle(&mut self, seed: SeedId, arrival: Arrival) -> Result<(), Error> {
        let Arrival { blueprint, latency_ms, outcome } = arrival;
        let (desc, reason) = match outcome {
            Ok(artifact) => match self.attach(seed, &artifact) {
                Ok(()) => {
                    self.attached(seed, &blueprint, latency_ms);
                    return Ok(());
                }
                Err(error @ Error::Tensor(_)) => return Err(error),
                Err(error) => (&events::PREFETCH_ATTACH_FAILED, error.to_string()),
            },
            Err(error) => {
                let desc = match error {
                    PrefetchError::TimedOut { .. } => &events::PREFETCH_TIMEOUT,
                    PrefetchError::Cancelled => &events::PREFETCH_CANCELED,
                    _ => &events::PREFETCH_ERROR,
                };
                (desc, with_causes(&error))
            }
        };
        // Before the seed is removed: its request is answered and not taken back.
        if let Some(library) = &mut self.library {
            library.settled(seed);
        }
        self.report_fetch(desc, seed, &blueprint, &reason);
        self.give_up(seed, &blueprint, &reason)
    }

    /// Lets go of weights that were kept for too long, and brings the metrics up to date.
    pub(super) fn tidy_library(&mut self, epoch: u64) {
        let Some(library) = &mut self.library else { return };
        let expired = library.expire();
        if expired > 0 {
            let event = Event::new(&events::MEMORY_GC);
            self.telemetry.event(event.with("kernel_cache_expired", expired).with("gc_epoch", epoch));
        }
        self.report_library();
    }

    fn report_library(&mut self) {
        if let Some(library) = &mut self.library {
            library.report(Some(&self.telemetry));
        }
    }

    /// Copies the weights of an artifact into the module of a seed.
    fn attach(&mut self, seed: SeedId, artifact: &Artifact) -> Result<(), Error> {
        let module = &self.state.model.graft(seed).ok_or(Error::UnknownSeed { seed })?.module;
        if let Some(weights) = self.device_cache.get(artifact)
            && module.adopt(&weights)?
        {
            self.device_cache.count(true);
            return Ok(());
        }
        module.load(artifact.weights())?;
        self.device_cache.count(false);
        // The seed has its weights: a copy for others that finds no room is done without.
        if self.device_cache.keeps_any()
            && let Ok(copies) = module.copies()
        {
            self.device_cache.insert(artifact, copies);
        }
        Ok(())
    }

    fn attached(&mut self, seed: SeedId, blueprint: &BlueprintId, latency_ms: f64) {
        if let Some(record) = self.state.seeds.get_mut(&seed) {
            record.set_weights_pending(false);
        }
        if let Some(library) = &mut self.library {
            library.settled(seed);
            library.note(seed, Fetched { latency_ms: Some(latency_ms), is_fallback: false });
        }
        let event = Event::new(&events::PREFETCH_READY)
            .with("seed_id", seed)
            .with("blueprint_id", blueprint)
            .with("latency_ms", format_args!("{latency_ms:.3}"));
        self.telemetry.event(event);
    }

    /// The seed gets no weights: it is removed, or starts from those that were drawn.
    fn give_up(&mut self, seed: SeedId, blueprint: &BlueprintId, reason: &str) -> Result<(), Error> {
        let on_failure = self.library.as_ref().map_or(OnFailure::Remove, |library| library.config().on_failure);
        match on_failure {
            OnFailure::Fresh => {
                if let Some(record) = self.state.seeds.get_mut(&seed) {
                    record.set_weights_pending(false);
                }
                if let Some(library) = &mut self.library {
                    library.note(seed, Fetched { latency_ms: None, is_fallback: true });
                }
                self.report_fetch(&events::FALLBACK_APPLIED, seed, blueprint, reason);
            }
            // It is held back until it is gone, also where its removal fails.
            OnFailure::Remove => {
                let reason = format!("weights not fetched: {reason}");
                let (config, registry, clock) = (&self.config, &self.registry, &*self.clock);
                let tools = Tools { config, registry, clock, task: self.task.as_deref() };
                let applied = self.state.carry_out(&Operation::Cull { seed }, &reason, tools)?;
                for transition in applied.transitions {
                    self.report_transition(&transition);
                    self.state.unreturned.push(transition);
                }
            }
        }
        Ok(())
    }

    fn report_fetch(&self, desc: &'static EventDesc, seed: SeedId, blueprint: &BlueprintId, reason: &str) {
        let mut event = Event::new(desc).with("seed_id", seed).with("blueprint_id", blueprint);
        if desc.attributes.contains(&"reason") {
            event = event.with("reason", reason);
        }
        self.telemetry.event(event);
    }
}

/// The text of an error and of what caused it.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
