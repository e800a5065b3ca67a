//! Numbers that are not finite are neither learned nor saved, whatever the optimizer and however windows are combined.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use leyline::clock::SystemClock;
use leyline::error::BoxError;
use leyline::id::{RunId, StepIndex};
use leyline::region::Eager;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::{CheckpointStore, Snapshot, StdFs};
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, Flow, Observer, Parts, Splits, TrainConfig, Trainer};

type Plain = Trainer<NoSeeds<PlainModel>, NoPolicy>;

const SGD: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
const OPTIMIZERS: [OptimizerConfig; 4] = [
    SGD,
    OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.1 },
    OptimizerConfig::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1 },
    OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 },
];
const METHODS: [ConflictResolution; 6] = [
    ConflictResolution::Mean,
    ConflictResolution::PcGrad,
    ConflictResolution::Mgda,
    ConflictResolution::UpGrad,
    ConflictResolution::CaGrad,
    ConflictResolution::AlignedMtl,
];
/// Windows of two microbatches of three; the last is short.
const SAMPLES: u32 = 26;
const STEPS: u64 = 5;

fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// Two classes; `bad` replaces a number of these samples.
fn samples(bad: f32, at: &[u32]) -> Dataset {
    let inputs = (0..SAMPLES).flat_map(|i| {
        let x = (i * 7 % 11) as f32 / 11.0 - 0.4;
        [if at.contains(&i) { bad } else { x }, x * x]
    });
    let inputs = Tensor::from_iter(inputs, &Device::Cpu).unwrap().reshape((SAMPLES as usize, 2)).unwrap();
    Dataset::new(inputs, Tensor::from_iter((0..SAMPLES).map(|i| i % 2), &Device::Cpu).unwrap()).unwrap()
}

#[derive(Clone)]
struct Case {
    optimizer: OptimizerConfig,
    method: ConflictResolution,
    clip_norm: Option<f64>,
    learning_rate: f64,
    train: Dataset,
    validation: Dataset,
    start: f32,
}

impl Case {
    fn new(optimizer: OptimizerConfig, train: Dataset) -> Self {
        let (method, validation) = (ConflictResolution::Mean, samples(0.0, &[]));
        Self { optimizer, method, clip_norm: None, learning_rate: 0.05, train, validation, start: 0.1 }
    }

    fn trainer(&self, num_epochs: u64, dir: Option<&Path>, recorder: &Arc<RecordingRecorder>) -> Plain {
        let weight = Var::from_tensor(
            &(Tensor::ones((2, 2), DType::F32, &Device::Cpu).unwrap() * f64::from(self.start)).unwrap(),
        );
        let weight = weight.unwrap();
        let named = vec![("weight".to_owned(), weight.clone())];
        let model = PlainModel::new(named, move |x: &Tensor| x.matmul(&weight)).unwrap();
        let config = TrainConfig {
            batch: BatchConfig { batch_size: count(3), microbatches_per_step: count(2) },
            optimizer: self.optimizer,
            schedule: ScheduleConfig::constant(self.learning_rate),
            clip_norm: self.clip_norm,
            conflict: self.method,
            eval_batch_size: count(8),
            conflict_warn: 1.0,
            measure_conflicts: true,
            ..TrainConfig::default()
        };
        let open = |dir: &Path| Checkpoints {
            store: CheckpointStore::open(dir, count(1), Arc::new(StdFs)).unwrap(),
            every_epochs: NonZeroU64::MIN,
            every_steps: None,
            keep_best: false,
            in_background: true,
            config_digest: String::new(),
        };
        let parts = Parts {
            run_id: RunId::new("non-finite").unwrap(),
            seed: 4,
            num_epochs,
            max_steps: None,
            device: Device::Cpu,
            data: Splits { train: self.train.clone(), validation: self.validation.clone(), test: samples(0.0, &[]) },
            task: Arc::new(Classification::new(2)),
            seeds: NoSeeds::new(model),
            policy: NoPolicy,
            checkpoints: dir.map(open),
            recorder: recorder.clone(),
            clock: Arc::new(SystemClock::new()),
        };
        Trainer::new(config, parts).unwrap()
    }
}

/// Keeps the reports, and may stop.
#[derive(Default)]
struct Watcher {
    reports: Vec<EpochReport>,
    stop_at: Option<u64>,
}

impl Observer for Watcher {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if self.stop_at == Some(step.0) { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.reports.push(report.clone());
        Ok(())
    }
}

fn state(trainer: &mut Plain) -> Vec<f32> {
    state_of(&trainer.snapshot(&Eager::acquire().unwrap()).unwrap())
}

fn state_of(snapshot: &Snapshot) -> Vec<f32> {
    let mut reads = HostReads::default();
    let tensors = ["optimizer", "seeds"].into_iter().flat_map(|name| snapshot.components[name].tensors.values());
    tensors.flat_map(|tensor| read_vec(tensor, "test", &mut reads).unwrap()).collect()
}

fn run(trainer: &mut Plain, watcher: &mut Watcher) -> Result<(), String> {
    let outcome = trainer.run(&mut Eager::acquire().unwrap(), watcher);
    outcome.map(drop).map_err(|error| error.to_string())
}

/// The trainer after a run that is not refused, and its reports.
fn completed(case: &Case, num_epochs: u64, recorder: &Arc<RecordingRecorder>) -> (Plain, Vec<EpochReport>) {
    let (mut trainer, mut watcher) = (case.trainer(num_epochs, None, recorder), Watcher::default());
    assert_eq!(run(&mut trainer, &mut watcher), Ok(()), "{:?} {:?}", case.optimizer, case.method);
    (trainer, watcher.reports)
}

fn recorder() -> Arc<RecordingRecorder> {
    Arc::new(RecordingRecorder::new())
}

fn generations(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("gen-")).collect()
}

const ALL: std::ops::Range<u32> = 0..SAMPLES;

#[test]
fn a_sample_that_is_not_finite_is_not_learned_by_any_optimizer_and_any_method() {
    for bad in [f32::NAN, f32::INFINITY] {
        for optimizer in OPTIMIZERS {
            for (method, clip_norm) in METHODS.into_iter().flat_map(|method| [(method, None), (method, Some(0.5))]) {
                let case = Case { method, clip_norm, ..Case::new(optimizer, samples(bad, &[9])) };
                let recorder = recorder();
                let (mut trainer, reports) = completed(&case, 3, &recorder);
                let state = state(&mut trainer);
                assert!(state.iter().all(|value| value.is_finite()), "{optimizer:?} {method:?}: {state:?}");
                assert!(state.iter().any(|value| (value - case.start).abs() > 1e-3), "nothing was learned");
                for report in &reports {
                    assert_eq!(report.skipped_steps, 1);
                    assert!(report.train.as_ref().unwrap().is_finite() && report.gradient_norm.unwrap().is_finite());
                    // A window of six samples, or the short one.
                    assert!(
                        [SAMPLES - 6, SAMPLES - 2].map(u64::from).contains(&report.train.as_ref().unwrap().num_samples)
                    );
                }
                let told: Vec<_> =
                    recorder.events().into_iter().filter(|e| e.desc.name == "tolaria.steps_skipped").collect();
                assert_eq!((told.len(), recorder.counter_value("tolaria.steps.skipped_total", &[])), (3, Some(3)));
            }
        }
    }
}

#[test]
fn a_step_that_is_not_finite_leaves_parameters_and_moments_bit_for_bit() {
    for optimizer in OPTIMIZERS {
        // The one window of the first epoch that holds the sample is skipped, so the state stops moving there alone.
        let case = Case::new(optimizer, samples(f32::NAN, &[9]));
        let states: Vec<Vec<u32>> = (0..=STEPS)
            .map(|steps| {
                let mut trainer = case.trainer(1, None, &recorder());
                if steps > 0 {
                    run(&mut trainer, &mut Watcher { stop_at: Some(steps), ..Watcher::default() }).unwrap();
                }
                state(&mut trainer).into_iter().map(f32::to_bits).collect()
            })
            .collect();
        // Before the first step there are no moments.
        let same = states.windows(2).filter(|pair| pair[0] == pair[1]).count();
        let first = usize::from(states[1][states[1].len() - 4..] == states[0][states[0].len() - 4..]);
        assert_eq!(same.max(first), 1, "{optimizer:?}");
    }
}

#[test]
fn what_overflows_in_the_update_of_a_finite_gradient_is_not_saved() {
    for optimizer in OPTIMIZERS {
        let dir = tempfile::tempdir().unwrap();
        let case = Case { learning_rate: 3e38, ..Case::new(optimizer, samples(1e3, &[9])) };
        // Whether it ends, or goes on with losses beyond measure.
        run(&mut case.trainer(2, Some(dir.path()), &recorder()), &mut Watcher::default()).ok();
        let store = CheckpointStore::open(dir.path(), count(1), Arc::new(StdFs)).unwrap();
        for generation in store.list().unwrap() {
            let state = state_of(&store.load(generation).unwrap());
            assert!(state.iter().all(|value| value.is_finite()), "{optimizer:?}: {state:?}");
        }
    }
}

#[test]
fn a_run_in_which_most_steps_are_not_finite_ends_and_stands_where_it_ended() {
    let all: Vec<u32> = ALL.collect();
    let mut trainer = Case::new(SGD, samples(f32::NAN, &all)).trainer(3, None, &recorder());
    let first = run(&mut trainer, &mut Watcher::default()).unwrap_err();
    let expected = "training diverged: the loss or the gradient of 5 of the 5 steps of epoch 1 is not finite; expected a lower \
                    learning rate or `clip_norm`, and data without such numbers";
    assert_eq!(first, expected);
    assert_eq!((trainer.progress().0.0, trainer.progress().1.0), (0, STEPS), "the epoch is not completed");
    assert_eq!(run(&mut trainer, &mut Watcher::default()).unwrap_err(), first, "and says so again");
}

#[test]
fn a_network_that_evaluates_to_numbers_that_are_not_finite_ends_the_run_where_it_stands() {
    let case = Case { validation: samples(f32::NAN, &[3]), ..Case::new(SGD, samples(0.0, &[])) };
    let mut trainer = case.trainer(3, None, &recorder());
    let first = run(&mut trainer, &mut Watcher::default()).unwrap_err();
    assert!(first.starts_with("the validation loss of epoch 1 is not finite"), "{first}");
    assert_eq!((trainer.progress().0.0, trainer.progress().1.0), (0, STEPS));
    assert_eq!(run(&mut trainer, &mut Watcher::default()).unwrap_err(), first);
}

#[test]
fn no_checkpoint_holds_a_number_that_is_not_finite_and_the_last_good_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut case = Case::new(OPTIMIZERS[3], samples(0.0, &[]));
    run(&mut case.trainer(1, Some(dir.path()), &recorder()), &mut Watcher::default()).unwrap();
    let good = generations(dir.path());
    assert_eq!(good.len(), 1);
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        case.start = bad;
        let mut trainer = case.trainer(3, Some(dir.path()), &recorder());
        let ended = run(&mut trainer, &mut Watcher { stop_at: Some(2), ..Watcher::default() });
        let expected = "`seeds/weight` has a number that is not finite: no checkpoint is made of it";
        assert_eq!(ended, Err(expected.to_owned()), "stopped in the middle of an epoch");
        assert_eq!(generations(dir.path()), good);
    }
}

#[test]
fn a_run_with_skipped_steps_that_is_stopped_and_taken_up_is_the_one_that_was_not() {
    let case = Case::new(OPTIMIZERS[3], samples(f32::NAN, &[9]));
    let reports = |trainer: &mut Plain, watcher: &mut Watcher| {
        run(trainer, watcher).unwrap();
        let timeless = |report: EpochReport| EpochReport { wall_s: 0.0, samples_per_s: 0.0, ..report };
        watcher.reports.drain(..).map(timeless).collect::<Vec<_>>()
    };
    let mut whole = case.trainer(2, None, &recorder());
    let expected = (reports(&mut whole, &mut Watcher::default()), state(&mut whole));
    for stop in 1..2 * STEPS {
        let dir = tempfile::tempdir().unwrap();
        let mut stopping = Watcher { stop_at: Some(stop), ..Watcher::default() };
        let mut first = reports(&mut case.trainer(2, Some(dir.path()), &recorder()), &mut stopping);
        let mut resumed = case.trainer(2, Some(dir.path()), &recorder());
        resumed.resume(&mut Eager::acquire().unwrap()).unwrap().unwrap();
        first.extend(reports(&mut resumed, &mut Watcher::default()));
        assert_eq!((first, state(&mut resumed)), expected, "stopped after step {stop}");
    }
}
