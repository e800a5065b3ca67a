//! When a checkpoint is written, who waits for it, and what is told of it.

use std::time::Duration;

use leyline::model::TrainableModel;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::telemetry::Event;

use crate::error::{self, Error};
use crate::telemetry as desc;
use crate::trainer::instruments::ms;
use crate::trainer::observer::{Observer, RunEvent};
use crate::trainer::phase::phase;
use crate::trainer::ring;
use crate::trainer::run::Trainer;
use crate::trainer::saver::{Done, Flight, Job, MAX_CHECKPOINTS_IN_FLIGHT, News, Saver};
use crate::trainer::stop::Best;

/// How much a checkpoint matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Put off, and counted, while another one is being written: after the next step that finds it written.
    IfIdle,
    /// Written by and by; the loop waits where there is no room for the copy.
    Soon,
    /// On the disk before the loop goes on.
    Now,
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Writes a durable checkpoint now, after those that are being written; does nothing without a store.
    ///
    /// # Errors
    /// [`Error::NonFiniteState`] when a parameter, a moment or another tensor of the seed manager is not finite. When it
    /// cannot be written. The previous one stays valid.
    pub fn write_checkpoint(&mut self, eager: &Eager) -> Result<(), Error> {
        self.save(eager, When::Now, None)
    }

    /// Checkpoints of this trainer that were not written, and why the last of them was not; absent where all were that are
    /// known of so far.
    pub fn failed_checkpoints(&self) -> Option<(u64, &str)> {
        let (num, error) = self.saver.as_ref()?.failed.as_ref()?;
        Some((*num, error))
    }

    /// Checkpoints are written every so many epochs and steps, and at the end of the run.
    pub(super) fn checkpoint_due(&self) -> bool {
        let (epoch, step) = (self.cursor.epoch.0, self.cursor.step.0);
        let due = |saver: &Saver| {
            epoch.is_multiple_of(saver.every_epochs.get())
                || saver.every_steps.is_some_and(|every| step.is_multiple_of(every.get()))
        };
        self.saver.as_ref().is_some_and(due) || self.over().is_some()
    }

    /// A checkpoint that is due. One that fails is reported and counted, and training goes on, but not past the end: a run
    /// whose result is not kept has failed.
    pub(super) fn save_due(&mut self, eager: &Eager, observer: &mut dyn Observer, when: When) -> Result<(), Error> {
        let is_over = self.over().is_some();
        let saved = self.save(eager, if is_over { When::Now } else { when }, None);
        self.tell_saved(observer);
        if is_over { saved } else { Ok(()) }
    }

    /// The checkpoint of a run that ends whether it can be written or not: when not, that is reported and counted.
    pub(in crate::trainer) fn save_last(&mut self, eager: &mut Eager, observer: &mut dyn Observer) {
        let saved = match self.settle(eager) {
            Ok(()) => self.save(eager, When::Now, None),
            Err(error) => {
                let (step, began) = (self.cursor.step, self.parts.clock.now());
                self.not_written(Flight { step, best: None, bytes: 0, began }, error)
            }
        };
        drop(saved);
        self.tell_saved(observer);
    }

    /// Takes this evaluation as the best, and writes its checkpoint. Where that fails, the one before is the best again.
    pub(super) fn save_best(&mut self, eager: &Eager, observer: &mut dyn Observer, best: Best) {
        // A failure is reported, and nothing else follows from it.
        drop(self.save(eager, When::Soon, Some(best)));
        self.tell_saved(observer);
    }

    /// Copies the state, and writes it or has it written; [`Self::tell_saved`] says what became of it.
    pub(super) fn save(&mut self, eager: &Eager, when: When, best: Option<Best>) -> Result<(), Error> {
        let Some(saver) = &mut self.saver else { return Ok(()) };
        saver.is_overdue = when == When::IfIdle && !saver.flights.is_empty();
        if saver.is_overdue {
            self.instruments.checkpoints.skipped.add(1);
            return Ok(());
        }
        let began = self.parts.clock.now();
        let _phase = phase!("checkpoint");
        let saved = self.copy_and_write(eager, began, when, best);
        self.instruments.checkpoints.stall_ms.set(ms(self.parts.clock.now().saturating_sub(began)));
        saved
    }

    fn copy_and_write(&mut self, eager: &Eager, began: Duration, when: When, best: Option<Best>) -> Result<(), Error> {
        self.await_room(MAX_CHECKPOINTS_IN_FLIGHT)?;
        // What was waited for may have failed: only now it is known which one was the best before.
        let best = best.map(|best| (best, self.track.best.replace(best)));
        let step = self.cursor.step;
        let flight = |bytes| Flight { step, best, bytes, began };
        let layout = self.parts.seeds.model().layout();
        let parameters = layout.segments().iter().map(|segment| segment.spec.name.clone()).collect();
        let copied = match self.copy_state(eager) {
            Ok(copied) => copied,
            Err(error) => return self.not_written(flight(0), error),
        };
        let Some(saver) = &mut self.saver else { return Ok(()) };
        let session = self.executor.session();
        let aside = when != When::Now && saver.can_write_aside(&self.parts.device, session);
        let read = match saver.begin_read(&copied, session) {
            Ok(read) => read,
            Err(error) => return self.not_written(flight(0), error),
        };
        let bytes = ring::size(&copied.components);
        let job = Job { copied, read, parameters, is_best: best.is_some() };
        if let Some((flight, done)) = saver.write(job, flight(bytes), aside) {
            return self.account(&flight, done);
        }
        let in_flight = saver.bytes_in_flight();
        self.instruments.checkpoints.in_flight_bytes.set(in_flight as f64);
        self.note_memory("checkpoints under way", in_flight);
        if aside { Ok(()) } else { self.await_room(1) }
    }

    /// Takes note of what was written since, after a step.
    pub(super) fn collect_saved(&mut self, observer: &mut dyn Observer) {
        if self.saver.as_ref().is_some_and(|saver| !saver.flights.is_empty()) {
            while let Some((flight, done)) = self.saver.as_mut().and_then(|saver| saver.next_done(false)) {
                drop(self.account(&flight, done));
            }
            self.tell_saved(observer);
        }
        self.tell_steps_at_risk();
    }

    /// What a loss of power would cost now.
    fn tell_steps_at_risk(&self) {
        if let Some(saver) = &self.saver {
            let steps = self.cursor.step.0.saturating_sub(saver.durable.0);
            self.instruments.checkpoints.steps_at_risk.set(steps as f64);
        }
    }

    /// Waits until fewer than so many states are on their way; what became of the last one that was waited for.
    fn await_room(&mut self, most: usize) -> Result<(), Error> {
        let mut last = Ok(());
        while self.saver.as_ref().is_some_and(|saver| saver.flights.len() >= most) {
            let Some((flight, done)) = self.saver.as_mut().and_then(|saver| saver.next_done(true)) else { break };
            last = self.account(&flight, done);
        }
        if most > 1 { Ok(()) } else { last }
    }

    /// Waits for what is being written: before anybody reads checkpoints, and at the end.
    pub(super) fn await_writer(&mut self) {
        // What failed is reported.
        drop(self.await_room(1));
    }

    /// The end of a run: nothing is on its way any more, and what failed is said once more.
    pub(super) fn finish_saving(&mut self, observer: &mut dyn Observer) {
        self.await_writer();
        self.tell_saved(observer);
        if let Some((failed, error)) = self.failed_checkpoints() {
            tracing::warn!(
                failed,
                error,
                "checkpoints of this run were not written; this is why the last of them was not"
            );
        }
    }

    /// Tells the observer what became of checkpoints.
    pub(super) fn tell_saved(&mut self, observer: &mut dyn Observer) {
        for news in self.saver.as_mut().map(|saver| std::mem::take(&mut saver.news)).into_iter().flatten() {
            observer.event(&match &news {
                News::Written { step, is_best, took_ms } => {
                    RunEvent::CheckpointWritten { step: *step, is_best: *is_best, took_ms: *took_ms }
                }
                News::Failed { error } => RunEvent::CheckpointFailed { error },
            });
        }
    }

    fn account(&mut self, flight: &Flight, done: Done) -> Result<(), Error> {
        let Done { result, ended, .. } = done;
        let Some(saver) = &mut self.saver else { return result };
        let instruments = &self.instruments.checkpoints;
        instruments.in_flight_bytes.set(saver.bytes_in_flight() as f64);
        let took_ms = ms(ended.saturating_sub(flight.began));
        match &result {
            Ok(()) => {
                instruments.written.add(1);
                instruments.bytes.add(flight.bytes);
                instruments.save_ms.set(took_ms);
                // One of a later step was on its way when the run went back.
                if flight.step <= self.cursor.step {
                    saver.durable = flight.step;
                }
                if std::mem::take(&mut saver.failing) > 0 {
                    self.parts.recorder.event(Event::new(&desc::CHECKPOINTS_RESUMED).with("step", flight.step));
                    tracing::warn!("checkpoints are written again");
                }
                saver.news.push(News::Written { step: flight.step, is_best: flight.best.is_some(), took_ms });
                self.tell_steps_at_risk();
            }
            Err(error) => {
                instruments.failures.add(1);
                if let Some((best, before)) = flight.best {
                    if self.track.best == Some(best) {
                        self.track.best = before;
                    }
                    saver.unwritten.push(best);
                    // Where the next one is on its way and fails too, this one is not the best again.
                    let later = saver.flights.iter_mut().filter_map(|later| later.best.as_mut());
                    later.filter(|(_, of_later)| *of_later == Some(best)).for_each(|(_, of_later)| *of_later = before);
                }
                let error = error::chain(error);
                saver.failing += 1;
                saver.failed = Some((saver.failed.as_ref().map_or(0, |(num, _)| *num) + 1, error.clone()));
                // Once per change: a disk that stays full fails every checkpoint in the same way.
                if saver.failing == 1 {
                    self.parts.recorder.event(Event::new(&desc::CHECKPOINT_FAILED).with("error", &error));
                    tracing::error!(error, "checkpoint not written; the previous one stays valid");
                    saver.news.push(News::Failed { error });
                }
            }
        }
        result
    }

    /// A state that could not even be copied.
    fn not_written(&mut self, flight: Flight, error: Error) -> Result<(), Error> {
        let ended = self.parts.clock.now();
        self.account(&flight, Done::failed(error, ended))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::path::Path;
    use std::sync::Arc;

    use candle_core::{DType, Device, Tensor, Var};
    use esper_disk::testkit::{Failure, FaultFs};
    use leyline::id::{EpochIndex, StepIndex};

    use super::*;
    use crate::batch::Dataset;
    use crate::checkpoint::{CheckpointStore, Fs, StdFs};
    use crate::plain::{NoPolicy, NoSeeds, PlainModel};
    use crate::task::Classification;
    use crate::trainer::{Checkpoints, NullObserver, Parts, Splits, TrainConfig};

    /// With checkpoints in this folder, of which the first is of the state at the start.
    fn trainer(dir: &Path, fs: Arc<dyn Fs>) -> Trainer<NoSeeds<PlainModel>, NoPolicy> {
        let weight = Var::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
        let named = vec![("w".to_owned(), weight.clone())];
        let model = PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)).unwrap();
        let inputs = Tensor::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
        let data = Dataset::new(inputs, Tensor::new(&[0_u32, 1], &Device::Cpu).unwrap()).unwrap();
        let data = Splits { train: data.clone(), validation: data.clone(), test: data };
        let store = CheckpointStore::open(dir, NonZeroUsize::MIN, fs).unwrap();
        let parts = Parts::plain(Classification::new(2), model, data);
        let parts = Parts { checkpoints: Some(Checkpoints::new(store)), ..parts };
        Trainer::new(TrainConfig::default(), parts).unwrap()
    }

    fn best(step: u64) -> Best {
        Best { epoch: EpochIndex(1), step: StepIndex(step), loss: 1.0 / step as f64 }
    }

    #[test]
    fn of_two_best_networks_that_are_under_way_and_not_written_the_one_before_both_is_the_best_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = trainer(dir.path(), Arc::new(StdFs));
        let flight = |step: u64| {
            let best = Some((best(step), Some(best(step - 1))));
            Flight { step: StepIndex(step), best, bytes: 0, began: Duration::ZERO }
        };
        trainer.track.best = Some(best(3));
        trainer.saver.as_mut().unwrap().flights.extend([2, 3].map(flight));
        while let Some(flight) = trainer.saver.as_mut().and_then(|saver| saver.flights.pop_front()) {
            assert!(trainer.not_written(flight, Error::NothingToRestore).is_err());
        }
        assert_eq!(trainer.best(), Some(best(1)));
    }

    #[test]
    fn a_best_network_that_turns_out_not_to_be_written_while_the_run_goes_back_is_not_the_best_one() {
        let mut eager = Eager::acquire().unwrap();
        let mut go_back = |fs: &FaultFs, is_saved_again: bool| {
            let dir = tempfile::tempdir().unwrap();
            let mut trainer = trainer(dir.path(), Arc::new(fs.clone()));
            trainer.write_checkpoint(&eager).unwrap();
            let num_calls = fs.calls().len();
            trainer.cursor.step = StepIndex(1);
            trainer.save_best(&eager, &mut NullObserver, best(1));
            if is_saved_again {
                // As at the end of an epoch: a state in which it is still the best.
                trainer.save(&eager, When::Soon, None).unwrap();
            }
            let flights = trainer.saver.as_ref().unwrap().flights.len();
            assert_eq!(flights, 1 + usize::from(is_saved_again), "nobody knows what becomes of it");
            let to = trainer.roll_back(&mut eager).unwrap().to;
            (trainer.best(), to, num_calls)
        };
        for is_saved_again in [false, true] {
            let (kept, _, num_calls) = go_back(&FaultFs::recording(Arc::new(StdFs)), is_saved_again);
            assert_eq!(kept, Some(best(1)));
            let failing = FaultFs::failing(Arc::new(StdFs), Failure::Once, num_calls);
            let (kept, to, _) = go_back(&failing, is_saved_again);
            assert_eq!((kept, to, failing.has_failed()), (None, StepIndex(u64::from(is_saved_again)), true));
        }
    }

    #[test]
    fn a_resumed_run_takes_the_best_network_that_was_written_for_the_best_one() {
        let mut eager = Eager::acquire().unwrap();
        let best = |step: u64, loss: f64| Best { loss, ..best(step) };
        // After `first`, if any; the calls until then, and the best one and that after going back.
        let mut resumed = |first: Option<Best>, last: Best, failing: Option<usize>| {
            let dir = tempfile::tempdir().unwrap();
            let fs = failing.map(|call| FaultFs::failing(Arc::new(StdFs), Failure::Once, call));
            let fs = fs.unwrap_or_else(|| FaultFs::recording(Arc::new(StdFs)));
            let mut trained = trainer(dir.path(), Arc::new(fs.clone()));
            if let Some(first) = first {
                trained.cursor.step = first.step;
                trained.save_best(&eager, &mut NullObserver, first);
                trained.await_writer();
            }
            let num_calls = fs.calls().len();
            trained.cursor.step = last.step;
            trained.save_best(&eager, &mut NullObserver, last);
            // A state in which it is still the best, before it is known that it was not written.
            trained.save(&eager, When::Soon, None).unwrap();
            drop(trained);
            assert_eq!(fs.has_failed(), failing.is_some());
            let mut later = trainer(dir.path(), Arc::new(StdFs));
            assert_eq!(later.resume(&mut eager).unwrap().unwrap().step, last.step);
            let kept = later.best();
            later.roll_back(&mut eager).unwrap();
            assert_eq!(later.best(), kept, "after going back to a checkpoint that tells of another");
            assert_eq!(later.restore_best(&mut eager).unwrap().map(|best| best.step), kept.map(|best| best.step));
            (kept, num_calls)
        };
        // A run that had gone back may find a better one at an earlier step.
        for (first, last) in [(None, 2), (Some(best(1, 0.5)), 2), (Some(best(10, 0.5)), 7)] {
            let last = best(last, 0.4);
            let (kept, num_calls) = resumed(first, last, None);
            assert_eq!(kept, Some(last));
            assert_eq!(resumed(first, last, Some(num_calls)).0, first);
        }
    }
}
