//! A thousand steps, eagerly and as graphs: the same bits, and parameters that moved.

use kasmina::host::HostConfig;
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedState};
use leyline::state::Score;
use tolaria::aggregate::ConflictResolution;
use tolaria::optim::OptimizerConfig;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{ExecutionConfig, Flow, NullObserver, Observer, StepMode};

use super::super::compile_check::MUON;
use super::plain;
use crate::gpu::growing::{Growing, differing, in_mode, values_of};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};
use crate::trainer::count;

const SGD: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
pub(super) const ADAM_W: OptimizerConfig =
    OptimizerConfig::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (name, optimizer) in [("sgd", SGD), ("adam_w", ADAM_W), ("muon", MUON)] {
        for microbatches in [1, 4] {
            let growing = Growing::small(microbatches, optimizer);
            let title = format!("equal.graft.{name}.accumulation{microbatches}");
            report.check(title, |_| grown(gpu, eager, &growing));
            let title = format!("equal.dropout.{name}.accumulation{microbatches}");
            report.check(title, |_| plain::dropout(gpu, eager, optimizer, microbatches));
        }
    }
    let host = HostConfig::LanguageModel {
        context: 6,
        width: 8,
        heads: 2,
        layers: 2,
        mlp_ratio: 2,
        tied: true,
        vocabulary: 11,
    };
    let language_model = Growing { host, ..Growing::small(4, ADAM_W) };
    report.check("equal.language_model.adam_w.accumulation4", |_| grown(gpu, eager, &language_model));
    let execution = ExecutionConfig { prefetch: true, ..in_mode(StepMode::Graph) };
    let staged = Growing { execution, data_on_host: true, ..Growing::small(4, ADAM_W) };
    report.check("equal.staged_from_host", |_| staged_from_host(gpu, eager, &staged));
    for (what, data_on_host) in [("resident", false), ("from_host", true)] {
        // Stages that last, so that there is time to compile.
        let growing = Growing {
            data_on_host,
            conflict: ConflictResolution::Mean,
            stage_epochs: 40,
            epochs: 160,
            ..Growing::small(1, ADAM_W)
        };
        report.check(format!("equal.shared_launches.{what}"), |_| sharing(gpu, eager, &growing));
    }
    report.check("equal.restore", |_| restored(gpu, eager, &Growing::small(4, ADAM_W)));
    report.check("off.zero_captures", |_| off(gpu, eager));
}

/// A network that grows: shadow training, blending, holding, permanent; a tail batch in every epoch.
fn grown(gpu: &Gpu, eager: &mut Eager, growing: &Growing) -> Result<String, Broken> {
    let start = values_of(growing.trainer(gpu)?.seeds().model().parameters())?;
    let (mut scores, mut scores_of_graphs) = (Scores::default(), Scores::default());
    let (plain, expected) = growing.with_mode(StepMode::Eager).finish_seen_by(&mut scores, gpu, eager)?;
    let (trainer, found) = growing.with_mode(StepMode::Graph).finish_seen_by(&mut scores_of_graphs, gpu, eager)?;
    let evaluations = trainer.num_replayed_evaluations();
    if let Some(refusal) = trainer.last_evaluation_refusal() {
        return Err(Broken(format!("an evaluation was refused: {refusal}")));
    }
    promise(evaluations > 0, || "no evaluation was a replay".to_owned())?;
    promise(plain.num_replayed_evaluations() == 0, || "the eager run replayed evaluations".to_owned())?;
    promise(scores == scores_of_graphs, || "evaluations differ".to_owned())?;
    let stats = trainer.graph_stats().total;
    let steps = trainer.progress().1.0;
    if let Some(refusal) = trainer.last_refusal() {
        return Err(Broken(format!("a shape was refused: {refusal}")));
    }
    promise(plain.graph_stats().total.captures == 0, || "the eager run captured".to_owned())?;
    promise(steps >= 1000 && plain.progress().1.0 == steps, || format!("{steps} steps"))?;
    let wrong = differing(&expected, &found);
    promise(wrong == 0, || format!("{wrong} of {} parameters differ", found.len()))?;
    promise(found.len() > start.len(), || "nothing grew".to_owned())?;
    let host = trainer.seeds().model().parameters().iter().filter(|p| p.name.starts_with("host"));
    let moved = differing(&start, &values_of(&host.cloned().collect::<Vec<_>>())?);
    promise(moved * 10 > start.len() * 9, || format!("{moved} of {} host parameters moved", start.len()))?;
    promise(stats.replays * 10 > steps * 8, || format!("{} of {steps} steps were replays", stats.replays))?;
    Ok(format!(
        "{steps} steps, {} replays, {} captures, 0 of {} parameters differ, {moved} of {} host parameters moved; \
         {} evaluations, {evaluations} replays, none differs",
        stats.replays,
        stats.captures,
        found.len(),
        start.len(),
        scores.0.len()
    ))
}

/// What every epoch found on held-out data, of the network and of each seed.
#[derive(Debug, Default, PartialEq)]
struct Scores(Vec<(Score, Vec<SeedState>)>);

impl Observer for Scores {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.0.push((report.validation.clone(), report.seeds.clone()));
        Ok(())
    }
}

/// Steps that share launches where they can, in all modes, are eager steps one by one.
fn sharing(gpu: &Gpu, eager: &mut Eager, growing: &Growing) -> Result<String, Broken> {
    let (_, expected) = growing.with_mode(StepMode::Eager).finish(gpu, eager)?;
    let mut seen = Vec::new();
    for mode in [StepMode::Eager, StepMode::Graph, StepMode::Compiled] {
        let execution = ExecutionConfig { steps_per_launch: count(4), compile_warmup_steps: 1, ..in_mode(mode) };
        let mut launches = Launches::default();
        let sharing = Growing { execution, ..growing.clone() };
        let (trainer, found) = sharing.finish_seen_by(&mut launches, gpu, eager)?;
        let (num_launches, num_steps) = (launches.0, trainer.progress().1.0);
        if let Some(refusal) = trainer.last_refusal().or(trainer.last_compile_refusal()) {
            return Err(Broken(format!("a shape was refused: {refusal}")));
        }
        let wrong = differing(&expected, &found);
        promise(wrong == 0, || format!("{mode:?}: {wrong} of {} parameters differ", found.len()))?;
        promise(num_launches * 4 < num_steps * 3, || format!("{num_launches} launches of {num_steps} steps"))?;
        let replays = [trainer.graph_stats().total.replays, trainer.num_compiled_replays()];
        let expected = [mode != StepMode::Eager, mode == StepMode::Compiled];
        promise(replays.map(|replays| replays > 0) == expected, || format!("{mode:?}: {replays:?} replays"))?;
        seen.push(format!("{mode:?} {num_launches} launches, {} replays, {} compiled", replays[0], replays[1]));
    }
    Ok(format!("0 of {} parameters differ from single eager steps: {}", expected.len(), seen.join("; ")))
}

/// Launches of which it was told.
#[derive(Debug, Default)]
struct Launches(u64);

impl Observer for Launches {
    fn step_finished(&mut self, _: StepIndex) -> Flow {
        self.0 += 1;
        Flow::Continue
    }

    fn epoch_finished(&mut self, _: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Samples that are copied from the host for every step, on a stream of their own, give what resident ones do.
fn staged_from_host(gpu: &Gpu, eager: &mut Eager, staged: &Growing) -> Result<String, Broken> {
    let resident = Growing { data_on_host: false, ..staged.clone() };
    let (_, expected) = resident.with_mode(StepMode::Eager).finish(gpu, eager)?;
    let (trainer, found) = staged.finish(gpu, eager)?;
    let wrong = differing(&expected, &found);
    promise(wrong == 0, || format!("{wrong} of {} parameters differ", found.len()))?;
    let stats = trainer.graph_stats().total;
    promise(stats.replays > 0, || "no replay".to_owned())?;
    Ok(format!("{} replays, 0 of {} parameters differ from resident data run eagerly", stats.replays, found.len()))
}

/// A trainer that is taken back, while it has graphs, goes on as if it had never left.
fn restored(gpu: &Gpu, eager: &mut Eager, growing: &Growing) -> Result<String, Broken> {
    let (_, expected) = growing.finish(gpu, eager)?;
    let mut trainer = growing.trainer(gpu)?;
    trainer.run(eager, &mut StopAt(120))?;
    let snapshot = trainer.snapshot(eager)?;
    trainer.run(eager, &mut StopAt(300))?;
    let (before, step) = (trainer.graph_stats().total.replays, trainer.progress().1);
    trainer.restore(eager, &snapshot)?;
    trainer.run(eager, &mut NullObserver)?;
    let found = values_of(trainer.seeds().model().parameters())?;
    let wrong = differing(&expected, &found);
    promise(wrong == 0, || format!("{wrong} of {} parameters differ", found.len()))?;
    let after = trainer.graph_stats().total.replays;
    promise(before > 0 && after > before, || format!("{before} replays before, {after} in all"))?;
    Ok(format!(
        "taken back from step {step} to 120: 0 of {} parameters differ at the end, {after} replays",
        found.len()
    ))
}

/// Stops after a step.
struct StopAt(u64);

impl Observer for StopAt {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        if step.0 == self.0 { Flow::Stop } else { Flow::Continue }
    }

    fn epoch_finished(&mut self, _report: &EpochReport) -> Result<(), BoxError> {
        Ok(())
    }
}

fn off(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let growing = Growing { epochs: 3, ..Growing::small(1, SGD) };
    let (trainer, _) = growing.with_mode(StepMode::Eager).finish(gpu, eager)?;
    let stats = trainer.graph_stats().total;
    promise(stats.captures + stats.replays == 0, || format!("{stats:?}"))?;
    Ok("0 captures, 0 replays".to_owned())
}
