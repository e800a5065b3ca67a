//! What feeds the steps of a trainer: workers, transforms, samplers and sources change neither bits nor resumes.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use leyline::clock::SystemClock;
use leyline::error::{BoxError, ErrorKind};
use leyline::id::{RunId, StepIndex};
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline::source::{SampleSpec, SamplesMut, Source, SourceError};
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::Error;
use tolaria::batch::Dataset;
use tolaria::batch::source::{ArrayFile, ArrayLayout, ArraySource, Element, ReadAs};
use tolaria::batch::transform::{SampleRandom, Transform};
use tolaria::checkpoint::{CheckpointStore, StdFs};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Checkpoints, Flow, NullObserver, Observer, Outcome, Parts, Splits, TrainConfig, Trainer};

type PlainTrainer = Trainer<NoSeeds<PlainModel>, NoPolicy>;

const NUM_SAMPLES: usize = 26;
const STEPS_PER_EPOCH: u64 = 4;
/// Channels, height and width.
const PICTURE: [usize; 3] = [1, 2, 3];

fn pixel(index: usize) -> u8 {
    u8::try_from((index * 37 + index / 5) % 251).unwrap()
}

fn label(sample: usize) -> u8 {
    u8::try_from(sample * sample % 3).unwrap()
}

fn in_memory() -> Dataset {
    let inputs = Tensor::from_iter((0..NUM_SAMPLES * 6).map(|i| f32::from(pixel(i)) * 0.01), &Device::Cpu).unwrap();
    let targets = Tensor::from_iter((0..NUM_SAMPLES).map(|i| u32::from(label(i))), &Device::Cpu).unwrap();
    Dataset::new(inputs.reshape((NUM_SAMPLES, 1, 2, 3)).unwrap(), targets).unwrap()
}

/// The same samples in two files.
fn in_files(dir: &Path) -> Arc<ArraySource> {
    let (inputs, targets) = (dir.join("inputs.bin"), dir.join("targets.bin"));
    std::fs::write(&inputs, (0..NUM_SAMPLES * 6).map(pixel).collect::<Vec<_>>()).unwrap();
    std::fs::write(&targets, (0..NUM_SAMPLES).map(label).collect::<Vec<_>>()).unwrap();
    let open = |path: &Path, dims: &[usize], read_as| {
        ArrayFile::open(path, ArrayLayout { element: Element::U8, offset: 0, dims: dims.to_vec(), read_as }).unwrap()
    };
    let inputs = open(&inputs, &PICTURE, ReadAs::F32 { scale: 0.01 });
    Arc::new(ArraySource::new(inputs, open(&targets, &[], ReadAs::U32)).unwrap())
}

/// A trainer of a linear classifier; `settings` are those of `[train]` that a test is about.
struct Job<'a> {
    settings: serde_json::Value,
    train: Dataset,
    dir: &'a Path,
    recorder: Arc<RecordingRecorder>,
}

impl<'a> Job<'a> {
    fn new(settings: serde_json::Value, train: Dataset, dir: &'a Path) -> Self {
        Self { settings, train, dir, recorder: Arc::default() }
    }

    fn trainer(&self) -> Result<PlainTrainer, Error> {
        let weight = Var::zeros((6, 3), DType::F32, &Device::Cpu).unwrap();
        let named = vec![("weight".to_owned(), weight.clone())];
        let mut config = serde_json::json!({
            "batch": {"batch_size": 4, "microbatches_per_step": 2},
            "optimizer": {"kind": "sgd", "momentum": 0.9},
            "schedule": {"learning_rate": 0.1},
            "eval_batch_size": 8,
            "conflict_warn": 1.0,
        });
        config.as_object_mut().unwrap().extend(self.settings.as_object().unwrap().clone());
        let config: TrainConfig = serde_json::from_value(config).unwrap();
        let parts = Parts {
            run_id: RunId::new("run-1").unwrap(),
            seed: 5,
            num_epochs: 3,
            max_steps: None,
            device: Device::Cpu,
            data: Splits { train: self.train.clone(), validation: in_memory(), test: in_memory() },
            task: Arc::new(Classification::new(3)),
            seeds: NoSeeds::new(PlainModel::new(named, move |x: &Tensor| x.flatten_from(1)?.matmul(&weight)).unwrap()),
            policy: NoPolicy,
            checkpoints: Some(Checkpoints {
                store: CheckpointStore::open(self.dir, NonZeroUsize::MIN, Arc::new(StdFs)).unwrap(),
                every_epochs: NonZeroU64::MIN,
                every_steps: None,
                keep_best: false,
                in_background: true,
                config_digest: String::new(),
            }),
            recorder: Arc::<RecordingRecorder>::clone(&self.recorder),
            clock: Arc::new(SystemClock::new()),
        };
        Trainer::new(config, parts)
    }
}

fn bits(trainer: &PlainTrainer) -> Vec<u32> {
    let weight = trainer.seeds().model().parameters()[0].var.as_tensor();
    leyline_testkit::values(weight).unwrap().into_iter().map(f32::to_bits).collect()
}

/// Trains all epochs and returns the bits of the parameters.
#[track_caller]
fn trained(settings: &serde_json::Value, train: Dataset) -> Vec<u32> {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = Job::new(settings.clone(), train, dir.path()).trainer().unwrap();
    let outcome = trainer.run(&mut Eager::acquire().unwrap(), &mut NullObserver);
    assert_eq!(outcome.unwrap(), Outcome::Completed);
    bits(&trainer)
}

fn with_workers(settings: &serde_json::Value, workers: usize) -> serde_json::Value {
    let mut settings = settings.clone();
    settings["loader"] = serde_json::json!({"workers": workers});
    settings
}

/// Settings whose orders or samples differ, with lengths and weights where they need some.
fn kinds() -> Vec<(serde_json::Value, Dataset)> {
    let lengths = (0..NUM_SAMPLES).map(|i| u32::from(pixel(i))).collect();
    let weights = (0..NUM_SAMPLES).map(|i| f64::from(label(i)) + 0.5).collect();
    let augment = serde_json::json!({"crop": 1, "flip": 0.5, "noise": 0.1});
    vec![
        (serde_json::json!({}), in_memory()),
        (serde_json::json!({"augment": augment}), in_memory()),
        (serde_json::json!({"sampler": {"kind": "weighted"}, "augment": augment}), in_memory()),
        (serde_json::json!({"sampler": {"kind": "weighted", "class_weights": [1.0, 0.0, 9.0]}}), in_memory()),
        (
            serde_json::json!({"sampler": {"kind": "weighted", "by": "source"}}),
            in_memory().with_weights(weights).unwrap(),
        ),
        (serde_json::json!({"sampler": {"kind": "bucketed", "pool": 2}}), in_memory().with_lengths(lengths).unwrap()),
    ]
}

#[test]
fn every_number_of_workers_trains_the_same_bits() {
    let mut seen = Vec::new();
    for (settings, data) in kinds() {
        let alone = trained(&settings, data.clone());
        for workers in [1, 4] {
            assert!(trained(&with_workers(&settings, workers), data.clone()) == alone, "{settings}, {workers} workers");
        }
        assert!(!seen.contains(&alone), "{settings} has no effect");
        seen.push(alone);
    }
}

#[test]
fn samples_in_files_train_the_bits_of_samples_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let files = || Dataset::from_source(in_files(dir.path())).unwrap();
    let by_class = serde_json::json!({"sampler": {"kind": "weighted"}, "augment": {"noise": 0.1}});
    for settings in [serde_json::json!({}), by_class] {
        let expected = trained(&settings, in_memory());
        for workers in [0, 3] {
            assert!(trained(&with_workers(&settings, workers), files()) == expected, "{settings}, {workers} workers");
        }
    }
}

struct StopAfter(u64);

impl Observer for StopAfter {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn a_run_that_is_resumed_anywhere_ends_with_the_bits_of_one_that_never_stopped() {
    let mut eager = Eager::acquire().unwrap();
    for (settings, data) in kinds() {
        let expected = trained_with(&mut eager, &settings, &data);
        for (step, workers) in [(1, 0), (3, 2), (STEPS_PER_EPOCH, 0), (STEPS_PER_EPOCH + 2, 3), (11, 1)] {
            let dir = tempfile::tempdir().unwrap();
            let job = |workers| Job::new(with_workers(&settings, workers), data.clone(), dir.path());
            let mut first = job(workers).trainer().unwrap();
            assert_eq!(first.run(&mut eager, &mut StopAfter(step)).unwrap(), Outcome::Interrupted);
            drop(first);
            // With another number of workers than before.
            let mut second = job(2 - workers.min(2)).trainer().unwrap();
            assert_eq!(second.resume(&mut eager).unwrap().unwrap().step, StepIndex(step));
            assert_eq!(second.run(&mut eager, &mut NullObserver).unwrap(), Outcome::Completed);
            assert!(bits(&second) == expected, "{settings}, stopped after {step}");
        }
    }
}

fn trained_with(eager: &mut Eager, settings: &serde_json::Value, data: &Dataset) -> Vec<u32> {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = Job::new(settings.clone(), data.clone(), dir.path()).trainer().unwrap();
    trainer.run(eager, &mut NullObserver).unwrap();
    bits(&trainer)
}

#[test]
fn a_run_is_not_resumed_with_other_samples_or_another_order() {
    let mut eager = Eager::acquire().unwrap();
    let kinds = kinds();
    for (from, (settings, data)) in kinds.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Job::new(settings.clone(), data.clone(), dir.path()).trainer().unwrap();
        first.run(&mut eager, &mut StopAfter(2)).unwrap();
        drop(first);
        for (to, (settings, data)) in kinds.iter().enumerate().filter(|(to, _)| *to != from) {
            let mut second = Job::new(settings.clone(), data.clone(), dir.path()).trainer().unwrap();
            let error = second.resume(&mut eager).unwrap_err();
            assert!(matches!(error, Error::State { field: "trainer.order", .. }), "{from} to {to}: {error}");
        }
    }
}

/// Rows of files that stop to be readable, or a panic in their place, once so many samples were read.
#[derive(Debug)]
struct Failing {
    files: Arc<ArraySource>,
    panics: bool,
    bad: u32,
    good_reads: std::sync::atomic::AtomicUsize,
}

impl Source for Failing {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn spec(&self) -> SampleSpec {
        self.files.spec()
    }

    fn digest(&self) -> String {
        self.files.digest()
    }

    fn read(&self, samples: &[u32], into: &mut SamplesMut<'_>) -> Result<(), SourceError> {
        use std::sync::atomic::Ordering;
        let is_late = self.good_reads.load(Ordering::Relaxed) >= NUM_SAMPLES;
        if is_late && samples.contains(&self.bad) {
            assert!(!self.panics, "out of cheese");
            return Err(SourceError::corrupt("shelf.bin", "it ends before").of_sample(self.bad));
        }
        self.good_reads.fetch_add(samples.len(), Ordering::Relaxed);
        self.files.read(samples, into)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[test]
fn a_run_whose_samples_fail_ends_with_their_name_and_its_last_checkpoint_and_leaves_no_thread() {
    let mut eager = Eager::acquire().unwrap();
    let expected = trained_with(&mut eager, &serde_json::json!({}), &in_memory());
    for (workers, panics) in [(0, false), (1, false), (4, false), (1, true), (4, true)] {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = dir.path().join("checkpoints");
        std::fs::create_dir(&checkpoints).unwrap();
        let source = Arc::new(Failing { files: in_files(dir.path()), panics, bad: 7, good_reads: 0.into() });
        let settings = with_workers(&serde_json::json!({}), workers);
        let data = Dataset::from_source(Arc::<Failing>::clone(&source)).unwrap();
        let job = Job::new(settings, data, &checkpoints);
        let mut trainer = job.trainer().unwrap();
        let error = trainer.run(&mut eager, &mut NullObserver).unwrap_err();
        let text = chain(&error);
        if panics {
            assert!(text.contains("panicked") && text.contains('7') && text.contains("out of cheese"), "{text}");
        } else {
            assert!(text.ends_with("sample 7 of shelf.bin: it ends before"), "{text}");
            assert_eq!(leyline::error::Error::kind(&error), ErrorKind::Corrupt);
        }
        drop((trainer, job));
        assert_eq!(Arc::strong_count(&source), 1, "a thread outlives the trainer");

        // The checkpoint of the first epoch is taken up by a run whose samples are whole again.
        let whole = Dataset::from_source(in_files(dir.path())).unwrap();
        let mut again = Job::new(serde_json::json!({}), whole, &checkpoints).trainer().unwrap();
        assert_eq!(again.resume(&mut eager).unwrap().unwrap().step, StepIndex(STEPS_PER_EPOCH));
        again.run(&mut eager, &mut NullObserver).unwrap();
        assert!(bits(&again) == expected, "{workers} workers");
    }
}

#[test]
fn steps_before_one_without_samples_are_taken_also_where_they_share_a_launch() {
    let mut eager = Eager::acquire().unwrap();
    for workers in [0, 2] {
        let mut failed = |steps_per_launch: usize| {
            let dir = tempfile::tempdir().unwrap();
            let files = in_files(dir.path());
            let source = Arc::new(Failing { files, panics: false, bad: 7, good_reads: 0.into() });
            let settings = serde_json::json!({"execution": {"steps_per_launch": steps_per_launch}});
            let data = Dataset::from_source(source).unwrap();
            let mut trainer = Job::new(with_workers(&settings, workers), data, dir.path()).trainer().unwrap();
            let error = chain(&trainer.run(&mut eager, &mut NullObserver).unwrap_err());
            assert!(error.ends_with("sample 7 of shelf.bin: it ends before"), "{error}");
            (trainer.progress().1.0, bits(&trainer))
        };
        let expected = failed(1);
        assert!(expected.0 > STEPS_PER_EPOCH, "the first step of the epoch has the sample");
        for steps_per_launch in 2..=4 {
            assert!(failed(steps_per_launch) == expected, "{steps_per_launch} steps, {workers} workers");
        }
    }
}

#[test]
fn a_file_that_is_cut_short_in_the_middle_of_a_run_is_an_error_with_its_name() {
    struct Cut<'a>(&'a Path);
    impl Observer for Cut<'_> {
        fn step_finished(&mut self, step: StepIndex) -> Flow {
            if step.0 == STEPS_PER_EPOCH + 1 {
                std::fs::File::options().write(true).open(self.0).unwrap().set_len(20).unwrap();
            }
            Flow::Continue
        }

        fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
            Ok(())
        }
    }
    for workers in [0, 2] {
        let dir = tempfile::tempdir().unwrap();
        let data = Dataset::from_source(in_files(dir.path())).unwrap();
        let job = Job::new(with_workers(&serde_json::json!({"loader": {"prefetch": 1}}), workers), data, dir.path());
        let mut trainer = job.trainer().unwrap();
        let inputs = dir.path().join("inputs.bin");
        let error = trainer.run(&mut Eager::acquire().unwrap(), &mut Cut(&inputs)).unwrap_err();
        let text = chain(&error);
        assert!(text.contains("inputs.bin: it has 20 bytes, and had 156"), "{text}");
        assert!(text.contains("sample "), "{text}");
    }
}

#[test]
fn targets_of_a_source_are_looked_at_when_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    drop(in_files(dir.path()));
    let labels: Vec<u8> = (0..NUM_SAMPLES).map(|i| if i == 9 { 200 } else { label(i) }).collect();
    std::fs::write(dir.path().join("targets.bin"), labels).unwrap();
    let layout =
        |dims: &[usize], read_as| ArrayLayout { element: Element::U8, offset: 0, dims: dims.to_vec(), read_as };
    let inputs = layout(&PICTURE, ReadAs::F32 { scale: 1.0 });
    let inputs = ArrayFile::open(&dir.path().join("inputs.bin"), inputs).unwrap();
    let targets = ArrayFile::open(&dir.path().join("targets.bin"), layout(&[], ReadAs::U32)).unwrap();
    let data = Dataset::from_source(Arc::new(ArraySource::new(inputs, targets).unwrap())).unwrap();
    let mut trainer = Job::new(serde_json::json!({}), data, dir.path()).trainer().unwrap();
    let text = chain(&trainer.run(&mut Eager::acquire().unwrap(), &mut NullObserver).unwrap_err());
    assert!(text.contains("targets.bin") && text.contains("200"), "{text}");
}

/// Adds one to every input.
#[derive(Debug)]
struct One;

impl Transform for One {
    fn describe(&self) -> String {
        "one".to_owned()
    }

    fn apply(&self, sample: &mut SamplesMut<'_>, _: &SampleSpec, _: &mut SampleRandom) -> Result<(), SourceError> {
        sample.inputs.as_f32()?.iter_mut().for_each(|input| *input += 1.0);
        Ok(())
    }
}

#[test]
fn a_transform_of_ones_own_is_applied_and_one_that_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut eager = Eager::acquire().unwrap();
    let moved = (in_memory().inputs().unwrap() + 1.0).unwrap();
    let moved = Dataset::new(moved, in_memory().targets().unwrap().clone()).unwrap();
    let expected = trained_with(&mut eager, &serde_json::json!({}), &moved);
    let trainer = Job::new(serde_json::json!({}), in_memory(), dir.path()).trainer().unwrap();
    let mut trainer = trainer.with_transform(Arc::new(One)).unwrap();
    trainer.run(&mut eager, &mut NullObserver).unwrap();
    assert!(bits(&trainer) == expected);

    let refused = |settings| {
        let dir = tempfile::tempdir().unwrap();
        Job::new(settings, in_memory(), dir.path()).trainer().unwrap_err().to_string()
    };
    let text = refused(serde_json::json!({"augment": {"crop": 2}}));
    assert!(text.contains("`augment` is invalid") && text.contains("below 2 pixels"), "{text}");
    let text = refused(serde_json::json!({"sampler": {"kind": "bucketed", "pool": 2}}));
    assert!(text.contains("`sampler` is invalid") && text.contains("the length of each sample"), "{text}");
    let text = refused(serde_json::json!({"loader": {"workers": 1000}}));
    assert!(text.contains("`loader.workers` is invalid: expected 0 to 256"), "{text}");
}

#[test]
fn waiting_is_measured_and_what_workers_hide_is_told_apart() {
    let names = ["tolaria.input.wait_ms", "tolaria.input.gather_ms", "tolaria.input.overlap"];
    for workers in [0, 2] {
        let dir = tempfile::tempdir().unwrap();
        let job = Job::new(with_workers(&serde_json::json!({}), workers), in_memory(), dir.path());
        job.trainer().unwrap().run(&mut Eager::acquire().unwrap(), &mut NullObserver).unwrap();
        let [waited, gathered, overlap] = names.map(|name| job.recorder.gauge_value(name, &[]));
        let (waited, gathered) = (waited.unwrap(), gathered.unwrap());
        assert!(waited > 0.0 && gathered > 0.0, "{workers} workers: {waited} {gathered}");
        match overlap {
            None => assert!(workers == 0 && waited.to_bits() == gathered.to_bits(), "{workers} workers"),
            Some(overlap) => assert!(workers > 0 && (0.0..=1.0).contains(&overlap), "{overlap}"),
        }
    }
}
