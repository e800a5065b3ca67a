//! Steps of the shared works, eager against replayed.

use esper_graph::Captured;
use leyline::region::Eager;

use crate::error::Error;
use crate::gpu::compiled_step::captured as recorded;
use crate::gpu::open::{Gpu, refused, replay};
use crate::gpu::optimizer_step::{OptimizerStep, unit_of};
use crate::models::Workload;
use crate::samples::{Samples, ms, us};

/// Steps that are compared bit for bit.
const COMPARED: usize = 200;
const WARM_UP: usize = 20;
const REPETITIONS: usize = 500;
/// Measures one work; says what was compared.
pub(super) fn measure(gpu: &Gpu, eager: &mut Eager, name: &str, samples: &mut Samples) -> Result<String, Error> {
    let unit = unit_of(name);
    let work = || Workload::named(name, 0, &gpu.device);
    let mut step = OptimizerStep::new(gpu, work()?)?;
    let start = step.parameters()?;
    for _ in 0..COMPARED {
        step.eagerly(gpu)?;
    }
    let expected = step.parameters()?;

    let (mut replayed, _, captured) = recorded(gpu, eager, work()?)?;
    for _ in replayed.num_steps()..COMPARED {
        replayed.replayed(&captured)?;
    }
    let found = replayed.parameters()?;
    let differing = expected.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let moved = start.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    if differing > 0 || moved * 2 < found.len() {
        let what = format!("{name}: parameters that differ between eager steps and replays ({moved} moved)");
        return Err(Error::WrongResult { what, expected: 0.0, found: differing as f64 });
    }

    report(name, &captured, samples);
    let mut timer = gpu.session.timer().map_err(|refusal| refused("a timer", refusal))?;
    for index in 0..WARM_UP + REPETITIONS {
        let began = gpu.now();
        for _ in 0..unit {
            step.eagerly(gpu)?;
        }
        gpu.wait()?;
        let eager_time = gpu.now() - began;

        let began = gpu.now();
        for _ in 0..unit {
            replayed.replayed(&captured)?;
        }
        let enqueued = gpu.now() - began;
        gpu.wait()?;
        let replay_time = gpu.now() - began;

        gpu.session.time(&mut timer, || replay(&captured))?;
        gpu.wait()?;
        if index >= WARM_UP {
            samples.push(format!("{name}.eager"), "us", us(eager_time));
            samples.push(format!("{name}.replay"), "us", us(replay_time));
            samples.push(format!("{name}.replay.enqueued"), "us", us(enqueued) / unit as f64);
            if let Some(ms) = timer.last_ms() {
                samples.push(format!("{name}.replay.device"), "us", ms * 1e3);
            }
        }
    }
    let median = |what: &str| samples.median(&format!("{name}.{what}")).unwrap_or(f64::NAN);
    let speedup = median("eager") / median("replay");
    samples.push(format!("{name}.speedup"), "ratio", speedup);
    let names = captured.report().nodes.kernels_by_name.iter();
    let mut names: Vec<(&String, &usize)> = names.collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let most: Vec<String> = names.iter().take(6).map(|(name, count)| format!("{count} {name}")).collect();
    Ok(format!(
        "{} parameters, {COMPARED} steps compared, 0 differ, {moved} moved; most frequent kernels: {}",
        found.len(),
        most.join(", ")
    ))
}

fn report(name: &str, captured: &Captured, samples: &mut Samples) {
    let report = captured.report();
    samples.push(format!("{name}.capture"), "ms", ms(report.times.capture()));
    samples.push(format!("{name}.instantiate"), "ms", ms(report.times.instantiate + report.times.upload));
    let nodes = &report.nodes;
    for (kind, count) in [
        ("kernels", nodes.kernels),
        ("memsets", nodes.memsets),
        ("copies", nodes.device_copies),
        ("memory", nodes.allocations + nodes.frees),
        ("others", nodes.others),
    ] {
        samples.push(format!("{name}.nodes.{kind}"), "count", count as f64);
    }
}
