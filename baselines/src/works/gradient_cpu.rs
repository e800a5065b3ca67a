//! The engine on the CPU against projections vector by vector, and against the memory of the machine.

use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use leyline::clock::Clock;
use tolaria::aggregate::ConflictResolution;

use crate::error::Error;
use crate::gradient::difference::largest_difference;
use crate::gradient::engine::{EngineRun, aggregation};
use crate::gradient::floor::{Bandwidth, Traffic};
use crate::gradient::sequential::{self, Against, Sums};
use crate::gradient::windows::{Window, WindowShape};
use crate::samples::{Samples, us};
use crate::work::{Needs, Outcome, Setting, Work, settings};

pub(super) const WORK: Work = Work::new(
    "gradient-cpu",
    "Combinations of gradients on the CPU: the engine, projections vector by vector, and the memory's bandwidth",
    Needs::Nothing,
    run,
);

const CASES: [(usize, usize); 3] = [(2, 1_000_000), (8, 1_000_000), (8, 10_000_000)];
/// Of one quantity, with the limits of its repetitions.
const QUANTITY: Duration = Duration::from_secs(3);
const MIN_REPETITIONS: usize = 7;
const MAX_REPETITIONS: usize = 100;
const WARM_UP: usize = 2;
/// Elements that are written between filling and timing: 256 MiB, so that the rows are in no cache, as the floor has it.
const EVICTION_LEN: usize = 1 << 26;
/// Largest difference of an element to the sequential form: about K² roundings to `f32` of numbers near 1.
const TOLERANCE: f64 = 1e-5;
/// The same where products are summed in `f32`: 10⁷ of them in 16 lanes err by 1e-3 of the sum at worst.
const TOLERANCE_SINGLE: f64 = 1e-3;
const WAYS: [(&str, Against, Sums); 4] = [
    ("original", Against::Original, Sums::Double),
    ("original_f32", Against::Original, Sums::Single),
    ("adjusted", Against::Adjusted, Sums::Double),
    ("adjusted_f32", Against::Adjusted, Sums::Single),
];
const NOTES: &str = "kK.pP.engine: K gradients of P elements, each of an owner of its own, to one, Gram matrix to result \
    in memory (us); .engine.adam_w: to new parameters; the rows start in memory and not in a cache. .sequential.original: projections onto the gradients as they came, \
    as in the paper, products summed in f64 or (_f32) f32; .adjusted: onto those projected before. .floor: bytes that \
    must move at the fastest bandwidth of this run. .over_floor: engine over floor; .over_engine: sequential over engine, \
    medians. .difference: largest of an element, engine to the sequential form and (.adjusted) adjusted to original; \
    taken, and the former checked, before any time";

/// Fails when the engine and the sequential form differ.
fn run(setting: &Setting) -> Result<Outcome, Error> {
    let clock = &setting.clock;
    let num_threads = candle_core::utils::get_num_threads();
    let bandwidth = Bandwidth::of_memory(num_threads, clock.as_ref());
    let mut found = Found::new(clock, EVICTION_LEN);
    for (name, rate) in [("read", bandwidth.read), ("copy", bandwidth.copy), ("update", bandwidth.update)] {
        found.samples.push(format!("bandwidth.{name}"), "GB/s", rate / 1e9);
    }
    for (num_rows, num_elements) in CASES {
        case(WindowShape::square(num_rows, num_elements), bandwidth, &mut found)?;
    }
    let config = settings([("threads", num_threads.to_string()), ("method", "pcgrad".to_owned())]);
    Ok(found.samples.into_result(WORK.name, WORK.name, NOTES, config, clock.as_ref()).into())
}

fn case(shape: WindowShape, bandwidth: Bandwidth, found: &mut Found) -> Result<(), Error> {
    let WindowShape { num_rows, num_elements, .. } = shape;
    let prefix = format!("k{num_rows}.p{num_elements}");
    let window = Window::new(shape, shape.even_layout(), 11, &Device::Cpu)?;
    let plan = window.plan(&aggregation(ConflictResolution::PcGrad), 0)?;
    let orders = window.orders(&plan)?;
    let mut run = EngineRun::new(&window, aggregation(ConflictResolution::PcGrad), plan, &Device::Cpu)?;
    let rows = run.host_rows()?;
    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    compare(&prefix, &mut run, &rows, &orders, found)?;

    let combine = found.repeat(&mut run, EngineRun::combine)?;
    let combine = found.samples.extend(format!("{prefix}.engine"), "us", combine);
    let fused = found.repeat(&mut run, EngineRun::update)?;
    let fused = found.samples.extend(format!("{prefix}.engine.adam_w"), "us", fused);
    let traffic = Traffic { num_rows, num_elements };
    for (what, median, bytes) in
        [("engine", combine, traffic.combine_bytes()), ("engine.adam_w", fused, traffic.fused_adam_w_bytes())]
    {
        let floor_us = bandwidth.floor_us(bytes);
        found.samples.push(format!("{prefix}.{what}.floor"), "us", floor_us);
        found.samples.push(format!("{prefix}.{what}.over_floor"), "ratio", median / floor_us);
    }
    for (name, against, sums) in WAYS {
        let times = found.repeat(&mut run, |_| {
            std::hint::black_box(sequential::combine(&rows, &orders, against, sums));
            Ok(())
        })?;
        let median = found.samples.extend(format!("{prefix}.sequential.{name}"), "us", times);
        found.samples.push(format!("{prefix}.sequential.{name}.over_engine"), "ratio", median / combine);
    }
    Ok(())
}

/// Every form once; the engine has to agree with the paper's.
fn compare(
    prefix: &str,
    run: &mut EngineRun,
    rows: &[&[f32]],
    orders: &[Vec<usize>],
    found: &mut Found,
) -> Result<(), Error> {
    run.fill()?;
    run.combine()?;
    let engine = run.gradient()?;
    // The engine's owners have a K-th of the samples each.
    let mean = |against, sums| -> Vec<f32> {
        let sum = sequential::combine(rows, orders, against, sums);
        sum.into_iter().map(|value| value / rows.len() as f32).collect()
    };
    let original = mean(Against::Original, Sums::Double);
    for (name, sums, bound) in [("f64", Sums::Double, TOLERANCE), ("f32", Sums::Single, TOLERANCE_SINGLE)] {
        let difference = largest_difference(&engine, &mean(Against::Original, sums));
        let holds = difference <= bound;
        if !holds {
            let what = format!("{prefix}: the largest difference of engine and sequential form ({name}, at most)");
            return Err(Error::WrongResult { what, expected: bound, found: difference });
        }
        found.samples.push(format!("{prefix}.difference.{name}"), "absolute", difference);
    }
    let adjusted = largest_difference(&original, &mean(Against::Adjusted, Sums::Double));
    found.samples.push(format!("{prefix}.difference.adjusted"), "absolute", adjusted);
    Ok(())
}

/// What was measured so far.
struct Found {
    clock: Arc<dyn Clock>,
    samples: Samples,
    eviction: Vec<f32>,
}

impl Found {
    fn new(clock: &Arc<dyn Clock>, eviction_len: usize) -> Self {
        Self { clock: Arc::clone(clock), samples: Samples::default(), eviction: vec![1.0; eviction_len] }
    }

    /// Times of `work` on rows that were filled anew and left the caches, which is not timed, µs.
    fn repeat(
        &mut self,
        run: &mut EngineRun,
        mut work: impl FnMut(&mut EngineRun) -> Result<(), Error>,
    ) -> Result<Vec<f64>, Error> {
        let mut times = Vec::new();
        let (mut turns, mut spent) = (0, Duration::ZERO);
        while times.len() < MIN_REPETITIONS || (spent < QUANTITY && times.len() < MAX_REPETITIONS) {
            run.fill()?;
            self.eviction.iter_mut().for_each(|value| *value += 1.0);
            std::hint::black_box(&mut self.eviction);
            let started = self.clock.now();
            work(run)?;
            let took = self.clock.now() - started;
            turns += 1;
            if turns > WARM_UP {
                spent += took;
                times.push(us(took));
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use leyline::clock::SystemClock;

    use super::*;

    #[test]
    fn the_engine_agrees_with_the_sequential_form_and_every_quantity_is_there() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut found = Found::new(&clock, 100);
        let shape = WindowShape { num_parts: 5, ..WindowShape::square(4, 3_001) };
        let window = Window::new(shape, shape.even_layout(), 11, &Device::Cpu).unwrap();
        let plan = window.plan(&aggregation(ConflictResolution::PcGrad), 0).unwrap();
        let orders = window.orders(&plan).unwrap();
        let mut run = EngineRun::new(&window, aggregation(ConflictResolution::PcGrad), plan, &Device::Cpu).unwrap();
        let rows = run.host_rows().unwrap();
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        compare("a", &mut run, &rows, &orders, &mut found).unwrap();
        let measured = std::mem::take(&mut found.samples).into_measurements();
        let names: Vec<&str> = measured.keys().map(String::as_str).collect();
        assert_eq!(names, ["a.difference.adjusted", "a.difference.f32", "a.difference.f64"]);
        assert!(measured["a.difference.adjusted"].median > 1e-3, "the two variants are one and the same");
        let wrong: Vec<Vec<usize>> = orders.iter().map(|_| Vec::new()).collect();
        assert!(compare("a", &mut run, &rows, &wrong, &mut found).is_err(), "a sum without projections passed");
    }
}
