//! Weights from a library: what a germination asks for, and what happens when the answer comes.

use std::sync::Arc;

use leyline::command::Operation;
use leyline::id::{BlueprintId, SeedId};
use leyline::telemetry::Event;

use crate::blueprint::SeedWeights;
use crate::config::ConfigIssue;
use crate::error::Error;
use crate::manager::Kasmina;
use crate::manager::device_cache::DeviceCache;
use crate::manager::library::{Arrival, Fetched, Library, LibraryConfig, OnFailure};
use crate::manager::operation::Tools;
use crate::prefetch::{Artifact, KernelStore, PrefetchError, Ticket};
use crate::telemetry::events;

impl Kasmina {
    /// Takes the weights of new seeds from `store`, as `config` says.
    ///
    /// # Errors
    /// [`Error::Config`] with every unusable value; [`Error::Prefetch`] when no thread can be started.
    pub fn with_library(mut self, store: Arc<dyn KernelStore>, config: LibraryConfig) -> Result<Self, Error> {
        let issues: Vec<ConfigIssue> = config.validate();
        if !issues.is_empty() {
            return Err(Error::Config { issues });
        }
        let recorder = Arc::clone(self.telemetry.recorder());
        self.device_cache = DeviceCache::new(config.device_capacity, &*recorder);
        let library = Library::new(store, config, Arc::clone(&self.clock), &*recorder).map_err(Error::Prefetch)?;
        self.library = Some(library);
        Ok(self)
    }

    /// Drops everything that can be fetched again, on host and device, and cancels what is being fetched; the seeds that
    /// wait for it are treated as if their fetch had failed.
    pub fn emergency_cleanup(&mut self) {
        let kept = self.library.as_mut().map_or(0, Library::clear);
        let event = Event::new(&events::EMERGENCY_CLEANUP)
            .with("kernel_cache_cleared", kept)
            .with("gpu_cache_cleared", self.device_cache.clear());
        self.telemetry.event(event);
    }

    /// Asks for the weights of a germination; none for other operations and where no library has them.
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
    }

    /// Asks again for the weights that seeds of a restored state wait for.
    pub(super) fn await_restored(&mut self) -> Result<(), Error> {
        let pending = self.state.seeds.values().filter(|record| record.export().weights_pending);
        let waiting: Vec<(SeedId, BlueprintId)> = pending.map(|record| (record.id, record.blueprint.clone())).collect();
        for (seed, blueprint) in waiting {
            match self.library.as_ref().map(|library| library.request(&blueprint)) {
                Some(Ok(Some(ticket))) => self.await_weights(seed, ticket),
                Some(Err(error)) => self.give_up(seed, &blueprint, &error.to_string())?,
                Some(Ok(None)) | None => self.give_up(seed, &blueprint, "no library has its weights")?,
            }
        }
        Ok(())
    }

    /// Puts weights that arrived in their places, and settles what failed. Never waits for the library.
    pub(super) fn settle_arrivals(&mut self) -> Result<(), Error> {
        let arrivals = match &mut self.library {
            Some(library) if library.has_pending() => library.arrivals(),
            _ => return Ok(()),
        };
        for (seed, blueprint, arrival) in arrivals {
            match arrival {
                Arrival::Weights(artifact, latency_ms) => match self.attach(seed, &artifact) {
                    Ok(()) => self.attached(seed, &blueprint, latency_ms),
                    Err(error @ Error::Tensor(_)) => return Err(error),
                    Err(error) => {
                        self.report_fetch(&events::PREFETCH_ATTACH_FAILED, seed, &blueprint, &error.to_string());
                        self.give_up(seed, &blueprint, &error.to_string())?;
                    }
                },
                Arrival::Failure(error) => {
                    if let PrefetchError::TimedOut { .. } = error {
                        let event = Event::new(&events::PREFETCH_TIMEOUT);
                        self.telemetry.event(event.with("seed_id", seed).with("blueprint_id", &blueprint));
                    } else {
                        self.report_fetch(&events::PREFETCH_ERROR, seed, &blueprint, &error.to_string());
                    }
                    self.give_up(seed, &blueprint, &error.to_string())?;
                }
            }
        }
        self.update_gauges();
        Ok(())
    }

    /// Lets go of the requests of seeds that are gone, and of weights that were kept for too long.
    pub(super) fn tidy_library(&mut self, epoch: u64) {
        let Some(library) = &mut self.library else { return };
        let expired = library.expire();
        if expired > 0 {
            let event = Event::new(&events::MEMORY_GC);
            self.telemetry.event(event.with("kernel_cache_expired", expired).with("gc_epoch", epoch));
        }
        library.report(Some(&self.telemetry));
    }

    /// Copies the weights of an artifact into the module of a seed.
    fn attach(&mut self, seed: SeedId, artifact: &Artifact) -> Result<(), Error> {
        let module = &self.state.model.graft(seed).ok_or(Error::UnknownSeed { seed })?.module;
        if let Some(weights) = self.device_cache.get(artifact)
            && module.adopt(&weights)?
        {
            return Ok(());
        }
        let tensors = artifact.tensors().into_iter().map(|tensor| (tensor.name, tensor.shape, tensor.values));
        module.load(&SeedWeights::from_f32(tensors)?)?;
        self.device_cache.insert(artifact, module.copies()?);
        Ok(())
    }

    fn attached(&mut self, seed: SeedId, blueprint: &BlueprintId, latency_ms: f64) {
        if let Some(record) = self.state.seeds.get_mut(&seed) {
            record.set_weights_pending(false);
        }
        if let Some(library) = &mut self.library {
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
        if let Some(record) = self.state.seeds.get_mut(&seed) {
            record.set_weights_pending(false);
        }
        match on_failure {
            OnFailure::Fresh => {
                if let Some(library) = &mut self.library {
                    library.note(seed, Fetched { latency_ms: None, is_fallback: true });
                }
                self.report_fetch(&events::FALLBACK_APPLIED, seed, blueprint, reason);
            }
            OnFailure::Remove => {
                let reason = format!("weights not fetched: {reason}");
                let tools = Tools { config: &self.config, registry: &self.registry, clock: &*self.clock };
                let applied = self.state.carry_out(&Operation::Cull { seed }, &reason, tools)?;
                for transition in applied.transitions {
                    self.report_transition(&transition);
                    self.state.unreturned.push(transition);
                }
            }
        }
        Ok(())
    }

    fn report_fetch(
        &self,
        desc: &'static leyline::telemetry::EventDesc,
        seed: SeedId,
        blueprint: &BlueprintId,
        reason: &str,
    ) {
        let event = Event::new(desc).with("seed_id", seed).with("blueprint_id", blueprint);
        self.telemetry.event(event.with("reason", reason));
    }
}
