//! What tests of captured steps cost, with a promise of the model and without one.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Tensor;
use leyline::clock::Clock;
use leyline::error::BoxError;
use leyline::model::HostNumbers;
use leyline::region::Eager;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::Dataset;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Observer, Splits, StepMode};

use crate::gpu::growing::in_mode;
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::models::Workload;
use crate::samples::{Samples, ms};
use crate::trainer::{plain_trainer, train_config};
use crate::works::memcheck::last_value;

const STEPS_PER_EPOCH: usize = 100;
const EPOCHS: u64 = 100;
/// Most that tests may take of the time of replays, and of the whole job.
const MOST_OF_REPLAYS: f64 = 0.01;
const MOST_OF_JOB: f64 = 0.03;

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (mode_name, mode) in [("graph", StepMode::Graph), ("compiled", StepMode::Compiled)] {
        for (name, numbers) in [("fixed", HostNumbers::Fixed), ("may_move", HostNumbers::MayMove)] {
            let title = format!("retest.mlp.{mode_name}.{name}");
            report.check(title.clone(), |samples| perceptron(gpu, eager, mode, numbers, &title, samples));
        }
    }
    report.check("retest.digits", |samples| digits(gpu, samples));
}

/// Takes the time of every epoch; its end has waited for the device.
struct Stopwatch {
    clock: Arc<dyn Clock>,
    began: Duration,
    total: Duration,
}

impl Observer for Stopwatch {
    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        let now = self.clock.now();
        self.total += now - self.began;
        self.began = now;
        Ok(())
    }
}

fn perceptron(
    gpu: &Gpu,
    eager: &mut Eager,
    mode: StepMode,
    numbers: HostNumbers,
    title: &str,
    samples: &mut Samples,
) -> Result<String, Broken> {
    let work = Workload::mlp(0, &gpu.device)?;
    let batches = (0..STEPS_PER_EPOCH).map(|index| work.batch(index)).collect::<Result<Vec<_>, _>>()?;
    let inputs: Vec<&Tensor> = batches.iter().map(|batch| &batch.inputs).collect();
    let targets: Vec<&Tensor> = batches.iter().map(|batch| &batch.targets).collect();
    let data = |count: usize| -> Result<Dataset, Broken> {
        let (inputs, targets) = (Tensor::cat(&inputs[..count], 0)?, Tensor::cat(&targets[..count], 0)?);
        Ok(Dataset::new(inputs, targets)?)
    };
    let (train, validation) = (data(STEPS_PER_EPOCH)?, data(1)?);
    let config = train_config(work.batch_size, 1, work.optimizer, ConflictResolution::Mean, in_mode(mode));
    let data = Splits { test: validation.clone(), validation, train };
    let num_classes = work.num_classes;
    let model = work.model.with_host_numbers(numbers);
    let mut trainer = plain_trainer(config, num_classes, model, data, [0, EPOCHS], &gpu.clock)?;
    let mut stopwatch = Stopwatch { clock: Arc::clone(&gpu.clock), began: gpu.now(), total: Duration::ZERO };
    trainer.run(eager, &mut stopwatch)?;
    let tests = trainer.graph_tests();
    let share = tests.time.as_secs_f64() / (stopwatch.total - tests.time).as_secs_f64();
    samples.push(format!("{title}.share"), "ratio", share);
    samples.push(format!("{title}.tests"), "count", tests.num_tests as f64);
    samples.push(format!("{title}.test"), "ms", ms(tests.time) / tests.num_tests.max(1) as f64);
    let (steps, replays) = (trainer.progress().1.0, trainer.graph_stats().total.replays);
    let told = format!(
        "{} tests in {:?} beside {replays} replays of {steps} steps in {:?}: {:.3} %",
        tests.num_tests,
        tests.time,
        stopwatch.total - tests.time,
        share * 100.0
    );
    promise(replays * 10 > steps * 9, || format!("too few replays: {told}"))?;
    promise(numbers == HostNumbers::MayMove || share <= MOST_OF_REPLAYS, || told.clone())?;
    promise(tests.num_tests > 0, || told.clone())?;
    Ok(told)
}

/// The main job, by the program itself: what its packets say of tests.
fn digits(gpu: &Gpu, samples: &mut Samples) -> Result<String, Broken> {
    let failed = |message: String| Broken(format!("esper train: {message}"));
    let folder = std::env::temp_dir().join(format!("esper-retest-{}", std::process::id()));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let output = Command::new(program)
        .args(["train", "--progress", "off", "--device"])
        .arg(format!("cuda:{}", gpu.ordinal))
        .arg("--out")
        .arg(&folder)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let packets = std::fs::read_to_string(folder.join("packets.jsonl")).unwrap_or_default();
    let removed = std::fs::remove_dir_all(&folder);
    promise(output.status.success(), || format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)))?;
    removed.map_err(|error| failed(error.to_string()))?;
    let last = |name: &str| last_value(&packets, name).ok_or_else(|| failed(format!("no packet has {name}")));
    let (test_ms, tests) = (last("tolaria.graph.test_ms")?, last("tolaria.graph.tests_total")?);
    let replays = last("tolaria.graph.replays_total")?;
    let epochs_ms: f64 = packets.lines().filter_map(|line| last_value(line, "tolaria.training.latency_ms")).sum();
    let share = test_ms / (epochs_ms - test_ms);
    samples.push("retest.digits.share", "ratio", share);
    samples.push("retest.digits.tests", "count", tests);
    samples.push("retest.digits.test", "ms", test_ms / tests.max(1.0));
    let told = format!(
        "{tests} tests in {test_ms:.2} ms beside {replays} replays; epochs took {epochs_ms:.1} ms: {:.3} %",
        share * 100.0
    );
    promise(replays > 0.0 && tests > 0.0 && share <= MOST_OF_JOB, || told.clone())?;
    Ok(told)
}
