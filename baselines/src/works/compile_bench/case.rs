//! One network in one variant: the three ways of a step are compared first, then timed.

use std::path::Path;

use candle_core::DType;
use esper_graph::{Captured, CompileReport};
use leyline::region::Eager;

use super::compiling::compile_meanwhile;
use super::timing::{Way, measure_ways};
use super::{kernels, phases};
use crate::error::Error;
use crate::gpu::compiled_step::captured;
use crate::gpu::open::{Gpu, refused, replay};
use crate::gpu::optimizer_step::{OptimizerStep, unit_of};
use crate::models::{Tokens, Variant, Workload};
use crate::samples::{Samples, us};

/// Eager steps that captured ones are compared with.
const COMPARED: usize = 24;
/// Compiled steps, after those that were verified, that captured ones are compared with.
const COMPILED: usize = 40;

/// Measures one case; says what was compared and which kernels are left, and what a step is for a language model.
pub(super) fn measure(
    gpu: &Gpu,
    eager: &mut Eager,
    name: &str,
    variant: Variant,
    folder: &Path,
    samples: &mut Samples,
) -> Result<(String, Option<Tokens>), Error> {
    let case = format!("{name}.{variant}");
    let work = || Workload::of(name, variant, 0, &gpu.device);
    let mut eagerly = OptimizerStep::new(gpu, work()?)?;
    let start = eagerly.parameters()?;
    for _ in 0..COMPARED {
        eagerly.eagerly(gpu)?;
    }
    let (mut replayed, _, graph) = captured(gpu, eager, work()?)?;
    for _ in replayed.num_steps()..COMPARED {
        replayed.replayed(&graph)?;
    }
    confirm_same(&format!("{case}: eager and captured steps"), &eagerly, &replayed)?;

    let (mut step, compiled) = compile_meanwhile(gpu, eager, work()?, &case, folder, samples)?;
    let report = compiled.report().clone();
    phases::push(samples, &case, &report);
    for _ in 0..COMPILED {
        step.compiled(gpu, &compiled, |_| ())?;
    }
    for _ in replayed.num_steps()..step.num_steps() {
        replayed.replayed(&graph)?;
    }
    confirm_same(&format!("{case}: captured and compiled steps"), &replayed, &step)?;
    let (end, steps, tokens) = (step.parameters()?, step.num_steps(), step.work.tokens);
    let moved = start.iter().zip(&end).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    // Most updates of so few steps are less than the last place of a parameter of bf16: few of the parameters themselves move.
    let least = end.len() / if variant.precision.of_parameters() == DType::BF16 { 10 } else { 2 };
    if moved < least || !step.last_loss()?.is_finite() {
        let what = format!("{case}: parameters that moved in {steps} steps");
        return Err(Error::WrongResult { what, expected: least as f64, found: moved as f64 });
    }

    let mut launches = Vec::new();
    let mut ways = [
        Way::new("eager", |gpu| eagerly.eagerly(gpu)),
        Way::new("graph", |_| replayed.replayed(&graph)),
        Way::new("compiled", |gpu| step.compiled(gpu, &compiled, |launch| launches.push(us(launch)))),
    ];
    measure_ways(gpu, &case, unit_of(name), &mut ways, samples)?;
    drop(ways);
    if unit_of(name) > 1 {
        let work = Workload { steps_per_launch: unit_of(name), ..work()? };
        measure_shared(gpu, eager, (&case, work, folder), (&mut replayed, &graph), samples)?;
    }
    launches.into_iter().for_each(|launch| samples.push(format!("{case}.compiled.launch"), "us", launch));
    // The graphs alone. Inputs stay as they are; parameters go on.
    push_device_time(gpu, &format!("{case}.graph"), samples, || replay(&graph))?;
    push_device_time(gpu, &format!("{case}.compiled"), samples, || {
        compiled.replay().map_err(|refusal| refused("a compiled replay", refusal))
    })?;
    let median = |what: &str| samples.median(&format!("{case}.{what}")).unwrap_or(f64::NAN);
    let (eager_us, graph_us, compiled_us) = (median("eager"), median("graph"), median("compiled"));
    let stall = (median("stall.longest") * unit_of(name) as f64 - graph_us) / eager_us;
    samples.push(format!("{case}.speedup.eager"), "ratio", eager_us / compiled_us);
    samples.push(format!("{case}.speedup.graph"), "ratio", graph_us / compiled_us);
    samples.push(format!("{case}.stall.over_eager"), "ratio", stall);
    let seen =
        format!("{} parameters, {moved} moved in {steps} steps, 0 differ; kernels: {}", end.len(), kernels_of(&report));
    Ok((seen, tokens))
}

/// Steps that are timed together, as one launch, once the bits of single ones were compared with theirs.
fn measure_shared(
    gpu: &Gpu,
    eager: &mut Eager,
    (case, work, folder): (&str, Workload, &Path),
    (single, graph): (&mut OptimizerStep, &Captured),
    samples: &mut Samples,
) -> Result<(), Error> {
    let way = format!("{case}.shared");
    let (mut step, compiled) = compile_meanwhile(gpu, eager, work, &way, folder, samples)?;
    phases::push(samples, &way, compiled.report());
    for _ in 0..COMPILED {
        step.compiled(gpu, &compiled, |_| ())?;
    }
    while step.num_steps() < single.num_steps() {
        step.compiled(gpu, &compiled, |_| ())?;
    }
    while single.num_steps() < step.num_steps() {
        single.replayed(graph)?;
    }
    confirm_same(&format!("{case}: steps of a launch each and steps that share one"), single, &step)?;
    let mut ways = [Way::new("shared", |gpu| step.compiled(gpu, &compiled, |_| ()))];
    measure_ways(gpu, case, 1, &mut ways, samples)?;
    drop(ways);
    push_device_time(gpu, &way, samples, || compiled.replay().map_err(|refusal| refused("a compiled replay", refusal)))
}

/// Traces the kernels of one case, with those that an earlier compilation left in `folder`. Launches of this process take longer from
/// then on: whatever is timed comes before.
pub(super) fn trace(
    gpu: &Gpu,
    eager: &mut Eager,
    name: &str,
    variant: Variant,
    folder: &Path,
    samples: &mut Samples,
) -> Result<(), Error> {
    let case = format!("{name}.{variant}");
    let work = Workload::of(name, variant, 0, &gpu.device)?;
    let (mut step, compiled) = compile_meanwhile(gpu, eager, work, &case, folder, &mut Samples::default())?;
    step.load()?;
    kernels::measure(gpu, &case, &compiled, samples)
}

const DEVICE_REPETITIONS: usize = 50;

/// What a launch takes on the device, by events.
fn push_device_time(
    gpu: &Gpu,
    way: &str,
    samples: &mut Samples,
    launch: impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let mut timer = gpu.session.timer().map_err(|refusal| refused("a timer", refusal))?;
    for _ in 0..DEVICE_REPETITIONS {
        gpu.session.time(&mut timer, &launch)?;
        gpu.wait()?;
        samples.extend_from(format!("{way}.device"), "us", timer.last_ms().map(|ms| ms * 1e3));
    }
    Ok(())
}

/// The bits of all parameters and of the last loss.
fn confirm_same(what: &str, a: &OptimizerStep, b: &OptimizerStep) -> Result<(), Error> {
    let mut differing = a.parameters()?.iter().zip(b.parameters()?).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    differing += usize::from(a.last_loss()?.to_bits() != b.last_loss()?.to_bits());
    if differing == 0 && a.num_steps() == b.num_steps() {
        return Ok(());
    }
    let what = format!("{what}: parameters that differ after {} and {} steps", a.num_steps(), b.num_steps());
    Err(Error::WrongResult { what, expected: 0.0, found: differing as f64 })
}

/// Launches of the compiled graph by kernel, the most frequent ones first.
fn kernels_of(report: &CompileReport) -> String {
    let mut kernels: Vec<(&String, &usize)> = report.kernels.iter().collect();
    kernels.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let names = kernels.iter().take(12).map(|(name, count)| format!("{count} {name}"));
    let mut names: Vec<String> = names.collect();
    names.extend(report.unknown_kernels.iter().map(|(name, count)| format!("{count} unknown {name}")));
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_most_frequent_kernels_come_first_and_unknown_ones_are_named() {
        let counts =
            |pairs: &[(&str, usize)]| pairs.iter().map(|&(name, n)| (name.to_owned(), n)).collect::<BTreeMap<_, _>>();
        let report = CompileReport {
            kernels: counts(&[("a", 1), ("b", 7), ("c", 3)]),
            unknown_kernels: counts(&[("x", 2)]),
            ..CompileReport::default()
        };
        assert_eq!(kernels_of(&report), "7 b, 3 c, 1 a, 2 unknown x");
    }
}
