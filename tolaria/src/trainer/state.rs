//! Checkpoints of the whole run, and taking one up again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use esper_graph::PendingRead;
use leyline::durable::{Durable, SavedState};
use leyline::error::BoxError;
use leyline::layout::Owner;
use leyline::model::TrainableModel;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use serde::{Deserialize, Serialize};

use crate::aggregate::GradientEngine;
use crate::checkpoint::{Loaded, Snapshot, SnapshotMeta};
use crate::error::{self, Error};
use crate::host_read::HostReads;
use crate::optim::Optimizer;
use crate::trainer::recovery::Guard;
use crate::trainer::run::{Cursor, Resumed, Trainer};
use crate::trainer::setup::{self, Setup};
use crate::trainer::stop::{Best, Track};
use crate::trainer::sums::{EpochSums, SavedSums};

const TRAINER: &str = "trainer";
pub(super) const OPTIMIZER: &str = "optimizer";
const SEEDS: &str = "seeds";
const POLICY: &str = "policy";

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrainerState {
    seed: u64,
    /// Absent in what earlier builds wrote.
    #[serde(default)]
    setup: Option<Setup>,
    cursor: Cursor,
    sums: SavedSums,
    /// Shares of the owners in the last epoch.
    shares: Vec<(Owner, f64)>,
    /// Empty in what earlier builds wrote.
    #[serde(default)]
    track: Track,
    #[serde(default, skip_serializing_if = "Guard::is_default")]
    guard: Guard,
}

/// A state that was copied where it is; later steps do not change it.
#[derive(Debug)]
pub(super) struct Copied {
    meta: SnapshotMeta,
    /// All but the trainer's own.
    pub(super) components: BTreeMap<String, SavedState>,
    state: TrainerState,
    /// The sums of the epoch, which `state` does not know yet.
    numbers: Tensor,
}

impl Copied {
    /// Every tensor, in the order of names, then the sums of the epoch.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.components.values().flat_map(|saved| saved.tensors.values()).chain([&self.numbers])
    }

    /// The snapshot, on the CPU, from a read of [`Self::tensors`], or by a copy of each.
    ///
    /// # Sync
    /// waits for the device where there is one
    pub(super) fn on_host(&self, read: Option<&PendingRead>) -> Result<Snapshot, Error> {
        let to_host = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.contiguous();
        let mut tensors = match read {
            Some(read) => read.finish()?,
            None => self.tensors().map(to_host).collect::<candle_core::Result<_>>()?,
        }
        .into_iter();
        let mut components = self.components.clone();
        let places = components.values_mut().flat_map(|saved| saved.tensors.values_mut());
        places.zip(&mut tensors).for_each(|(place, tensor)| *place = tensor);
        let numbers = tensors.next().unwrap_or_else(|| self.numbers.clone());
        let (meta, state) = (self.meta.clone(), self.state.clone());
        Self { meta, components: BTreeMap::new(), state, numbers }.with(components, &mut HostReads::default())
    }

    fn with(mut self, mut components: BTreeMap<String, SavedState>, reads: &mut HostReads) -> Result<Snapshot, Error> {
        self.state.sums.read(&self.numbers, reads)?;
        let json =
            serde_json::to_string(&self.state).map_err(|e| Error::State { field: TRAINER, message: e.to_string() })?;
        components.insert(TRAINER.to_owned(), SavedState { json, tensors: BTreeMap::new() });
        Ok(Snapshot { meta: self.meta, components })
    }
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Everything the run needs to continue bit for bit: parameters, optimizer state, topology and lifecycle of seeds,
    /// the policy, the position in the data, the sums of the unfinished epoch and the shares of the one before.
    ///
    /// # Errors
    /// When a component cannot hand over its state; [`Error::FrozenValue`] where a run ended with it.
    /// # Sync
    /// reads the sums of the epoch; components copy their tensors.
    pub fn snapshot(&mut self, eager: &Eager) -> Result<Snapshot, Error> {
        let mut copied = self.copy_state(eager)?;
        let components = std::mem::take(&mut copied.components);
        copied.with(components, &mut self.reads)
    }

    /// The same before the device has been asked for anything but copies.
    ///
    /// # Sync
    /// none; components copy their tensors.
    pub(super) fn copy_state(&mut self, eager: &Eager) -> Result<Copied, Error> {
        eager.check()?;
        self.executor.confirmed()?;
        let (sums, numbers) = self.sums.copy()?;
        let state = TrainerState {
            seed: self.parts.seed,
            setup: Some(self.setup()),
            cursor: self.cursor,
            sums,
            shares: self.shares.iter().map(|(owner, share)| (*owner, *share)).collect(),
            track: self.track.clone(),
            guard: self.recovery.guard.clone(),
        };
        let components = BTreeMap::from([
            (OPTIMIZER.to_owned(), self.optimizer.save(eager)?),
            (SEEDS.to_owned(), self.save_seeds(eager)?),
            (POLICY.to_owned(), self.save_policy(eager)?),
        ]);
        let meta = SnapshotMeta {
            run_id: self.parts.run_id.clone(),
            epoch: self.cursor.epoch,
            step: self.cursor.step,
            topology: self.parts.seeds.model().layout().revision(),
            created_unix_ms: u64::try_from(self.parts.clock.unix().as_millis()).unwrap_or(u64::MAX),
            config_digest: self.saver.as_ref().map_or_else(String::new, |saver| saver.config_digest.clone()),
        };
        Ok(Copied { meta, components, state, numbers })
    }

    /// Continues from a snapshot; any number of times from the same one. States that were kept to go back to are let go of.
    ///
    /// # Errors
    /// [`Error::State`] when the snapshot was taken with another seed, other sizes of batches or other data, or has begun
    /// more epochs than this run is to have; when a component is missing or refuses its state. The trainer is then as it
    /// was, and goes on with the same bits. [`Error::HalfRestored`] when that could not be had either.
    /// # Sync
    /// none, of a snapshot of this process; seed manager and policy copy their tensors once more, to be put back.
    pub fn restore(&mut self, eager: &mut Eager, snapshot: &Snapshot) -> Result<(), Error> {
        self.restore_compared(eager, snapshot, None)?;
        self.recovery.begin_anew();
        Ok(())
    }

    /// As [`Self::restore`], discarded when it is not done at this time of the clock; whether the snapshot said what it was
    /// trained with.
    pub(super) fn restore_compared(
        &mut self,
        eager: &mut Eager,
        snapshot: &Snapshot,
        deadline: Option<Duration>,
    ) -> Result<bool, Error> {
        eager.check()?;
        let state = trainer_state(snapshot)?;
        if state.seed != self.parts.seed {
            return Err(setup::differs("trainer.seed", state.seed, self.parts.seed));
        }
        if let Some(saved) = &state.setup {
            saved.compare(&self.setup())?;
        }
        let begun = state.cursor.epochs_begun();
        if begun > self.parts.num_epochs {
            let message = format!("{begun} epochs were begun, but this run is to have {}", self.parts.num_epochs);
            return Err(Error::State { field: "trainer.epoch", message });
        }
        if let Some(most) = self.parts.max_steps.filter(|most| state.cursor.step.0 > most.get()) {
            let message = format!("{} steps were taken, but this run is to have {most}", state.cursor.step);
            return Err(Error::State { field: "trainer.step", message });
        }
        let is_compared = state.setup.is_some();
        let confirms = state.setup.as_ref().is_some_and(Setup::confirms);
        if self.divided.is_some() && !confirms {
            let message = "the checkpoint is of a run in which no gain is confirmed, and this trainer has run and confirms them; expected a new trainer";
            return Err(Error::State { field: "trainer.confirmation_fraction", message: message.to_owned() });
        }
        // What is the trainer's own is made aside. Seed manager and policy change nothing when they refuse (DU-2), and are
        // put back when something after them does.
        let mut optimizer = self.config.new_optimizer(&self.parts.device);
        optimizer.restore(eager, component(snapshot, OPTIMIZER)?)?;
        let (seeds, policy) = (self.save_seeds(eager)?, self.save_policy(eager)?);
        self.restore_seeds(eager, component(snapshot, SEEDS)?)?;
        match self.restore_rest(eager, snapshot, (&optimizer, &state), deadline) {
            Ok((engine, sums)) => {
                (self.optimizer, self.sums) = (optimizer, sums);
                if let Some(engine) = engine {
                    self.engine = engine;
                }
                (self.cursor, self.track) = (state.cursor, state.track);
                self.shares = state.shares.into_iter().collect();
                self.recovery.guard = state.guard;
                if self.confirms && !confirms && self.config.confirmation_fraction > 0.0 {
                    tracing::warn!(
                        "the run began before gains were confirmed: `confirmation_fraction` has no effect, and seeds are judged by all of its validation data"
                    );
                }
                self.confirms = confirms;
                self.recovery.num_counted = EpochSums::num_skipped(self.engine.geometry(), &state.sums);
                // Parameters, moments and sums are new tensors.
                self.executor.clear();
                Ok(is_compared)
            }
            Err(error) => {
                let back = self.restore_seeds(eager, &seeds).and_then(|()| self.restore_policy(eager, &policy));
                self.executor.drop_graphs();
                Err(match back {
                    Ok(()) => error,
                    Err(not_back) => self.executor.half_restored(&error, &not_back),
                })
            }
        }
    }

    /// What comes after the seed manager: the policy, and what follows from the layout.
    fn restore_rest(
        &mut self,
        eager: &mut Eager,
        snapshot: &Snapshot,
        (optimizer, state): (&Optimizer, &TrainerState),
        deadline: Option<Duration>,
    ) -> Result<(Option<GradientEngine>, EpochSums), Error> {
        self.restore_policy(eager, component(snapshot, POLICY)?)?;
        let engine = self.refitted_engine()?;
        let model = self.parts.seeds.model();
        optimizer.check(model.parameters(), model.layout())?;
        if state.cursor.step.0 > 0 && optimizer.lacks_averages() {
            let message = "expected averages of parameters, which this run keeps".to_owned();
            return Err(Error::State { field: "optimizer", message });
        }
        let geometry = Arc::clone(engine.as_ref().unwrap_or(&self.engine).geometry());
        let sums = EpochSums::restore(geometry, &state.sums, self.config.scaling(), &self.parts.device)?;
        match deadline {
            Some(deadline) if self.parts.clock.now() > deadline => Err(Error::LateRestore),
            _ => Ok((engine, sums)),
        }
    }

    fn save_seeds(&self, eager: &Eager) -> Result<SavedState, Error> {
        self.parts.seeds.save(eager).map_err(|error| self.seed_error(error))
    }

    fn save_policy(&self, eager: &Eager) -> Result<SavedState, Error> {
        self.parts.policy.save(eager).map_err(|error| Error::Policy(BoxError::new(error)))
    }

    fn restore_seeds(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        self.parts.seeds.restore(eager, saved).map_err(|error| self.seed_error(error))
    }

    fn restore_policy(&mut self, eager: &mut Eager, saved: &SavedState) -> Result<(), Error> {
        self.parts.policy.restore(eager, saved).map_err(|error| Error::Policy(BoxError::new(error)))
    }

    fn setup(&self) -> Setup {
        let fraction = self.confirms.then_some(self.config.confirmation_fraction);
        Setup::of(&self.config.batch, &*self.parts.task, &self.parts.data, self.feed.describe(), fraction)
    }

    /// Takes up the newest checkpoint that verifies; `None` when there is none. With [`Checkpoints::keep_best`](super::Checkpoints) the
    /// best evaluation is from then on that of the checkpoint that is kept for it, which is read for it, and none where there is none.
    ///
    /// # Errors
    /// When the store cannot be read, or the checkpoint belongs to another configuration.
    pub fn resume(&mut self, eager: &mut Eager) -> Result<Option<Resumed>, Error> {
        eager.check()?;
        self.await_writer();
        let Some(saver) = &self.saver else { return Ok(None) };
        let loaded = saver.reader.load_latest()?;
        let written = if loaded.is_some() && saver.keep_best { self.written_best()? } else { self.track.best };
        let resumed = self.begin_with(eager, loaded)?;
        if let (Some(_), Some(saver)) = (&resumed, self.saver.as_mut().filter(|saver| saver.keep_best)) {
            let told = std::mem::replace(&mut self.track.best, written);
            // A checkpoint that tells of it may be gone back to.
            saver.unwritten.extend(told.filter(|told| written != Some(*told)));
        }
        Ok(resumed)
    }

    /// The best evaluation whose checkpoint is on the disk. One of which a later checkpoint tells may not be: it was still to be written then.
    fn written_best(&self) -> Result<Option<Best>, Error> {
        let Some(saver) = &self.saver else { return Ok(None) };
        match saver.reader.load_pinned() {
            Ok(Some(pinned)) => {
                for (generation, reason) in &pinned.skipped {
                    self.tell_of_failed(&generation.to_string(), reason);
                }
                Ok(trainer_state(&pinned.snapshot)?.track.best)
            }
            Ok(None) => Ok(None),
            Err(error) if error.is_damage() => {
                self.tell_of_failed("pinned", &error);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes up the checkpoint of the best evaluation, see [`Checkpoints::keep_best`](super::Checkpoints); `None` when there
    /// is none. To evaluate that network, or to go on from there with other data or settings.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn restore_best(&mut self, eager: &mut Eager) -> Result<Option<Resumed>, Error> {
        eager.check()?;
        self.await_writer();
        let Some(saver) = &self.saver else { return Ok(None) };
        let loaded = saver.reader.load_pinned()?;
        self.begin_with(eager, loaded)
    }

    fn begin_with(&mut self, eager: &mut Eager, loaded: Option<Loaded>) -> Result<Option<Resumed>, Error> {
        let resumed = self.take_up(eager, loaded, None)?;
        if resumed.is_some() {
            self.recovery.begin_anew();
        }
        Ok(resumed)
    }

    pub(super) fn take_up(
        &mut self,
        eager: &mut Eager,
        loaded: Option<Loaded>,
        deadline: Option<Duration>,
    ) -> Result<Option<Resumed>, Error> {
        let (Some(loaded), Some(saver)) = (loaded, &self.saver) else { return Ok(None) };
        for (generation, reason) in &loaded.skipped {
            self.tell_of_failed(&generation.to_string(), reason);
        }
        let found = &loaded.snapshot.meta.config_digest;
        if *found != saver.config_digest {
            return Err(Error::State {
                field: "config_digest",
                message: format!(
                    "the checkpoint belongs to another configuration ({found}, this run has {})",
                    saver.config_digest
                ),
            });
        }
        let is_compared = self.restore_compared(eager, &loaded.snapshot, deadline)?;
        if let Some(saver) = &mut self.saver {
            saver.durable = self.cursor.step;
        }
        Ok(Some(Resumed {
            is_compared,
            generation: loaded.generation.to_string(),
            epoch: self.cursor.epoch,
            step: self.cursor.step,
            skipped: loaded
                .skipped
                .iter()
                .map(|(generation, reason)| (generation.to_string(), error::chain(reason)))
                .collect(),
        }))
    }
}

/// Epochs that the run of a snapshot has begun, the completed ones included: a run that takes it up must have as many.
///
/// # Errors
/// [`Error::State`] when it is not the snapshot of a trainer.
pub fn epochs_begun(snapshot: &Snapshot) -> Result<u64, Error> {
    Ok(trainer_state(snapshot)?.cursor.epochs_begun())
}

fn component<'a>(snapshot: &'a Snapshot, name: &'static str) -> Result<&'a SavedState, Error> {
    let missing = || Error::State { field: name, message: "the component is missing".to_owned() };
    snapshot.components.get(name).ok_or_else(missing)
}

fn trainer_state(snapshot: &Snapshot) -> Result<TrainerState, Error> {
    serde_json::from_str(&component(snapshot, TRAINER)?.json)
        .map_err(|e| Error::State { field: TRAINER, message: e.to_string() })
}
