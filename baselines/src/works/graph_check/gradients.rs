//! The gradient engine: captured windows give the bits of eager ones while shares, orders and rows change; the GPU
//! agrees with the CPU; what is no number stays visible, and is not learned.

use candle_core::{Device, Tensor};
use leyline::layout::ParameterLayout;
use leyline::region::Eager;
use tolaria::aggregate::{AggregationConfig, ConflictResolution};

use crate::gpu::growing::differing;
use crate::gpu::open::{Gpu, capture, replay};
use crate::gpu::report::{Broken, Report, promise};
use crate::gradient::difference::{largest_difference, worse};
use crate::gradient::engine::{EngineRun, METHODS, aggregation};
use crate::gradient::windows::{Window, WindowShape};
use crate::models::Draw;

/// Windows of a captured run.
const WINDOWS: u64 = 200;
/// Windows of random sizes per method; fewer where both sides are the CPU.
const SHAPES: u64 = if cfg!(test) { 8 } else { 40 };
/// Difference of GPU and CPU over the largest element of the result and of the rows: both round weights that they found
/// from the same sums to `f32`, and the solvers stop within 1e-6 of each other.
const CPU_TOLERANCE: f64 = 1e-5;
/// Of norms, shares, cosines and counts, over themselves or 1: sums of 10⁵ products in another order.
const SUMS_TOLERANCE: f64 = 1e-9;
/// Of parameters after one step of AdamW, which moves each by up to the learning rate of 1e-3: where a gradient is 0 on
/// one side and rounding on the other, by all of it.
const UPDATE_TOLERANCE: f64 = 2.1e-3;
/// The same for one factor in `f32`, and the roundings of a norm.
const CLIP_TOLERANCE: f64 = 1e-5;
/// Beyond several chunks, odd, and small beside a network.
const CAPTURED: WindowShape =
    WindowShape { num_rows: 6, num_elements: 40_009, num_parts: 23, num_owners: 4, isolated: true };

/// More than the kernels take.
const MANY_ROWS: WindowShape =
    WindowShape { num_rows: 70, num_elements: 9_001, num_parts: 7, num_owners: 3, isolated: true };

/// What a region leaves behind.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Gradient,
    Parameters,
}

impl Kind {
    fn region(self, run: &mut EngineRun) -> Result<(), crate::Error> {
        match self {
            Self::Gradient => run.combine(),
            Self::Parameters => run.update(),
        }
    }

    fn values(self, run: &EngineRun) -> Result<Vec<f32>, crate::Error> {
        match self {
            Self::Gradient => run.gradient(),
            Self::Parameters => run.parameters(),
        }
    }
}

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (name, method) in METHODS {
        for (what, kind) in [("gradient", Kind::Gradient), ("parameters", Kind::Parameters)] {
            report.check(format!("gradients.captured.{name}.{what}"), |_| captured(gpu, eager, method, kind));
        }
        report.check(format!("gradients.cpu.{name}"), |_| agrees_with_the_cpu(&gpu.device, method));
        report.check(format!("gradients.many_rows.{name}"), |_| many_rows(&gpu.device, method));
        report.check(format!("gradients.plain.{name}"), |_| nothing_to_resolve(&gpu.device, method));
        report.check(format!("gradients.not_finite.{name}"), |_| not_finite(&gpu.device, method));
        report.check(format!("gradients.clip.{name}"), |_| clipped(&gpu.device, method));
    }
}

/// The same windows eagerly and by one graph.
fn captured(gpu: &Gpu, eager: &mut Eager, method: ConflictResolution, kind: Kind) -> Result<String, Broken> {
    let mut draw = Draw::new(31, &Device::Cpu);
    let window = Window::new(CAPTURED, CAPTURED.even_layout(), 1, &gpu.device)?;
    let config = AggregationConfig { measure_conflicts: true, clip_norm: Some(1.0), ..aggregation(method) };
    let first = window.random_plan(&config, 0, &mut draw)?;
    let new_run = || EngineRun::new(&window, config, first.clone(), &gpu.device);
    let (mut direct, mut recorded) = (new_run()?, new_run()?);
    for run in [&mut direct, &mut recorded] {
        for _ in 0..2 {
            run.fill()?;
            gpu.session.warm(|| kind.region(run))?;
        }
    }
    recorded.fill()?;
    let graph = capture(&gpu.session, eager, "a window", || kind.region(&mut recorded))?;
    let mut last = kind.values(&direct)?;
    for step in 1..=WINDOWS {
        let plan = window.random_plan(&config, step, &mut draw)?;
        let rows = rows(&window, step, &gpu.device)?;
        for run in [&mut direct, &mut recorded] {
            run.set_rows(&rows);
            run.set_plan(plan.clone())?;
            run.advance()?;
        }
        direct.fill()?;
        gpu.session.warm(|| kind.region(&mut direct))?;
        recorded.refill()?;
        replay(&graph)?;
        let (expected, found) = (kind.values(&direct)?, kind.values(&recorded)?);
        let wrong = differing(&expected, &found);
        promise(wrong == 0, || format!("window {step}: {wrong} of {} elements differ", found.len()))?;
        let sums = (direct.sums()?, recorded.sums()?);
        let wrong = sums.0.iter().zip(&sums.1).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        promise(wrong == 0, || format!("window {step}: {wrong} of {} sums differ", sums.0.len()))?;
        let changed = differing(&last, &found);
        promise(changed * 2 > found.len(), || format!("window {step}: {changed} of {} changed", found.len()))?;
        last = found;
    }
    Ok(format!(
        "{WINDOWS} windows with shares, orders and rows of their own, all {} elements bit-identical",
        last.len()
    ))
}

/// Rows of the window of a step; every third step without conflicts between rows of one sign.
fn rows(window: &Window, step: u64, device: &Device) -> Result<Vec<Tensor>, Broken> {
    let of_step = Window::new(window.shape, (*window.layout).clone(), 100 + step, device)?;
    if !step.is_multiple_of(3) {
        return Ok(of_step.rows);
    }
    // Rows 0, 2, 4, … point the same way.
    let agreeing = (0..of_step.rows.len()).map(|row| of_step.rows[row / 2 * 2].clone());
    Ok(agreeing.collect())
}

/// A window of random sizes, with parts of any length and isolated ones.
fn random_shape(draw: &mut Draw) -> Result<(WindowShape, ParameterLayout), Broken> {
    let mut below = |bound: u32| usize::try_from(draw.below(bound)).expect("a small number");
    let num_owners = 2 + below(7);
    let num_rows = 2 + below(15);
    let num_parts = num_owners + below(60);
    let lengths: Vec<usize> = (0..num_parts).map(|part| if part % 7 == 5 { 5_000 } else { below(40) }).collect();
    // Odd, and the last part is never empty.
    let num_elements = (lengths.iter().sum::<usize>() + 3) | 1;
    let shape = WindowShape { num_rows, num_elements, num_parts, num_owners, isolated: below(2) == 1 };
    Ok((shape, shape.layout(|part| lengths[part])))
}

fn agrees_with_the_cpu(device: &Device, method: ConflictResolution) -> Result<String, Broken> {
    let mut draw = Draw::new(37, &Device::Cpu);
    let config = AggregationConfig { measure_conflicts: true, clip_norm: Some(1.0), ..aggregation(method) };
    let (mut worst, mut identical) = (0.0_f64, 0);
    for step in 0..SHAPES {
        let (shape, layout) = random_shape(&mut draw)?;
        let (difference, same) = compare(shape, layout, step, &config, device, &mut draw)?;
        worst = worst.max(difference);
        identical += usize::from(same);
    }
    Ok(format!("{SHAPES} windows of random sizes: within {worst:.3e} of the CPU, {identical} bit-identical"))
}

/// One window on the CPU and on `device`: the largest difference over the scale, and whether all bits are the same.
fn compare(
    shape: WindowShape,
    layout: ParameterLayout,
    step: u64,
    config: &AggregationConfig,
    device: &Device,
    draw: &mut Draw,
) -> Result<(f64, bool), Broken> {
    let on_cpu = Window::new(shape, layout.clone(), step, &Device::Cpu)?;
    let elsewhere = Window::new(shape, layout, step, device)?;
    let plan = on_cpu.random_plan(config, step, draw)?;
    let (mut found, mut updated, mut sums, mut scale) = (Vec::new(), Vec::new(), Vec::new(), 0.0_f64);
    for (window, device) in [(&on_cpu, &Device::Cpu), (&elsewhere, device)] {
        let mut run = EngineRun::new(window, *config, plan.clone(), device)?;
        run.fill()?;
        run.combine()?;
        scale = scale.max(run.host_rows()?.iter().map(|row| largest(row)).fold(0.0, f64::max));
        found.push(run.gradient()?);
        sums.push(run.sums()?);
        run.fill()?;
        run.update()?;
        updated.push(run.parameters()?);
    }
    let off = sums[0].iter().zip(&sums[1]).map(|(a, b)| (a - b).abs() / a.abs().max(1.0)).fold(0.0, worse);
    promise(off <= SUMS_TOLERANCE, || format!("window {step} of {shape:?}: sums differ by {off:.3e}"))?;
    let difference = largest_difference(&found[0], &found[1]) / scale.max(largest(&found[0]));
    promise(difference <= CPU_TOLERANCE, || format!("window {step} of {shape:?}: {difference:.3e} of its scale"))?;
    let moved = largest_difference(&updated[0], &updated[1]);
    promise(moved <= UPDATE_TOLERANCE, || format!("window {step} of {shape:?}: parameters differ by {moved:.3e}"))?;
    Ok((difference, differing(&found[0], &found[1]) == 0))
}

/// More rows than the kernels take.
fn many_rows(device: &Device, method: ConflictResolution) -> Result<String, Broken> {
    let config = AggregationConfig { clip_norm: Some(1.0), ..aggregation(method) };
    let shape = MANY_ROWS;
    let (difference, _) = compare(shape, shape.even_layout(), 1, &config, device, &mut Draw::new(41, &Device::Cpu))?;
    Ok(format!("{} rows: within {difference:.3e} of the CPU", shape.num_rows))
}

/// One row, and one owner: the bits of the mean.
fn nothing_to_resolve(device: &Device, method: ConflictResolution) -> Result<String, Broken> {
    let one_row = WindowShape { num_rows: 1, ..CAPTURED };
    let one_owner = WindowShape { num_owners: 1, isolated: false, ..CAPTURED };
    for (what, shape) in [("one row", one_row), ("one owner", one_owner)] {
        let window = Window::new(shape, shape.even_layout(), 3, device)?;
        let mut results = Vec::new();
        for method in [method, ConflictResolution::Mean] {
            let mut run = EngineRun::new(&window, aggregation(method), window.plan(&aggregation(method), 0)?, device)?;
            run.fill()?;
            run.combine()?;
            results.push(run.gradient()?);
        }
        let wrong = differing(&results[0], &results[1]);
        promise(wrong == 0, || format!("{what}: {wrong} of {} elements differ from the mean", results[0].len()))?;
    }
    Ok("one row and one owner: the bits of the mean".to_owned())
}

/// An element that is no number, or infinite, is neither hidden nor learned, nor does it hang the solver.
fn not_finite(device: &Device, method: ConflictResolution) -> Result<String, Broken> {
    for shape in [CAPTURED, MANY_ROWS] {
        not_finite_of(shape, device, method)?;
    }
    Ok("NaN and infinities in 3 places of 2 of 6 and of 70 rows stay visible, and no parameter moves there".to_owned())
}

fn not_finite_of(shape: WindowShape, device: &Device, method: ConflictResolution) -> Result<(), Broken> {
    let window = Window::new(shape, shape.even_layout(), 3, device)?;
    let places = [0, shape.num_elements / 2, shape.num_elements - 1];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for row in [0, shape.num_rows - 1] {
            for place in places {
                let mut rows = window.rows.clone();
                rows[row] = rows[row].copy()?;
                rows[row].slice_set(&Tensor::new(&[bad], device)?, 0, place)?;
                let plan = window.plan(&aggregation(method), 0)?;
                let mut run = EngineRun::new(&window, aggregation(method), plan, device)?;
                run.set_rows(&rows);
                run.fill()?;
                run.combine()?;
                let value = run.gradient()?[place];
                promise(!value.is_finite(), || format!("{bad} of row {row} became {value} at element {place}"))?;
                let before = run.parameters()?;
                run.fill()?;
                run.update()?;
                let after = run.parameters()?;
                let same = before[place].to_bits() == after[place].to_bits();
                promise(same && after.iter().all(|value| value.is_finite()), || {
                    format!("{bad} of row {row} at element {place}: {} became {}", before[place], after[place])
                })?;
            }
        }
    }
    Ok(())
}

/// A clipped gradient is the other one times a factor, down to the norm that was asked for; one below is left alone.
fn clipped(device: &Device, method: ConflictResolution) -> Result<String, Broken> {
    let shape = WindowShape { isolated: false, ..CAPTURED };
    let window = Window::new(shape, shape.even_layout(), 3, device)?;
    let plan = window.plan(&aggregation(method), 0)?;
    let combine = |clip_norm| -> Result<Vec<f32>, Broken> {
        let config = AggregationConfig { clip_norm, ..aggregation(method) };
        let mut run = EngineRun::new(&window, config, plan.clone(), device)?;
        run.fill()?;
        run.combine()?;
        Ok(run.gradient()?)
    };
    let free = combine(None)?;
    let norm = norm(&free);
    promise(norm > 0.0, || "the gradient is 0".to_owned())?;
    let below = differing(&free, &combine(Some(2.0 * norm))?);
    promise(below == 0, || format!("{below} elements changed below the limit"))?;
    let mut worst = 0.0_f64;
    for fraction in [0.5, 1e-3] {
        let found = combine(Some(fraction * norm))?;
        let expected = free.iter().map(|value| f64::from(*value) * fraction);
        let difference = found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).abs());
        let error = difference.fold(0.0, worse) / (largest(&free) * fraction);
        promise(error <= CLIP_TOLERANCE, || format!("clipping to {fraction} of the norm errs by {error:.3e}"))?;
        worst = worst.max(error);
    }
    Ok(format!("a norm of {norm:.4} clipped within {worst:.3e}, and left alone below the limit"))
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

fn largest(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(value.abs())).fold(0.0, worse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_shapes_are_odd_and_have_all_their_owners() {
        let mut draw = Draw::new(37, &Device::Cpu);
        for _ in 0..SHAPES {
            let (shape, layout) = random_shape(&mut draw).unwrap();
            assert!((2..=8).contains(&shape.num_owners) && (2..=16).contains(&shape.num_rows), "{shape:?}");
            assert!(layout.num_elements() % 2 == 1 && layout.num_elements() == shape.num_elements, "{shape:?}");
            assert!(layout.segments().last().unwrap().len > 0, "{shape:?}");
        }
    }

    #[test]
    fn the_engine_of_the_cpu_keeps_the_same_promises() {
        for (name, method) in METHODS {
            for (what, check) in [
                ("cpu", agrees_with_the_cpu as fn(&Device, ConflictResolution) -> Result<String, Broken>),
                ("many_rows", many_rows),
                ("plain", nothing_to_resolve),
                ("not_finite", not_finite),
                ("clip", clipped),
            ] {
                if let Err(Broken(text)) = check(&Device::Cpu, method) {
                    panic!("{name} {what}: {text}");
                }
            }
        }
    }
}
