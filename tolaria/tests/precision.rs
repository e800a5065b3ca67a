//! Steps whose products are of half precision: what is refused, a loss whose scale falls and grows, states that are taken up.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]
#![expect(clippy::float_cmp, reason = "scales are powers of two")]

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use esper_graph::precision::{half, rounded_once};
use leyline::durable::SavedState;
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::Error;
use tolaria::batch::{BatchConfig, Dataset};
use tolaria::checkpoint::Snapshot;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::{OptimizerConfig, ScheduleConfig};
use tolaria::plain::{NoPolicy, NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{
    EarlyStopConfig, Flow, LossScaleConfig, NullObserver, Observer, Outcome, Parts, RecoveryConfig, Splits,
    TrainConfig, TrainPrecision, Trainer,
};

type Run = Trainer<NoSeeds<PlainModel>, NoPolicy>;
type Built = Parts<NoSeeds<PlainModel>, NoPolicy>;

/// Windows of four microbatches of two.
const SAMPLES: usize = 64;
const STEPS_PER_EPOCH: u64 = 8;
const SGD: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
const PLAIN: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
const ADAM_W: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

fn data() -> Dataset {
    let inputs = (0..SAMPLES * 3).map(|i| ((i * 7) % 11) as f32 / 11.0 - 0.4);
    let inputs = Tensor::from_iter(inputs, &Device::Cpu).unwrap().reshape((SAMPLES, 3)).unwrap();
    let targets = Tensor::from_iter((0..SAMPLES).map(|i| u32::from(i % 3 == 1)), &Device::Cpu).unwrap();
    Dataset::new(inputs, targets).unwrap()
}

/// x·W with factors as the scope says; candle's conversions round gradients, too.
fn product(x: &Tensor, weight: &Var) -> candle_core::Result<Tensor> {
    if weight.dtype() == DType::BF16 {
        // The CPU has no such products.
        let [x, weight] = [x, weight.as_tensor()].map(|of| of.to_dtype(DType::BF16)?.to_dtype(DType::F32));
        return x?.matmul(&weight?)?.to_dtype(DType::BF16);
    }
    let Some(half) = half() else { return x.matmul(weight) };
    let round = |tensor: &Tensor| tensor.to_dtype(half)?.to_dtype(DType::F32);
    round(x)?.matmul(&rounded_once(weight, half, round)?)
}

struct Setting {
    precision: TrainPrecision,
    loss_scale: LossScaleConfig,
    optimizer: OptimizerConfig,
    ema_decay: Option<f64>,
    /// Units of the hidden layer.
    width: usize,
    recorder: Arc<RecordingRecorder>,
}

impl Setting {
    fn new(precision: TrainPrecision) -> Self {
        let recorder = Arc::new(RecordingRecorder::new());
        Self {
            precision,
            loss_scale: LossScaleConfig::default(),
            optimizer: ADAM_W,
            ema_decay: None,
            width: 8,
            recorder,
        }
    }

    fn f16(initial: f64, growth_steps: u32) -> Self {
        let growth_steps = NonZeroU32::new(growth_steps).unwrap();
        Self { loss_scale: LossScaleConfig { initial, growth_steps }, ..Self::new(TrainPrecision::F16) }
    }

    fn parts(&self, has_products: bool) -> (TrainConfig, Built) {
        let var = |shape: (usize, usize)| {
            let count = shape.0 * shape.1;
            let values = (0..count).map(|i| ((i * 5) % 7) as f32 / 7.0 - 0.4);
            let values = Tensor::from_iter(values, &Device::Cpu).unwrap().reshape(shape).unwrap();
            Var::from_tensor(&values.to_dtype(self.precision.of_parameters()).unwrap()).unwrap()
        };
        let (first, second) = (var((3, self.width)), var((self.width, 2)));
        let named = vec![("first".to_owned(), first.clone()), ("second".to_owned(), second.clone())];
        let model = PlainModel::new(named, move |x: &Tensor| {
            if first.dtype() == DType::BF16 {
                return product(&product(x, &first)?.relu()?, &second)?.to_dtype(DType::F32);
            }
            if !has_products {
                return x.matmul(&first)?.relu()?.matmul(&second);
            }
            product(&product(x, &first)?.relu()?, &second)
        });
        let count = |n| NonZeroUsize::new(n).unwrap();
        let config = TrainConfig {
            batch: BatchConfig { batch_size: count(2), microbatches_per_step: count(4) },
            precision: self.precision,
            loss_scale: self.loss_scale,
            optimizer: self.optimizer,
            ema_decay: self.ema_decay,
            ..TrainConfig::default()
        };
        let splits = Splits { train: data(), validation: data(), test: data() };
        let task = Arc::new(Classification::new(2));
        let parts = Parts {
            num_epochs: 4,
            recorder: self.recorder.clone(),
            ..Parts::new(task, NoSeeds::new(model.unwrap()), NoPolicy, splits)
        };
        (config, parts)
    }

    fn trainer(&self) -> Run {
        let (config, parts) = self.parts(true);
        Trainer::new(config, parts).unwrap()
    }
}

#[derive(Default)]
struct StopAt(u64, Vec<EpochReport>);

impl Observer for StopAt {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.1.push(report.clone());
        Ok(())
    }
}

fn eager() -> Eager {
    Eager::acquire().unwrap()
}

fn run_to(trainer: &mut Run, step: u64) {
    assert_eq!(trainer.run(&mut eager(), &mut StopAt(step, Vec::new())).unwrap(), Outcome::Interrupted);
}

/// Parameters and moments.
fn numbers(snapshot: &Snapshot) -> Vec<u32> {
    let bits =
        |tensor: &Tensor| read_vec(tensor, "test", &mut HostReads::default()).unwrap().into_iter().map(f32::to_bits);
    let of = |name| snapshot.components[name].tensors.values().flat_map(bits);
    of("seeds").chain(of("optimizer")).collect()
}

/// The scale of the main loss, and good steps in a row.
fn scale(snapshot: &Snapshot) -> [f64; 2] {
    let state: serde_json::Value = serde_json::from_str(&snapshot.components["trainer"].json).unwrap();
    let saved = state["sums"]["loss_scale"].as_array().unwrap();
    [saved[0].as_f64().unwrap(), saved[saved.len() / 3].as_f64().unwrap()]
}

fn snapshot(trainer: &mut Run) -> Snapshot {
    trainer.snapshot(&eager()).unwrap()
}

#[test]
fn a_precision_that_a_device_or_a_network_does_not_have_is_refused_by_name() {
    let (config, parts) = Setting::new(TrainPrecision::Tf32).parts(true);
    let error = Trainer::new(config, parts).unwrap_err().to_string();
    assert!(
        error.contains("precision")
            && error.contains("expected `f32`, `bf16`, `f16`, `bf16_pure` or `bf16_stochastic`"),
        "{error}"
    );
    for precision in [TrainPrecision::Bf16, TrainPrecision::F16] {
        let (config, parts) = Setting::new(precision).parts(false);
        let error = Trainer::new(config, parts).unwrap().run(&mut eager(), &mut NullObserver).unwrap_err().to_string();
        assert!(error.contains("the network has none of `esper_layers::linear`: expected `f32`"), "{error}");
    }
    for (built, asked, message) in [
        (
            TrainPrecision::F32,
            TrainPrecision::Bf16Pure,
            "parameter `first` is f32: expected bf16 with this `precision`",
        ),
        (
            TrainPrecision::Bf16Pure,
            TrainPrecision::Bf16,
            "parameter `first` is bf16: expected f32 with this `precision`",
        ),
    ] {
        let (config, parts) = Setting::new(built).parts(true);
        let error = Trainer::new(TrainConfig { precision: asked, ..config }, parts).unwrap_err().to_string();
        assert!(
            error.starts_with(message)
                && error.contains("`bf16_pure` and `bf16_stochastic` train parameters of bf16, all others"),
            "{error}"
        );
    }
    let (mut config, parts) = Setting::f16(1024.0, 5).parts(true);
    config.precision = TrainPrecision::Bf16;
    let error = Trainer::new(config, parts).unwrap_err().to_string();
    assert!(error.contains("`loss_scale`") && error.contains("`precision` to be `f16`"), "{error}");
}

#[test]
fn a_step_that_overflows_changes_nothing_and_halves_the_scale() {
    for optimizer in [SGD, ADAM_W] {
        // 2^24 · 2^-2 or so is far beyond 65 504.
        let setting = Setting { optimizer, ..Setting::f16(16_777_216.0, 1000) };
        let mut trainer = setting.trainer();
        let mut before = numbers(&snapshot(&mut trainer));
        let (mut at, mut num_skipped) = (16_777_216.0, 0);
        for step in 1..=STEPS_PER_EPOCH * 2 - 1 {
            run_to(&mut trainer, step);
            let now = snapshot(&mut trainer);
            let [scale, good] = scale(&now);
            if scale < at {
                assert!((scale - at / 2.0).abs() < 0.5 && good.abs() < 0.5, "{scale} after {at}");
                // The moments of a parameter are made in its first step: as zeros.
                let (new, old) = (numbers(&now), before.clone());
                assert!(new[..old.len()] == old && new[old.len()..].iter().all(|bits| *bits == 0), "step {step}");
                num_skipped += 1;
            } else {
                assert_ne!(numbers(&now), before, "step {step}");
            }
            (at, before) = (scale, numbers(&now));
        }
        assert!((3..14).contains(&num_skipped), "{num_skipped} skipped");
        let counted = setting.recorder.counter_value("tolaria.steps.skipped_total", &[]).unwrap();
        assert!(counted > 0, "skipped steps are counted as those that are not finite are");
        let gauge = setting.recorder.gauge_value("tolaria.train.loss_scale", &[]).unwrap();
        assert!(gauge < 16_777_216.0, "{gauge}");
    }
}

/// What is done to the network's answer.
type Spoil = fn(Tensor, &Var) -> candle_core::Result<Tensor>;

fn spoiled(parts: Built, spoil: Spoil) -> Built {
    let first = parts.seeds.model().parameters()[0].var.clone();
    let second = parts.seeds.model().parameters()[1].var.clone();
    let named = vec![("first".to_owned(), first.clone()), ("second".to_owned(), second.clone())];
    let model =
        PlainModel::new(named, move |x: &Tensor| spoil(product(&product(x, &first)?.relu()?, &second)?, &first));
    Parts { seeds: NoSeeds::new(model.unwrap()), ..parts }
}

/// Epochs of one step.
fn short_epochs(
    initial: f64,
    num_epochs: u64,
    spoil: Spoil,
) -> (Result<Outcome, Error>, Vec<EpochReport>, Arc<RecordingRecorder>) {
    let setting = Setting::f16(initial, 1000);
    let (mut config, parts) = setting.parts(true);
    config.batch.batch_size = NonZeroUsize::new(SAMPLES / 4).unwrap();
    // The epochs in which the scale falls are not those that were in vain.
    config.early_stop = Some(EarlyStopConfig::new(NonZeroU64::new(2).unwrap()));
    let parts = Parts { num_epochs, ..spoiled(parts, spoil) };
    let mut seen = StopAt::default();
    let outcome = Trainer::new(config, parts).unwrap().run(&mut eager(), &mut seen);
    (outcome, seen.1, setting.recorder)
}

#[test]
fn a_run_goes_on_while_all_steps_of_its_epochs_are_skipped_and_the_scale_falls() {
    let (outcome, reports, recorder) = short_epochs(16_777_216.0, 14, |logits, _| Ok(logits));
    assert_eq!(outcome.unwrap(), Outcome::Completed);
    let num_skipped = reports.iter().filter(|report| report.skipped_steps == 1).count();
    assert!((3..14).contains(&num_skipped), "{num_skipped} skipped");
    assert_eq!(recorder.counter_value("tolaria.steps.skipped_total", &[]), Some(num_skipped as u64));
    assert_eq!(recorder.events_named("tolaria.steps_skipped").len(), num_skipped);
    for report in &reports {
        // What no step counted for was not measured.
        let is_measured = report.skipped_steps == 0;
        assert_eq!(report.train.is_some(), is_measured, "{report:?}");
        assert_eq!(report.gradient_norm.is_some(), is_measured, "{report:?}");
    }
}

#[test]
fn a_run_whose_steps_are_skipped_with_the_least_scale_ends_by_name() {
    // The slope of the root at 0 is infinite: the loss is a number, and no scale helps.
    let spoil = |logits: Tensor, first: &Var| {
        let nothing = first.sub(&first.as_detached_tensor())?.sum_all()?.sqrt()?;
        logits.broadcast_add(&nothing)
    };
    let (outcome, reports, recorder) = short_epochs(8.0, 14, spoil);
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Diverged { num_skipped: 1, num_steps: 1, .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("epoch 4 is not finite, and the scale of the loss, 1, falls no more;"), "{error}");
    assert_eq!(reports.len(), 3, "8, 4, 2 and 1 were tried");
    assert_eq!(recorder.counter_value("tolaria.steps.skipped_total", &[]), Some(4));
}

#[test]
fn a_loss_that_is_not_finite_leaves_its_scale() {
    let setting = Setting::f16(1024.0, 1000);
    let (config, parts) = setting.parts(true);
    // Beyond `f16`, in one step of each epoch.
    let (inputs, targets) =
        (parts.data.train.inputs().unwrap().copy().unwrap(), parts.data.train.targets().unwrap().clone());
    inputs.slice_set(&Tensor::new(&[[1e30_f32, 0.0, 0.0]], &Device::Cpu).unwrap(), 0, 5).unwrap();
    let train = Dataset::new(inputs, targets).unwrap();
    let parts = Parts { data: Splits { train, ..parts.data }, ..parts };
    let mut trainer = Trainer::new(config, parts).unwrap();
    assert_eq!(trainer.run(&mut eager(), &mut NullObserver).unwrap(), Outcome::Completed);
    assert_eq!(setting.recorder.counter_value("tolaria.steps.skipped_total", &[]), Some(4));
    assert_eq!(scale(&snapshot(&mut trainer)), [1024.0, 28.0], "and counts as neither good nor bad");
}

#[test]
fn a_run_whose_losses_are_not_finite_waits_for_no_scale() {
    let spoil = |logits: Tensor, _: &Var| logits * f64::NAN;
    let (outcome, reports, _) = short_epochs(65_536.0, 14, spoil);
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("epoch 1 is not finite, and the scale of the loss, 65536, falls no more;"), "{error}");
    assert!(reports.is_empty());
    // And neither does one that goes back.
    let (mut config, parts) = Setting::f16(65_536.0, 1000).parts(true);
    let count = |n| NonZeroU64::new(n).unwrap();
    let (every_steps, max_skipped) = (count(64), count(2));
    config.recovery = RecoveryConfig { memory_mib: 1, every_steps, max_skipped, max_rollbacks: 0, ..config.recovery };
    let mut trainer = Trainer::new(config, spoiled(parts, spoil)).unwrap();
    let error = trainer.run(&mut eager(), &mut NullObserver).unwrap_err();
    assert!(matches!(error, Error::Diverged { num_skipped: 2, num_steps: 2, scale: Some(65_536.0), .. }), "{error:?}");
}

#[test]
fn the_learning_rate_goes_on_as_if_no_step_had_been_skipped() {
    let rates = |setting: &Setting| {
        let (mut config, parts) = setting.parts(true);
        config.schedule = ScheduleConfig { warmup_steps: 9, ..ScheduleConfig::constant(0.01) };
        let mut seen = StopAt::default();
        Trainer::new(config, parts).unwrap().run(&mut eager(), &mut seen).unwrap();
        seen.1.into_iter().map(|report| report.learning_rate.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(rates(&Setting::f16(16_777_216.0, 1000)), rates(&Setting::new(TrainPrecision::F32)));
}

#[test]
fn a_scale_grows_after_so_many_good_steps() {
    let mut trainer = Setting::f16(8.0, 3).trainer();
    for (step, expected) in (1..).zip([[8.0, 1.0], [8.0, 2.0], [16.0, 0.0], [16.0, 1.0], [16.0, 2.0], [32.0, 0.0]]) {
        run_to(&mut trainer, step);
        assert_eq!(scale(&snapshot(&mut trainer)), expected, "step {step}");
    }
}

#[test]
fn gauges_say_what_is_asked_for_from_the_start() {
    for (setting, expected) in [
        (Setting::new(TrainPrecision::F32), [Some(0.0), Some(0.0), None]),
        (Setting::new(TrainPrecision::Bf16), [Some(1.0), Some(0.0), None]),
        (Setting::f16(4096.0, 5), [Some(1.0), Some(0.0), Some(4096.0)]),
    ] {
        let _trainer = setting.trainer();
        let of = |name: &str| setting.recorder.gauge_value(&format!("tolaria.train.{name}"), &[]);
        assert_eq!(["amp_enabled", "tf32_enabled", "loss_scale"].map(of), expected);
    }
}

fn ended(trainer: &mut Run) -> Vec<(String, SavedStateBits)> {
    assert_eq!(trainer.run(&mut eager(), &mut NullObserver).unwrap(), Outcome::Completed);
    let bits =
        |tensor: &Tensor| read_vec(tensor, "test", &mut HostReads::default()).unwrap().into_iter().map(f32::to_bits);
    let of =
        |(name, state): (String, SavedState)| (name, (state.json, state.tensors.values().flat_map(bits).collect()));
    snapshot(trainer).components.into_iter().map(of).collect()
}

type SavedStateBits = (String, Vec<u32>);

#[test]
fn a_run_that_is_taken_up_has_the_scale_and_the_bits_of_one_that_never_stopped() {
    let pure = |optimizer| Setting { optimizer, ..Setting::new(TrainPrecision::Bf16Pure) };
    let averaged = Setting { ema_decay: Some(0.9), ..pure(ADAM_W) };
    let stochastic = |optimizer| Setting { optimizer, ..Setting::new(TrainPrecision::Bf16Stochastic) };
    for setting in [
        Setting::f16(16_777_216.0, 3),
        Setting::new(TrainPrecision::Bf16),
        pure(SGD),
        pure(PLAIN),
        pure(ADAM_W),
        averaged,
        stochastic(PLAIN),
        Setting { ema_decay: Some(0.9), ..stochastic(ADAM_W) },
    ] {
        let expected = ended(&mut setting.trainer());
        // Amid the search for a scale, while it grows, at the end of an epoch.
        for stop in [2, 5, STEPS_PER_EPOCH, 13, 27] {
            let mut first = setting.trainer();
            run_to(&mut first, stop);
            let kept = snapshot(&mut first);
            let mut second = setting.trainer();
            second.restore(&mut eager(), &kept).unwrap();
            assert_eq!(ended(&mut second), expected, "{:?} after step {stop}", setting.precision);
            // Back again, from further on.
            run_to(&mut first, stop + 3);
            first.restore(&mut eager(), &kept).unwrap();
            assert_eq!(ended(&mut first), expected, "{:?} back to step {stop}", setting.precision);
        }
    }
}

#[test]
fn half_precision_learns_what_single_precision_learns() {
    let losses = |setting: &Setting| {
        let mut seen = StopAt::default();
        setting.trainer().run(&mut eager(), &mut seen).unwrap();
        seen.1.into_iter().map(|report| report.validation.loss).collect::<Vec<_>>()
    };
    let expected = losses(&Setting::new(TrainPrecision::F32));
    for (setting, tolerance) in [
        (Setting::new(TrainPrecision::Bf16), 1e-2),
        (Setting::f16(1024.0, 2000), 1e-3),
        (Setting::new(TrainPrecision::Bf16Pure), 2e-2),
        (Setting::new(TrainPrecision::Bf16Stochastic), 2e-2),
    ] {
        let found = losses(&setting);
        assert_ne!(found, expected, "nothing was rounded");
        let largest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(largest < tolerance, "{:?}: {largest}", setting.precision);
    }
}

/// What is evaluated and saved, with gradients of one microbatch at a time and all at once, clipped.
#[test]
fn pure_half_precision_is_of_bf16_throughout_and_adds_gradients_up_alike() {
    let run = |gradient_mib| {
        let setting = Setting { ema_decay: Some(0.9), ..Setting::new(TrainPrecision::Bf16Pure) };
        let (config, parts) = setting.parts(true);
        let mut trainer = Trainer::new(TrainConfig { gradient_mib, ..config }, parts).unwrap();
        trainer.run(&mut eager(), &mut NullObserver).unwrap();
        snapshot(&mut trainer)
    };
    let [one, all] = [0, 256].map(run);
    assert_eq!(numbers(&one), numbers(&all));
    assert!(one.components["seeds"].tensors.values().all(|tensor| tensor.dtype() == DType::BF16));
    let kept = &one.components["optimizer"].tensors;
    for (name, expected) in [
        ("first", DType::F32),
        ("rest of first", DType::I16),
        ("average of first", DType::BF16),
        ("rest of average of first", DType::I16),
    ] {
        assert_eq!(kept[name].dtype(), expected, "{name}");
    }
    assert_eq!(kept.len(), 8);
}

#[test]
fn what_was_learned_with_the_other_rounding_is_refused_before_anything_changes() {
    let [pure, stochastic] = [TrainPrecision::Bf16Pure, TrainPrecision::Bf16Stochastic].map(Setting::new);
    let (kept, none) = ("F32 [2, 24] and I16 [24] (`bf16_pure`)", "BF16 [2, 24] (`bf16_stochastic`)");
    for (of, other, expected, found) in [(&pure, &stochastic, none, kept), (&stochastic, &pure, kept, none)] {
        let [mut first, mut second] = [of, other].map(Setting::trainer);
        [&mut first, &mut second].into_iter().for_each(|trainer| run_to(trainer, 3));
        let (kept, before) = (snapshot(&mut first), numbers(&snapshot(&mut second)));
        let error = second.restore(&mut eager(), &kept).unwrap_err().to_string();
        let message = format!("optimizer state of `first`: expected {expected}, found {found}");
        assert!(error.contains(&message), "{error}");
        assert_eq!(numbers(&snapshot(&mut second)), before);
    }
}

/// A state of 75 000 numbers with two moments, for which room is made from the start, is 450 kB in `bf16` alone, and 900 kB in `f32`
/// or with what rounding leaves over.
#[test]
fn as_many_states_are_kept_in_memory_as_it_holds() {
    for (precision, expected) in [
        (TrainPrecision::F32, [true, false]),
        (TrainPrecision::Bf16Pure, [true, false]),
        (TrainPrecision::Bf16Stochastic, [true, true]),
    ] {
        let (config, parts) = Setting { width: 15_000, ..Setting::new(precision) }.parts(true);
        let recovery = RecoveryConfig { memory_mib: 1, ..config.recovery };
        let mut trainer = Trainer::new(TrainConfig { recovery, ..config }, parts).unwrap();
        let found = [(); 2].map(|()| {
            let is_kept = trainer.keep_state(&eager()).unwrap();
            trainer.confirm_state();
            is_kept
        });
        assert_eq!(found, expected, "{precision:?}");
    }
}

#[test]
fn scaled_gradients_that_are_added_up_as_they_come_have_the_bits_of_all_at_once() {
    let run = |gradient_mib| {
        // Some steps overflow.
        let (config, parts) = Setting::f16(16_777_216.0, 3).parts(true);
        let mut trainer = Trainer::new(TrainConfig { gradient_mib, ..config }, parts).unwrap();
        trainer.run(&mut eager(), &mut NullObserver).unwrap();
        let end = snapshot(&mut trainer);
        (numbers(&end), scale(&end).map(f64::to_bits))
    };
    assert_eq!(run(0), run(256));
}
