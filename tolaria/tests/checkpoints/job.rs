//! A trainer with a store of checkpoints on a disk that can be full or stand still.

use std::io;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use candle_core::{DType, Device, Tensor, Var};
use esper_disk::{EntryKind, FsFile, LockGuard, Open};
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::telemetry::{NullRecorder, Recorder};
use leyline_testkit::clock::ManualClock;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::{CheckpointStore, Fs, StdFs};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, Flow, Observer, Parts, RecoveryConfig, Splits, TrainConfig, Trainer};

pub(crate) type PlainTrainer = Trainer<NoSeeds<PlainModel>, NoPolicy>;

/// Everything that a trainer of these tests may differ in.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) seed: u64,
    pub(crate) batch_size: usize,
    pub(crate) microbatches_per_step: usize,
    pub(crate) num_epochs: u64,
    pub(crate) num_train: u32,
    pub(crate) num_validation: u32,
    pub(crate) num_test: u32,
    pub(crate) num_features: usize,
    pub(crate) num_classes: usize,
    /// Added to every label.
    pub(crate) turned: u32,
    pub(crate) every_steps: Option<NonZeroU64>,
    pub(crate) keep_best: bool,
    pub(crate) waits: bool,
    /// For states to go back to.
    pub(crate) memory_mib: u32,
}

pub(crate) const JOB: Job = Job {
    seed: 0,
    batch_size: 4,
    microbatches_per_step: 2,
    num_epochs: 3,
    num_train: 26,
    num_validation: 8,
    num_test: 8,
    num_features: 2,
    num_classes: 3,
    turned: 0,
    every_steps: None,
    keep_best: false,
    waits: false,
    memory_mib: 0,
};
pub(crate) const STEPS_PER_EPOCH: u64 = 4;

impl Job {
    pub(crate) fn samples(&self, count: u32) -> Dataset {
        let width = u32::try_from(self.num_features).unwrap();
        let inputs = Tensor::from_iter((0..count * width).map(|i| (i % 7) as f32 - 3.0), &Device::Cpu).unwrap();
        let inputs = inputs.reshape((count as usize, self.num_features)).unwrap();
        let targets = Tensor::from_iter((0..count).map(|i| (i + self.turned) % 3), &Device::Cpu).unwrap();
        Dataset::new(inputs, targets).unwrap()
    }

    pub(crate) fn trainer(&self, dir: &Path, fs: impl Fs + 'static) -> PlainTrainer {
        self.recorded(dir, fs, Arc::new(NullRecorder))
    }

    pub(crate) fn recorded(&self, dir: &Path, fs: impl Fs + 'static, recorder: Arc<dyn Recorder>) -> PlainTrainer {
        let count = |n| NonZeroUsize::new(n).unwrap();
        let weight = Var::zeros((self.num_features, self.num_classes), DType::F32, &Device::Cpu).unwrap();
        let named = vec![("weight".to_owned(), weight.clone())];
        let config = TrainConfig {
            batch: BatchConfig {
                batch_size: count(self.batch_size),
                microbatches_per_step: count(self.microbatches_per_step),
            },
            optimizer: OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
            schedule: ScheduleConfig::constant(0.1),
            clip_norm: None,
            eval_batch_size: count(8),
            conflict_warn: 1.0,
            recovery: RecoveryConfig { memory_mib: self.memory_mib, ..RecoveryConfig::default() },
            ..TrainConfig::default()
        };
        let parts = Parts {
            run_id: RunId::new("run-1").unwrap(),
            seed: self.seed,
            num_epochs: self.num_epochs,
            max_steps: None,
            device: Device::Cpu,
            data: Splits {
                train: self.samples(self.num_train),
                validation: self.samples(self.num_validation),
                test: self.samples(self.num_test),
            },
            task: Arc::new(Classification::new(self.num_classes)),
            seeds: NoSeeds::new(PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)).unwrap()),
            policy: NoPolicy,
            checkpoints: Some(Checkpoints {
                store: CheckpointStore::open(dir, count(99), Arc::new(fs)).unwrap(),
                every_epochs: NonZeroU64::MIN,
                every_steps: self.every_steps,
                keep_best: self.keep_best,
                in_background: !self.waits,
                config_digest: String::new(),
            }),
            recorder,
            clock: Arc::new(ManualClock::default()),
        };
        Trainer::new(config, parts).unwrap()
    }
}

/// Stops after a step.
#[derive(Debug)]
pub(crate) struct StopAfter(pub(crate) u64);

impl Observer for StopAfter {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A disk that is full for some saves of checkpoints, counted from 0, and that writes nothing while its gate is closed.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) full: Range<usize>,
    pub(crate) saves: AtomicUsize,
    pub(crate) gate: Arc<Gate>,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) is_closed: Mutex<bool>,
    pub(crate) opened: Condvar,
}

impl Gate {
    pub(crate) fn set(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.opened.notify_all();
    }

    pub(crate) fn pass(&self) {
        drop(self.opened.wait_while(self.is_closed.lock().unwrap(), |is_closed| *is_closed).unwrap());
    }
}

impl Disk {
    pub(crate) fn full_at(full: Range<usize>) -> Self {
        Self { full, ..Self::default() }
    }
}

impl Fs for Disk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.gate.pass();
        if self.full.contains(&self.saves.fetch_add(1, Ordering::Relaxed)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        StdFs.create_dir(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        StdFs.kind(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        StdFs.list(dir)
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        StdFs.write_synced(path, bytes)
    }

    fn open(&self, path: &Path, which: Open) -> io::Result<Box<dyn FsFile>> {
        StdFs.open(path, which)
    }

    fn copy_mode(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFs.copy_mode(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFs.hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        StdFs.remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFs.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        StdFs.sync_dir(dir)
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        StdFs.read(path, limit)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        StdFs.remove_dir_all(dir)
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<LockGuard>> {
        StdFs.try_lock(path)
    }
}
