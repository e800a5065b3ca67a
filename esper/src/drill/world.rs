//! The run that a drill breaks: a small network on the real trainer, with a folder and telemetry of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use esper_telemetry::sink::{MemorySink, PacketLog};
use esper_telemetry::{Catalogue, Guard, QueueConfig, Stats, TelemetryRecorder};
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::id::RunId;
use leyline::region::Eager;
use leyline::telemetry::{Boundary, Health, HealthStatus, Recorder as _};
use tempfile::TempDir;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::CheckpointStore;
use tolaria::host_read::{HostReads, read_scalar, read_vec};
use tolaria::optim::ScheduleConfig;
use tolaria::plain::{NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    Checkpoints, Flow, Observer, Outcome, Parts, RecoveryConfig, RunEvent, Splits, StepReport, TrainConfig, Trainer,
};

use super::Failed;
use super::faults::{FullDisk, SlowClock, SlowPolicy, SlowSeeds, StuckSink, Switch};
use crate::wire::DESCRIPTORS;

/// Steps of an epoch, with four samples each.
pub(super) const STEPS: u64 = 10;
pub(super) const EPOCHS: u64 = 6;
const HELD_OUT: u32 = 8;
/// Longest wait for telemetry.
const FLUSH: Duration = Duration::from_secs(5);

pub(super) type DrillTrainer = Trainer<SlowSeeds, SlowPolicy>;

/// What the network does in its forward pass beside what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Does {
    Nothing,
    /// It fails, as every call does once a device is lost.
    Fail,
    /// It reads from the device.
    Read,
    /// It multiplies by another number of the host.
    Scale,
}

/// A trainer and everything around it that can be broken.
pub(super) struct World {
    pub(super) trainer: DrillTrainer,
    pub(super) eager: Eager,
    pub(super) weight: Var,
    pub(super) clock: Arc<SlowClock>,
    pub(super) disk: Arc<FullDisk>,
    pub(super) sink_is_stuck: Switch,
    pub(super) slow: Slow,
    does: Arc<AtomicU64>,
    recorder: Arc<TelemetryRecorder>,
    guard: Guard,
    packets: PacketLog,
    dir: Arc<TempDir>,
}

/// Who takes long to answer.
pub(super) struct Slow {
    pub(super) policy: Switch,
    pub(super) seeds: Switch,
}

/// What a run left.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Of all labels together.
    pub(super) metrics: BTreeMap<String, f64>,
    pub(super) events: BTreeSet<String>,
    /// What happened, in one line.
    pub(super) told: String,
}

impl Seen {
    /// 0 where it has no value.
    pub(super) fn metric(&self, name: &str) -> f64 {
        self.metrics.get(name).copied().unwrap_or(0.0)
    }
}

/// Settings of every drill: known-good states in memory, looks at every other step.
pub(super) fn settings() -> TrainConfig {
    let count = |n| NonZeroUsize::new(n).expect("a literal above 0");
    let every = |n| NonZeroU64::new(n).expect("a literal above 0");
    TrainConfig {
        batch: BatchConfig { batch_size: count(4), microbatches_per_step: count(1) },
        schedule: ScheduleConfig::constant(0.05),
        recovery: RecoveryConfig {
            memory_mib: 1,
            every_steps: every(4),
            max_skipped: every(2),
            ..RecoveryConfig::default()
        },
        ..TrainConfig::default()
    }
}

impl World {
    pub(super) fn new(device: &Device, config: TrainConfig) -> Result<Self, Failed> {
        Self::with_queue(device, config, EPOCHS, QueueConfig::default())
    }

    /// With so many epochs, and so much that may wait for telemetry.
    pub(super) fn with_queue(
        device: &Device,
        config: TrainConfig,
        num_epochs: u64,
        queue: QueueConfig,
    ) -> Result<Self, Failed> {
        Self::in_folder(device, config, num_epochs, queue, Arc::new(tempfile::tempdir()?))
    }

    /// Another trainer in the folder of one that is over, as in the process that resumes its run.
    pub(super) fn again(device: &Device, config: TrainConfig, dir: Arc<TempDir>) -> Result<Self, Failed> {
        Self::in_folder(device, config, EPOCHS, QueueConfig::default(), dir)
    }

    fn in_folder(
        device: &Device,
        config: TrainConfig,
        num_epochs: u64,
        queue: QueueConfig,
        dir: Arc<TempDir>,
    ) -> Result<Self, Failed> {
        let run_id = RunId::new("drill").expect("a literal of allowed characters");
        let (clock, disk) = (Arc::new(SlowClock::default()), Arc::new(FullDisk::default()));
        let [sink_is_stuck, policy_is_slow, seeds_are_slow] = std::array::from_fn(|_| Switch::default());
        let sink = MemorySink::new();
        let packets = sink.packets();
        let (recorder, guard) = TelemetryRecorder::start(
            run_id.clone(),
            Catalogue::new(DESCRIPTORS)?,
            vec![Box::new(StuckSink { inner: sink, is_stuck: sink_is_stuck.clone() })],
            queue,
            Arc::clone(&clock) as Arc<dyn Clock>,
        )?;
        let weight = Var::ones((2, 2), DType::F32, device)?;
        let does = Arc::new(AtomicU64::new(Does::Nothing as u64));
        let (of_model, what) = (weight.clone(), Arc::clone(&does));
        let model = PlainModel::new(vec![("weight".to_owned(), weight.clone())], move |x: &Tensor| {
            let logits = x.matmul(&of_model)?;
            match what.load(Ordering::SeqCst) {
                does if does == Does::Fail as u64 => Err(candle_core::Error::Msg("the device is lost".to_owned())),
                does if does == Does::Read as u64 => {
                    read_scalar(&logits.sum_all()?, "drill", &mut HostReads::default())
                        .map_err(candle_core::Error::wrap)?;
                    Ok(logits)
                }
                does if does == Does::Scale as u64 => logits * 1.5,
                _ => Ok(logits),
            }
        })?;
        let seeds = SlowSeeds { inner: NoSeeds::new(model), is_slow: seeds_are_slow.clone() };
        let policy = SlowPolicy { is_slow: policy_is_slow.clone() };
        let store = CheckpointStore::open(dir.path(), NonZeroUsize::MIN, Arc::clone(&disk) as _)?;
        let held_out = data(HELD_OUT, device)?;
        let splits =
            Splits { train: data(4 * u32::try_from(STEPS)?, device)?, validation: held_out.clone(), test: held_out };
        let parts = Parts {
            run_id,
            num_epochs,
            checkpoints: Some(Checkpoints { keep_best: false, in_background: false, ..Checkpoints::new(store) }),
            recorder: Arc::clone(&recorder) as _,
            clock: Arc::clone(&clock) as _,
            ..Parts::new(Arc::new(Classification::new(2)), seeds, policy, splits)
        };
        let trainer = Trainer::new(config, parts)?;
        let eager = Eager::acquire()?;
        let slow = Slow { policy: policy_is_slow, seeds: seeds_are_slow };
        Ok(Self { trainer, eager, weight, clock, disk, sink_is_stuck, slow, does, recorder, guard, packets, dir })
    }

    /// What the network does from the next pass on.
    pub(super) fn let_it(&self, does: Does) {
        self.does.store(does as u64, Ordering::SeqCst);
    }

    /// Multiplies by another number from the next pass on.
    pub(super) fn scaler(&self) -> impl Fn() + use<> {
        let does = Arc::clone(&self.does);
        move || does.store(Does::Scale as u64, Ordering::SeqCst)
    }

    /// Where checkpoints are.
    pub(super) fn folder(&self) -> Arc<TempDir> {
        Arc::clone(&self.dir)
    }

    /// Makes a parameter no number.
    pub(super) fn plant_nan(&self) -> Result<(), Failed> {
        Ok(self.weight.set(&(self.weight.as_tensor() * f64::NAN)?)?)
    }

    /// Trains until a step, and stops there.
    pub(super) fn run_to(&mut self, step: u64) -> Result<(), Failed> {
        let mut watched = Watched { stop_at: Some(step), ..Watched::default() };
        let ended = self.trainer.run(&mut self.eager, &mut watched)?;
        super::expect(ended == Outcome::Interrupted, || format!("the run ended before step {step}: {ended:?}"))
    }

    /// Trains to the end, whatever that is; where it went back, and `at` each step.
    pub(super) fn run(&mut self, at: impl FnMut(u64)) -> (Result<Outcome, tolaria::Error>, Vec<String>) {
        let mut watched = Watched { stop_at: None, at: Some(Box::new(at)), back: Vec::new() };
        let ended = self.trainer.run(&mut self.eager, &mut watched);
        (ended, watched.back)
    }

    /// Trains to the end of all epochs.
    pub(super) fn complete(&mut self, at: impl FnMut(u64)) -> Result<Vec<String>, Failed> {
        let (ended, back) = self.run(at);
        let ended = ended?;
        super::expect(ended == Outcome::Completed, || format!("the run ended as {ended:?}"))?;
        Ok(back)
    }

    /// Parameters and moments.
    pub(super) fn bits(&mut self) -> Result<Vec<u32>, Failed> {
        let snapshot = self.trainer.snapshot(&self.eager)?;
        let tensors = ["seeds", "optimizer"].into_iter().flat_map(|name| snapshot.components[name].tensors.values());
        let values = tensors.map(|tensor| read_vec(tensor, "drill", &mut HostReads::default()));
        Ok(values.collect::<Result<Vec<_>, _>>()?.concat().into_iter().map(f32::to_bits).collect())
    }

    /// What a run comes to in which nothing goes wrong.
    pub(super) fn undisturbed(device: &Device, config: TrainConfig) -> Result<Vec<u32>, Failed> {
        let mut world = Self::new(device, config)?;
        world.complete(|_| ())?;
        world.bits()
    }

    /// What became of events and packets so far.
    pub(super) fn stats(&self) -> Stats {
        self.recorder.stats()
    }

    /// Ends the run and its telemetry; what it left, and what is told of it.
    pub(super) fn close(self, told: String) -> Result<Seen, Failed> {
        // What waited for a sink that was stuck comes first: the last packet must find room.
        let deadline = self.clock.now() + FLUSH;
        while self.stats().packets.in_flight() > 0 && self.clock.now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let health = Health { status: HealthStatus::Healthy, summary: "the drill is over".to_owned() };
        let (epoch, step) = self.trainer.progress();
        self.recorder.publish(Boundary { epoch, step, source: "drill", health });
        super::expect(self.guard.shutdown(FLUSH).finished, || "telemetry was not written out in time".to_owned())?;
        let mut seen = Seen { told, ..Seen::default() };
        let packets = self.packets.all();
        for metric in packets.last().into_iter().flat_map(|packet| &packet.metrics) {
            *seen.metrics.entry(metric.name.clone()).or_insert(0.0) += metric.value;
        }
        seen.events = packets.iter().flat_map(|packet| &packet.events).map(|event| event.name.clone()).collect();
        Ok(seen)
    }
}

fn data(count: u32, device: &Device) -> Result<Dataset, Failed> {
    let inputs = (0..count).flat_map(|i| [(i % 2) as f32 + (i * 7 % 11) as f32 / 110.0, (i * 7 % 11) as f32 / 110.0]);
    let inputs = Tensor::from_iter(inputs, device)?.reshape((count as usize, 2))?;
    Ok(Dataset::new(inputs, Tensor::from_iter((0..count).map(|i| i % 2), device)?)?)
}

/// Notes what happens.
#[derive(Default)]
struct Watched<'a> {
    stop_at: Option<u64>,
    at: Option<Box<dyn FnMut(u64) + 'a>>,
    back: Vec<String>,
}

impl Observer for Watched<'_> {
    fn step(&mut self, report: &StepReport<'_>) -> Flow {
        if let Some(at) = &mut self.at {
            at(report.step.0);
        }
        if self.stop_at == Some(report.step.0) { Flow::Stop } else { Flow::Continue }
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::RolledBack { from, to, culprit, .. } = event {
            self.back.push(format!("{culprit}: back from step {from} to {to}"));
        }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}
