//! Every task, and every way to feed one: eager, captured and compiled steps make the same of them, bit for bit.

mod problems;
mod feeding;

use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use kasmina::host::HostConfig;
use leyline::clock::Clock;
use leyline::id::StepIndex;
use leyline::region::Eager;
use tolaria::batch::Dataset;
use tolaria::trainer::{Parts, StepMode, TrainConfig, Trainer};

use self::problems::{ADAM_W, INPUTS, Mistake, Problem, SAMPLES, STEPS_PER_EPOCH, mistaken, problems};
use super::frozen::execution;
use crate::gpu::growing::Growing;
use crate::gpu::open::Gpu;
use crate::gpu::ran::{Ran, same};
use crate::gpu::report::{Broken, Report, promise};
use crate::trainer::all_of;

const EPOCHS: u64 = 30;
const STEPS: u64 = EPOCHS * STEPS_PER_EPOCH;
/// Compiled steps, percent: more than there are full windows, so that tails are among them.
const SHARE: u64 = 67;
/// Of a network that grows, whose structures come and go.
const GROWING_EPOCHS: u64 = 40;
const GROWING_SHARE: u64 = 25;
/// Of losses, measures and norms of few steps on two devices.
const ROUNDING: f64 = 1e-4;

/// Where networks are trained, and by which clock.
struct Place {
    device: Device,
    clock: Arc<dyn Clock>,
}

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    let on = &Place { device: gpu.device.clone(), clock: Arc::clone(&gpu.clock) };
    for microbatches in [1, 4] {
        each(
            on,
            report,
            &format!("accumulation{microbatches}"),
            |_| true,
            |problem| plain(on, eager, problem, microbatches),
        );
    }
    each(on, report, "cpu", |_| true, |problem| as_on_the_cpu(on, eager, problem));
    // Hosts that grow have outputs per sample.
    each(on, report, "owners", |problem| !problem.is_of_tokens(), |problem| growing(on, eager, problem));
    for (name, mistake) in [("host_read", Mistake::Reads), ("changing_value", Mistake::Copies)] {
        report.check(format!("tasks.own.{name}"), |_| refused(on, eager, mistake, name));
    }
    report.check("tasks.own.counts.host_read", |_| refused_evaluations(on, eager));
    feeding::run(on, eager, report);
}

/// A check of every task that is chosen.
fn each(
    on: &Place,
    report: &mut Report,
    of: &str,
    is_chosen: impl Fn(&Problem) -> bool,
    mut check: impl FnMut(&Problem) -> Result<String, Broken>,
) {
    match problems(&on.device) {
        Ok(problems) => problems.iter().filter(|problem| is_chosen(problem)).for_each(|problem| {
            report.check(format!("tasks.{}.{of}", problem.name), |_| check(problem));
        }),
        Err(broken) => report.check(format!("tasks.all.{of}"), |_| Err(broken)),
    }
}

/// Time for the compiler while its first shapes are under way, where there is something to compile.
fn pause(mode: StepMode) -> impl Fn(StepIndex) -> Duration {
    let due = 6 * STEPS_PER_EPOCH..14 * STEPS_PER_EPOCH;
    move |step| {
        let is_due = mode == StepMode::Compiled && due.contains(&step.0) && step.0.is_multiple_of(STEPS_PER_EPOCH);
        if is_due { Duration::from_millis(80) } else { Duration::ZERO }
    }
}

/// A run over samples that are on the device or on the host.
fn ran(on: &Place, eager: &mut Eager, problem: &Problem, config: TrainConfig, data: Dataset) -> Result<Ran, Broken> {
    let mode = config.execution.mode;
    let parts = problem.parts(data, EPOCHS, &on.device, &on.clock)?;
    Ran::of(Trainer::new(config, parts)?, eager, pause(mode))
}

/// Confirms three runs of the same steps.
fn all_the_same([plain, captured, compiled]: [&Ran; 3], least: [u64; 2]) -> Result<String, Broken> {
    promise(plain.captures == 0, || "the eager run captured".to_owned())?;
    plain.agrees(captured, least[0])?;
    promise(captured.replays * 100 >= captured.steps * least[1], || {
        format!("{} of {} steps were replays", captured.replays, captured.steps)
    })?;
    Ok(format!("{} replays; {}", captured.replays, same(captured, compiled, least)?))
}

fn plain(on: &Place, eager: &mut Eager, problem: &Problem, microbatches: usize) -> Result<String, Broken> {
    let mut run = |mode| {
        let data = problem.data_on(&on.device)?;
        ran(on, eager, problem, problem.config(microbatches, mode), data)
    };
    let [eager, captured, compiled] = [run(StepMode::Eager)?, run(StepMode::Graph)?, run(StepMode::Compiled)?];
    all_the_same([&eager, &captured, &compiled], [STEPS, SHARE])
}

/// Losses, gradients and measures of two epochs are those of the CPU, but for rounding.
fn as_on_the_cpu(on: &Place, eager: &mut Eager, problem: &Problem) -> Result<String, Broken> {
    let mut run = |on: &Place| -> Result<Vec<f64>, Broken> {
        let problem = feeding::named(on, problem.name)?;
        let parts = problem.parts(problem.data_on(&on.device)?, 2, &on.device, &on.clock)?;
        let trainer = Trainer::new(problem.config(1, StepMode::Eager), parts)?;
        let history = Ran::of(trainer, eager, |_| Duration::ZERO)?.history;
        Ok(history.into_iter().flatten().map(f64::from_bits).collect())
    };
    let expected = run(&Place { device: Device::Cpu, clock: Arc::clone(&on.clock) })?;
    let found = run(on)?;
    promise(found.len() == expected.len(), || format!("{found:?}, and {expected:?} on the CPU"))?;
    let pairs = found.iter().zip(&expected);
    let largest = pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0_f64, f64::max);
    promise(largest <= ROUNDING, || format!("off by {largest:e}: {found:?}, and {expected:?} on the CPU"))?;
    Ok(format!("{} losses, measures and norms, off by up to {largest:e}", found.len()))
}

/// A host with seeds that are trained in the shadow, blended in and kept, two microbatches per window, and PCGrad among them.
fn growing(on: &Place, eager: &mut Eager, problem: &Problem) -> Result<String, Broken> {
    let mut run = |mode| grown(on, eager, problem, mode);
    let [eager, captured, compiled] = [run(StepMode::Eager)?, run(StepMode::Graph)?, run(StepMode::Compiled)?];
    if let Some(refusal) = &captured.evaluation_refusal {
        return Err(Broken(format!("an evaluation was refused: {refusal}")));
    }
    let evaluations = captured.evaluations;
    promise(eager.evaluations == 0 && evaluations > 0, || format!("{evaluations} evaluations were replays"))?;
    let seen = all_the_same([&eager, &captured, &compiled], [GROWING_EPOCHS * 5, GROWING_SHARE])?;
    Ok(format!("{seen}; {evaluations} evaluations were replays"))
}

fn grown(on: &Place, eager: &mut Eager, problem: &Problem, mode: StepMode) -> Result<Ran, Broken> {
    let growing = Growing {
        host: HostConfig::Mlp { inputs: INPUTS, hidden: vec![32, 24], classes: problem.width },
        num_samples: SAMPLES,
        epochs: GROWING_EPOCHS,
        stage_epochs: 8,
        execution: execution(mode),
        ..Growing::small(2, ADAM_W)
    };
    let parts = growing.parts_on(&on.device, &on.clock)?;
    let (task, data) = (Arc::clone(&problem.task), all_of(problem.data_on(&on.device)?));
    let config = TrainConfig { measures: problem.config(1, mode).measures, ..growing.config() };
    let pause = if mode == StepMode::Compiled { Duration::from_millis(12) } else { Duration::ZERO };
    let ran = Ran::of(Trainer::new(config, Parts { task, data, ..parts })?, eager, |_| pause)?;
    promise(ran.parameters.len() > ran.start.len(), || "nothing grew".to_owned())?;
    Ok(ran)
}

/// A task that breaks its rule is refused by name, and its steps go on eagerly with the bits of eager ones.
fn refused(on: &Place, eager: &mut Eager, mistake: Mistake, name: &str) -> Result<String, Broken> {
    let mut run =
        |problem: &Problem, mode| ran(on, eager, problem, problem.config(1, mode), problem.data_on(&on.device)?);
    let sound = run(&feeding::named(on, "own")?, StepMode::Eager)?;
    let found = run(&mistaken(mistake)?, StepMode::Compiled)?;
    sound.agrees(&found, STEPS)?;
    let Ran { refusal, steps, replays, .. } = found;
    match refusal {
        Some(refusal) if refusal.name() == name && replays == 0 => {
            Ok(format!("{refusal}; {steps} steps went on with the bits of a task that is sound"))
        }
        other => Err(Broken(format!("not refused as {name}: {other:?}, {replays} replays"))),
    }
}

/// A measure that breaks its rule: evaluations are refused by name and go on eagerly, and steps are captured.
fn refused_evaluations(on: &Place, eager: &mut Eager) -> Result<String, Broken> {
    let sound = grown(on, eager, &feeding::named(on, "own")?, StepMode::Eager)?;
    let found = grown(on, eager, &mistaken(Mistake::ReadsCounts)?, StepMode::Graph)?;
    found.unrefused()?;
    sound.agrees(&found, GROWING_EPOCHS * 5)?;
    match found.evaluation_refusal {
        Some(refusal) if refusal.name() == "host_read" && found.evaluations == 0 => {
            Ok(format!("{refusal}; evaluations went on with the bits of a measure that is sound"))
        }
        other => Err(Broken(format!("not refused as host_read: {other:?}, {} replays", found.evaluations))),
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    fn on_the_cpu() -> Place {
        Place { device: Device::Cpu, clock: Arc::new(SystemClock::new()) }
    }

    #[track_caller]
    fn kept<T>(name: &str, checked: Result<T, Broken>) -> T {
        checked.map_err(|broken| format!("{name}: {}", broken.0)).unwrap()
    }

    #[test]
    fn every_task_learns_and_two_runs_of_it_are_the_same() {
        let (on, mut eager) = (on_the_cpu(), Eager::acquire().unwrap());
        let problems = kept("all", problems(&Device::Cpu));
        let mut names: Vec<&str> = problems.iter().map(|problem| problem.name).collect();
        for Problem { name, .. } in &problems {
            let problem = kept(name, feeding::named(&on, name));
            let mut run = |microbatches| {
                let config = problem.config(microbatches, StepMode::Graph);
                kept(name, ran(&on, &mut eager, &problem, config, problem.data.clone()))
            };
            for microbatches in [1, 4] {
                let [first, second] = [run(microbatches), run(microbatches)];
                kept(name, first.agrees(&second, STEPS));
                let loss = |epoch: usize| f64::from_bits(first.history[epoch][0]);
                assert!(loss(29) < loss(0), "{name} does not learn");
                let held_out = first.history[30].len();
                assert!(held_out > problem.task.measures().len(), "{name} is not measured");
            }
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), problems.len());
    }

    #[test]
    fn every_task_on_the_cpu_is_as_on_the_cpu() {
        let (on, mut eager) = (on_the_cpu(), Eager::acquire().unwrap());
        for problem in kept("all", problems(&Device::Cpu)) {
            kept(problem.name, as_on_the_cpu(&on, &mut eager, &problem));
        }
    }

    #[test]
    fn every_task_of_vectors_is_learned_by_networks_that_grow() {
        let (on, mut eager) = (on_the_cpu(), Eager::acquire().unwrap());
        for problem in kept("all", problems(&Device::Cpu)).iter().filter(|problem| !problem.is_of_tokens()) {
            kept(problem.name, grown(&on, &mut eager, problem, StepMode::Eager));
        }
    }

    #[test]
    fn what_needs_no_gpu_of_the_checks_holds_without_one() {
        let (on, mut eager) = (on_the_cpu(), Eager::acquire().unwrap());
        for (name, check) in feeding::checks() {
            kept(&name, check(&on, &mut eager, StepMode::Eager));
        }
    }
}
