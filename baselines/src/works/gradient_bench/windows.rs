//! Windows of many sizes through the engine, eagerly and captured.

use esper_graph::Captured;
use leyline::region::Eager;
use tolaria::aggregate::ConflictResolution;

use crate::error::Error;
use crate::gpu::open::{Gpu, capture, refused, replay};
use crate::gradient::engine::{EngineRun, METHODS, aggregation};
use crate::gradient::floor::{Bandwidth, Traffic};
use crate::gradient::windows::{Window, WindowShape};
use crate::samples::{Samples, us};

const NUM_ROWS: [usize; 4] = [2, 4, 8, 16];
const NUM_ELEMENTS: [usize; 3] = [1_000_000, 10_000_000, 100_000_000];
/// Rows and elements of the window that every method combines.
const METHODS_SHAPE: (usize, usize) = (8, 1_000_000);
const WARM_UP: usize = 5;
const REPETITIONS: usize = 100;

/// What a region leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gradient,
    Parameters,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Gradient, Self::Parameters];

    fn name(self) -> &'static str {
        match self {
            Self::Gradient => "gram_solve_combine",
            Self::Parameters => "fused_adamw",
        }
    }

    fn bytes(self, traffic: Traffic) -> usize {
        match self {
            Self::Gradient => traffic.combine_bytes(),
            Self::Parameters => traffic.fused_adam_w_bytes(),
        }
    }

    fn region(self, run: &mut EngineRun) -> Result<(), Error> {
        match self {
            Self::Gradient => run.combine(),
            Self::Parameters => run.update(),
        }
    }

    fn values(self, run: &EngineRun) -> Result<Vec<f32>, Error> {
        match self {
            Self::Gradient => run.gradient(),
            Self::Parameters => run.parameters(),
        }
    }
}

/// The sizes in words.
pub(super) fn grid_text() -> String {
    format!("K in {NUM_ROWS:?}, P in {NUM_ELEMENTS:?}")
}

/// Measures the grid; says what the device had no memory for.
pub(super) fn measure(
    gpu: &Gpu,
    eager: &mut Eager,
    bandwidth: Bandwidth,
    samples: &mut Samples,
) -> Result<Vec<String>, Error> {
    let mut skipped = Vec::new();
    for num_elements in NUM_ELEMENTS {
        for num_rows in NUM_ROWS {
            let shape = WindowShape::square(num_rows, num_elements);
            for kind in Kind::ALL {
                let name = format!("k{num_rows}.p{num_elements}.{}", kind.name());
                if let Err(error) =
                    case(gpu, eager, &name, shape, (kind, ConflictResolution::PcGrad), bandwidth, samples)
                {
                    if !is_out_of_memory(&error) {
                        return Err(error);
                    }
                    skipped.push(format!("{name}: {}", error.chain()));
                }
                gpu.wait()?;
            }
        }
    }
    let shape = WindowShape::square(METHODS_SHAPE.0, METHODS_SHAPE.1);
    for (method_name, method) in METHODS {
        let name = format!("method.{method_name}");
        case(gpu, eager, &name, shape, (Kind::Gradient, method), bandwidth, samples)?;
        gpu.wait()?;
    }
    Ok(skipped)
}

/// Whether the device had no room, in the words of the driver.
fn is_out_of_memory(error: &Error) -> bool {
    let text = error.chain();
    text.contains("OUT_OF_MEMORY") || text.contains("out of memory")
}

fn case(
    gpu: &Gpu,
    eager: &mut Eager,
    name: &str,
    shape: WindowShape,
    (kind, method): (Kind, ConflictResolution),
    bandwidth: Bandwidth,
    samples: &mut Samples,
) -> Result<(), Error> {
    let WindowShape { num_rows, num_elements, .. } = shape;
    let window = Window::new(shape, shape.even_layout(), 11, &gpu.device)?;
    let new_run = || EngineRun::new(&window, aggregation(method), window.plan(&aggregation(method), 0)?, &gpu.device);
    let mut direct = new_run()?;
    let (recorded, graph) = record(gpu, eager, name, kind, new_run()?)?;
    // As many turns of both: two ran as a warm-up of the recording.
    for _ in 0..2 {
        direct.fill()?;
        gpu.session.warm(|| kind.region(&mut direct))?;
    }
    direct.fill()?;
    gpu.session.warm(|| kind.region(&mut direct))?;
    recorded.refill()?;
    replay(&graph)?;
    let (expected, found) = (kind.values(&direct)?, kind.values(&recorded)?);
    let differing = expected.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let moved = found.iter().filter(|value| value.abs() > 0.0).count();
    if differing > 0 || expected.len() != num_elements || found.len() != num_elements || moved * 2 < found.len() {
        let what = format!("{name}: elements that differ between eager and captured ({moved} are not 0)");
        return Err(Error::WrongResult { what, expected: 0.0, found: differing as f64 });
    }
    drop((expected, found));

    let mut timer = gpu.session.timer().map_err(|refusal| refused("a timer", refusal))?;
    for index in 0..WARM_UP + REPETITIONS {
        direct.fill()?;
        gpu.wait()?;
        let began = gpu.now();
        gpu.session.warm(|| kind.region(&mut direct))?;
        gpu.wait()?;
        let direct_time = gpu.now() - began;

        recorded.refill()?;
        gpu.wait()?;
        let began = gpu.now();
        replay(&graph)?;
        gpu.wait()?;
        let replay_time = gpu.now() - began;

        recorded.refill()?;
        gpu.session.time(&mut timer, || replay(&graph))?;
        gpu.wait()?;
        if index >= WARM_UP {
            samples.push(format!("{name}.eager"), "us", us(direct_time));
            samples.push(format!("{name}.captured"), "us", us(replay_time));
            if let Some(ms) = timer.last_ms() {
                samples.push(format!("{name}.device"), "us", ms * 1e3);
            }
        }
    }
    let floor_us = bandwidth.floor_us(kind.bytes(Traffic { num_rows, num_elements }));
    let device_us = samples.median(&format!("{name}.device")).unwrap_or(f64::NAN);
    samples.push(format!("{name}.floor"), "us", floor_us);
    samples.push(format!("{name}.over_floor"), "ratio", device_us / floor_us);
    Ok(())
}

/// A run after two eager turns, with the graph of the next one.
fn record(
    gpu: &Gpu,
    eager: &mut Eager,
    name: &str,
    kind: Kind,
    mut run: EngineRun,
) -> Result<(EngineRun, Captured), Error> {
    for _ in 0..2 {
        run.fill()?;
        gpu.session.warm(|| kind.region(&mut run))?;
    }
    run.fill()?;
    let graph = capture(&gpu.session, eager, name, || kind.region(&mut run))?;
    Ok((run, graph))
}
