//! Copies to the device beside computation: a ring of pinned buffers in both lanes, with a graph that takes about as
//! long as the copy.

mod payload;

use std::num::NonZeroUsize;

use candle_core::{DType, Tensor, Var};
use esper_graph::{Captured, HostSlice, StagingLane, StagingRing};
use leyline::region::Eager;
use tolaria::host_read::{HostReads, read_scalar};

use crate::error::Error;
use crate::gpu::fit::least_squares;
use crate::gpu::open::{Gpu, replay};
use crate::models::Draw;
use crate::samples::{Samples, ms};
use crate::work::{Settings, Work, settings};
use payload::Payloads;

pub(super) const WORK: Work = Work::on_gpu("staging", "Copies to the device beside computation", NOTES, run);

const MEBIBYTES: [usize; 3] = [1, 4, 16];
/// Steps of a loop, which ends with the only wait for the device.
const STEPS: usize = 100;
/// Loops of each kind.
const REPETITIONS: usize = 9;
const NUM_SLOTS: usize = 2;
/// Rows into which a payload is split for its sum: one sum per row fills the device, one of all would not.
const ROWS: usize = 1024;
/// Rows and columns of the products that make the graph take its time.
const WIDTH: usize = 512;
/// Products of the two graphs from which the time of one product follows.
const TRIAL: [usize; 2] = [4, 36];
const MAX_PRODUCTS: usize = 2000;
const LANES: [(&str, StagingLane); 2] = [("compute", StagingLane::Compute), ("own", StagingLane::Own)];

const NOTES: &str = "mib_N.copy.LANE: staging alone, per step of a pipelined loop; replay: the graph alone; together.LANE: \
    both, in the stream of the computation or with copies in a stream of their own; over_sum: together over \
    copy and replay one after the other; own_over_compute: of the two lanes together. h2d_copy_ms.LANE: the \
    copy by events of the ring while replays run; stage_host: one staging on an idle device, mostly the \
    host's copy into pinned memory, which no lane can hide from a loop that is bound by it. Every payload \
    differs, and the device's checksum of all of them was compared with the host's";

fn run(gpu: &Gpu, eager: &mut Eager, samples: &mut Samples) -> Result<Settings, Error> {
    for mebibytes in MEBIBYTES {
        measure(gpu, mebibytes, eager, samples)?;
    }
    Ok(settings([
        ("steps_per_loop", STEPS.to_string()),
        ("slots", NUM_SLOTS.to_string()),
        ("graph", format!("sum of the payload, then products of f32 matrices of {WIDTH} rows and columns")),
    ]))
}

fn measure(gpu: &Gpu, mebibytes: usize, eager: &mut Eager, samples: &mut Samples) -> Result<(), Error> {
    let prefix = format!("mib_{mebibytes:02}");
    let work = Consumer::new(gpu, (mebibytes << 20) / size_of::<f32>())?;
    let mut rings = Vec::new();
    for (name, lane) in LANES {
        let slots = NonZeroUsize::new(NUM_SLOTS).expect("a literal above 0");
        rings.push((name, StagingRing::new(&gpu.session, slots, lane)?));
    }
    host_times(gpu, &work, &mut rings[0].1, &prefix, samples)?;
    // The first loop grows the buffers of the ring.
    let mut copy_ms = 0.0;
    for _ in 0..2 {
        copy_ms = work.loop_ms(gpu, |step| work.stage(&mut rings[0].1, step))?;
    }
    let products = calibrate(gpu, &work, copy_ms, eager)?;
    samples.push(format!("{prefix}.products"), "products", products as f64);
    let graph = work.graph(gpu, products, eager)?;
    for _ in 0..REPETITIONS {
        let replay_ms = work.loop_ms(gpu, |_| replay(&graph))?;
        samples.push(format!("{prefix}.replay"), "ms", replay_ms);
        let mut together_ms = Vec::new();
        for (lane, ring) in &mut rings {
            let copy_ms = work.loop_ms(gpu, |step| work.stage(ring, step))?;
            samples.push(format!("{prefix}.copy.{lane}"), "ms", copy_ms);
            work.reset()?;
            let both_ms = work.loop_ms(gpu, |step| {
                work.stage(ring, step)?;
                replay(&graph)
            })?;
            work.check(&format!("{mebibytes} MiB staged in the lane `{lane}`"))?;
            samples.push(format!("{prefix}.together.{lane}"), "ms", both_ms);
            samples.push(format!("{prefix}.over_sum.{lane}"), "ratio", both_ms / (copy_ms + replay_ms));
            if let Some(h2d_ms) = ring.copy_ms() {
                samples.push(format!("{prefix}.h2d_copy_ms.{lane}"), "ms", h2d_ms);
            }
            together_ms.push(both_ms);
        }
        samples.push(format!("{prefix}.own_over_compute"), "ratio", together_ms[1] / together_ms[0]);
    }
    Ok(())
}

/// Staging on an idle device, as the host sees it.
fn host_times(
    gpu: &Gpu,
    work: &Consumer,
    ring: &mut StagingRing,
    prefix: &str,
    samples: &mut Samples,
) -> Result<(), Error> {
    for step in 0..STEPS {
        gpu.wait()?;
        let started = gpu.now();
        work.stage(ring, step)?;
        // The first turns of the ring make its buffers.
        if step >= 2 * NUM_SLOTS {
            samples.push(format!("{prefix}.stage_host"), "ms", ms(gpu.now() - started));
        }
    }
    Ok(())
}

/// Products with which a replay takes about `target_ms`.
fn calibrate(gpu: &Gpu, work: &Consumer, target_ms: f64, eager: &mut Eager) -> Result<usize, Error> {
    let mut times = Vec::new();
    for products in TRIAL {
        let graph = work.graph(gpu, products, eager)?;
        let mut replay_ms = 0.0;
        // Once more for a warm device.
        for _ in 0..2 {
            replay_ms = work.loop_ms(gpu, |_| replay(&graph))?;
        }
        times.push((products as f64, replay_ms));
    }
    Ok(products_for(target_ms, &times))
}

/// Where the line through `times` reaches the target, at least 1.
fn products_for(target_ms: f64, times: &[(f64, f64)]) -> usize {
    let place = least_squares(times).filter(|line| line.slope > 0.0).map(|line| line.place_of(target_ms));
    let place = place.filter(|place| place.is_finite()).unwrap_or(1.0).round().clamp(1.0, MAX_PRODUCTS as f64);
    (1..=MAX_PRODUCTS).find(|products| *products as f64 >= place).unwrap_or(MAX_PRODUCTS)
}

/// Takes the payload of each step in, and then computes something.
struct Consumer {
    payloads: Payloads,
    /// Where payloads arrive.
    arrived: Tensor,
    checksum: Var,
    /// Counts from 1.
    step: Var,
    start: Tensor,
    factor: Tensor,
    product: Var,
}

impl Consumer {
    fn new(gpu: &Gpu, len: usize) -> Result<Self, Error> {
        let device = &gpu.device;
        let mut draw = Draw::new(1, device);
        // Keeps the size of products: a uniform number within b has variance b²/3.
        let bound = (3.0 / WIDTH as f32).sqrt();
        Ok(Self {
            payloads: Payloads::new(len, STEPS),
            arrived: Tensor::zeros(len, DType::F32, device)?,
            checksum: Var::zeros((), DType::F64, device)?,
            step: Var::ones((), DType::F64, device)?,
            start: draw.uniform((WIDTH, WIDTH), 1.0)?,
            factor: draw.uniform((WIDTH, WIDTH), bound)?,
            product: Var::zeros((WIDTH, WIDTH), DType::F32, device)?,
        })
    }

    fn stage(&self, ring: &mut StagingRing, step: usize) -> Result<(), Error> {
        Ok(ring.stage(&[(HostSlice::F32(self.payloads.of(step)), &self.arrived)])?)
    }

    fn graph(&self, gpu: &Gpu, products: usize, eager: &mut Eager) -> Result<Captured, Error> {
        let mut graph = gpu.warm_and_capture(eager, &format!("{products} products"), || self.consume(products))?;
        let buffers = [
            ("arrived", &self.arrived),
            ("checksum", self.checksum.as_tensor()),
            ("step", self.step.as_tensor()),
            ("start", &self.start),
            ("factor", &self.factor),
            ("product", self.product.as_tensor()),
        ];
        for (name, tensor) in buffers {
            graph.hold(name, tensor)?;
        }
        Ok(graph)
    }

    /// The region.
    fn consume(&self, products: usize) -> Result<(), Error> {
        let columns = self.arrived.elem_count() / ROWS;
        let sum = self.arrived.reshape((ROWS, columns))?.sum(1)?.sum(0)?.to_dtype(DType::F64)?;
        let step = self.step.as_detached_tensor();
        self.checksum.set(&(self.checksum.as_detached_tensor() + (sum * &step)?)?)?;
        self.step.set(&(step + 1.0)?)?;
        let mut product = self.start.clone();
        for _ in 0..products {
            product = product.matmul(&self.factor)?;
        }
        Ok(self.product.set(&product)?)
    }

    fn reset(&self) -> candle_core::Result<()> {
        self.checksum.set(&self.checksum.zeros_like()?)?;
        self.step.set(&self.step.ones_like()?)
    }

    fn check(&self, what: &str) -> Result<(), Error> {
        let expected = self.payloads.checksum();
        let found = read_scalar(self.checksum.as_tensor(), "bench_checksum", &mut HostReads::default())?;
        // Whole numbers.
        if (found - expected).abs() < 0.5 {
            return Ok(());
        }
        Err(Error::WrongResult { what: format!("the checksum of {what}"), expected, found })
    }

    /// Time per step of a loop that waits for the device at its end only, ms.
    fn loop_ms(&self, gpu: &Gpu, mut body: impl FnMut(usize) -> Result<(), Error>) -> Result<f64, Error> {
        gpu.wait()?;
        let started = gpu.now();
        (0..self.payloads.num_steps()).try_for_each(&mut body)?;
        gpu.wait()?;
        Ok(ms(gpu.now() - started) / self.payloads.num_steps() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_made_as_long_as_the_copy() {
        // 0.1 ms for the rest, 0.02 ms per product.
        let times = TRIAL.map(|products| (products as f64, 0.1 + 0.02 * products as f64));
        for (target_ms, expected) in [(2.1, 100), (0.05, 1), (1e6, MAX_PRODUCTS)] {
            assert_eq!(products_for(target_ms, &times), expected, "{target_ms}");
        }
    }

    #[test]
    fn times_that_make_no_sense_give_one_product() {
        assert_eq!(products_for(1.0, &[(4.0, 0.5), (36.0, 0.4)]), 1);
        assert_eq!(products_for(f64::NAN, &[(4.0, 0.1), (36.0, 0.9)]), 1);
    }
}
