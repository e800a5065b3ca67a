//! Samples that are not finite under captured and compiled steps: their windows change nothing, running statistics included, and
//! are counted.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Tensor, Var};
use leyline::error::BoxError;
use leyline::id::{EpochIndex, StepIndex};
use leyline::model::Pass;
use leyline::region::Eager;
use tolaria::aggregate::ConflictResolution;
use tolaria::batch::{Dataset, Sampler};
use tolaria::checkpoint::Snapshot;
use tolaria::host_read::{HostReads, read_vec};
use tolaria::optim::{GroupsConfig, OptimizerConfig};
use tolaria::plain::{NoSeeds, PlainModel};
use tolaria::task::Classification;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Splits, StepMode, TrainConfig, Trainer};

use super::frozen::{execution, goes_on};
use super::plain::{BATCH, CLASSES, data, values};
use crate::gpu::growing::differing;
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::models::Draw;
use crate::trainer::{PlainTrainer, all_of, parts_of, train_config};

const SGD: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4 };
const ADAM_W: OptimizerConfig = OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
const EPOCHS: u64 = 30;
const SEED: u64 = 3;

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (name, mode) in [("graph", StepMode::Graph), ("compiled", StepMode::Compiled)] {
        report.check(format!("finite.frozen_host.{name}"), |_| spoils_nothing(gpu, eager, mode));
    }
    for (name, optimizer) in [("sgd", SGD), ("adam_w", ADAM_W)] {
        for microbatches in [1, 4] {
            let case = Case { optimizer, microbatches, bad: f32::NAN, sample: 77 };
            let title = format!("finite.skipped.{name}.accumulation{microbatches}");
            report.check(title, |_| case.skips_one_window(gpu, eager));
            for (mode_name, mode) in [("graph", StepMode::Graph), ("compiled", StepMode::Compiled)] {
                for (bad_name, bad) in [("nan", f32::NAN), ("infinite", f32::INFINITY), ("huge", 1e30)] {
                    let case = Case { bad, ..case };
                    let title = format!("finite.{bad_name}.{name}.accumulation{microbatches}.{mode_name}");
                    report.check(title, |_| case.same_in(gpu, eager, mode));
                }
            }
        }
    }
}

/// The gradient of a host that stays as it is is no number: no step is left out for it.
fn spoils_nothing(gpu: &Gpu, eager: &mut Eager, mode: StepMode) -> Result<String, Broken> {
    let root = Var::zeros((16, CLASSES), DType::F32, &gpu.device)?;
    let named = vec![("root".to_owned(), root.clone())];
    let model =
        PlainModel::new(named, move |x: &Tensor| x.matmul(&(root.as_tensor() - root.as_detached_tensor())?.sqrt()?))?;
    let config = TrainConfig {
        groups: GroupsConfig { host_rate: 0.0, ..GroupsConfig::default() },
        ..train_config(BATCH, 1, SGD, ConflictResolution::Mean, execution(mode))
    };
    let task = Arc::new(Classification::new(CLASSES));
    let parts = parts_of(task, NoSeeds::new(model), all_of(data(gpu)?), [SEED, EPOCHS], &gpu.clock);
    let pause = Duration::from_millis(4);
    let (mut trainer, mut skips) = (Trainer::new(config, parts)?, Skips { pause, ..Skips::default() });
    trainer.run(eager, &mut skips)?;
    promise(skips.of_epochs.len() as u64 == EPOCHS && skips.of_epochs.iter().all(|skipped| *skipped == 0), || {
        format!("{:?} were skipped", skips.of_epochs)
    })?;
    goes_on(&trainer, mode)?;
    Ok(format!("0 steps skipped, {} replays", trainer.graph_stats().total.replays))
}

#[derive(Debug, Clone, Copy)]
struct Case {
    optimizer: OptimizerConfig,
    microbatches: usize,
    /// In place of the numbers of one sample.
    bad: f32,
    sample: usize,
}

/// Counts skipped steps, and may stop.
#[derive(Debug, Default)]
struct Skips {
    of_epochs: Vec<u64>,
    stop_at: Option<u64>,
    /// After each step, so that there is time to compile.
    pause: Duration,
}

impl Observer for Skips {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        thread::sleep(self.pause);
        if self.stop_at == Some(step.0) { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.of_epochs.push(report.skipped_steps);
        Ok(())
    }
}

impl Case {
    fn data(self, gpu: &Gpu) -> Result<Dataset, Broken> {
        let good = data(gpu)?;
        let in_memory = "works hold their data in memory";
        let inputs = good.inputs().expect(in_memory).copy()?;
        inputs.slice_set(
            &Tensor::new(&[[self.bad]], &gpu.device)?.expand((1, inputs.dims()[1]))?.contiguous()?,
            0,
            self.sample,
        )?;
        Ok(Dataset::new(inputs, good.targets().expect(in_memory).clone())?)
    }

    fn trainer(self, gpu: &Gpu, epochs: u64, mode: StepMode) -> Result<PlainTrainer, Broken> {
        let config = train_config(BATCH, self.microbatches, self.optimizer, ConflictResolution::Mean, execution(mode));
        let data = Splits { validation: data(gpu)?, test: data(gpu)?, train: self.data(gpu)? };
        let task = Arc::new(Classification::new(CLASSES));
        Ok(Trainer::new(config, parts_of(task, centred(gpu)?, data, [SEED, epochs], &gpu.clock))?)
    }

    /// Parameters and moments after all epochs, and the steps that each epoch skipped.
    fn finish(
        self,
        gpu: &Gpu,
        eager: &mut Eager,
        mode: StepMode,
    ) -> Result<(PlainTrainer, Vec<f32>, Vec<u64>), Broken> {
        let (mut trainer, mut skips) = (self.trainer(gpu, EPOCHS, mode)?, Skips::default());
        trainer.run(eager, &mut skips)?;
        let state = state(&trainer.snapshot(eager)?)?;
        Ok((trainer, state, skips.of_epochs))
    }

    /// The same bits as eager steps, one step of each epoch left out, and still replays to the end.
    fn same_in(self, gpu: &Gpu, eager: &mut Eager, mode: StepMode) -> Result<String, Broken> {
        let (_, expected, skipped) = self.finish(gpu, eager, StepMode::Eager)?;
        let (trainer, found, also_skipped) = self.finish(gpu, eager, mode)?;
        let wrong = differing(&expected, &found);
        promise(wrong == 0, || format!("{wrong} of {} parameters and moments differ", found.len()))?;
        promise(found.iter().all(|value| value.is_finite()), || "a number that is not finite was learned".to_owned())?;
        promise(skipped == also_skipped, || format!("eager steps skipped {skipped:?}, these {also_skipped:?}"))?;
        let right = self.bad.abs() < f32::INFINITY || skipped == vec![1; skipped.len()];
        promise(right && skipped.len() as u64 == EPOCHS, || format!("{skipped:?} were skipped"))?;
        goes_on(&trainer, mode)?;
        let (replays, total) = (trainer.graph_stats().total.replays, skipped.iter().sum::<u64>());
        Ok(format!("0 of {} parameters and moments differ, {total} steps skipped, {replays} replays", found.len()))
    }

    /// One epoch gives what one gives whose window with the sample is passed over.
    fn skips_one_window(self, gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
        // The sample in the middle of the epoch, so that windows come before and after.
        let order = Sampler::new(SEED).permutation(EpochIndex(0), data(gpu)?.len());
        let position = order.len() / 2;
        let case = Self { sample: order[position] as usize, ..self };
        let window = (position / (BATCH * self.microbatches)) as u64;
        let mut trainer = case.trainer(gpu, 1, StepMode::Eager)?;
        trainer.run(eager, &mut Skips { stop_at: Some(window), ..Skips::default() })?;
        let before = trainer.snapshot(eager)?;
        let mut reference = case.trainer(gpu, 1, StepMode::Eager)?;
        reference.restore(eager, &passing_over_a_window(before.clone())?)?;
        for trainer in [&mut trainer, &mut reference] {
            trainer.run(eager, &mut Skips::default())?;
        }
        let (found, expected) = (state(&trainer.snapshot(eager)?)?, state(&reference.snapshot(eager)?)?);
        let wrong = differing(&expected, &found);
        promise(wrong == 0, || format!("{wrong} of {} parameters and moments differ", found.len()))?;
        let moved = differing(&state(&before)?, &found);
        promise(moved * 2 > found.len(), || "nothing was learned after the window".to_owned())?;
        promise(values(&trainer)?.iter().all(|value| value.is_finite()), || "it was learned".to_owned())?;
        Ok(format!("window {window} of {}: 0 of {} parameters and moments differ", trainer.progress().1, found.len()))
    }
}

/// 16-32-10, without the running mean of what is between the layers.
fn centred(gpu: &Gpu) -> Result<NoSeeds<PlainModel>, Broken> {
    let mut draw = Draw::new(11, &gpu.device);
    let mut weight = |rows, columns| Var::from_tensor(&draw.uniform((rows, columns), 0.3)?);
    let (first, second) = (weight(16, 32)?, weight(32, CLASSES)?);
    let mean = Var::zeros(32, DType::F32, &gpu.device)?;
    let (named, kept) = (vec![("first".into(), first.clone()), ("second".into(), second.clone())], mean.clone());
    let model = PlainModel::with_pass(named, move |x: &Tensor, pass: Pass<'_>| {
        let hidden = x.matmul(&first)?.relu()?;
        if pass == Pass::Train {
            mean.set(&((mean.as_detached_tensor() * 0.9)? + (hidden.detach().mean(0)? * 0.1)?)?)?;
        }
        hidden.broadcast_sub(&mean.as_detached_tensor())?.matmul(&second)
    })?;
    NoSeeds::with_buffers(model, vec![("mean".to_owned(), kept)]).map_err(|error| Broken(error.to_string()))
}

/// Parameters, buffers and moments.
pub(super) fn state(snapshot: &Snapshot) -> Result<Vec<f32>, Broken> {
    let mut reads = HostReads::default();
    let mut values = Vec::new();
    for component in ["seeds", "optimizer"] {
        for tensor in snapshot.components[component].tensors.values() {
            values.extend(read_vec(tensor, "check", &mut reads)?);
        }
    }
    Ok(values)
}

/// The snapshot, as if the next window had been taken and nothing had come of it.
fn passing_over_a_window(mut snapshot: Snapshot) -> Result<Snapshot, Broken> {
    let mut edit = |component: &str, edit: &dyn Fn(&mut serde_json::Value)| -> Result<(), Broken> {
        let json = &mut snapshot.components.get_mut(component).expect("a snapshot has it").json;
        let mut document = serde_json::from_str(json).map_err(|error| Broken(error.to_string()))?;
        edit(&mut document);
        *json = document.to_string();
        Ok(())
    };
    let add_one = |number: &mut serde_json::Value| *number = (number.as_u64().unwrap_or(0) + 1).into();
    edit("trainer", &|document| {
        add_one(&mut document["cursor"]["window"]);
        add_one(&mut document["cursor"]["step"]);
    })?;
    // The optimizer's count of steps goes on.
    edit("optimizer", &|document| {
        document["steps"].as_object_mut().into_iter().flatten().for_each(|(_, n)| add_one(n))
    })?;
    Ok(snapshot)
}
