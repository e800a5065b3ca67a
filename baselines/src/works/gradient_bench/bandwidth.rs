//! Bytes per second that the device moves.

use candle_core::{DType, Tensor, Var};

use crate::error::Error;
use crate::gpu::open::{Gpu, refused};
use crate::gradient::floor::Bandwidth;
use crate::samples::Samples;

/// Elements of a buffer: 1 GiB, beyond any cache.
const LEN: usize = 1 << 28;
/// Elements of a row that is summed by itself; as many rows fill the device.
const COLUMNS: usize = 4096;
const WARM_UP: usize = 3;
const REPETITIONS: usize = 20;

/// Measures copies, sums and additions in place.
pub(super) fn measure(gpu: &Gpu, samples: &mut Samples) -> Result<Bandwidth, Error> {
    let from = Tensor::ones(LEN, DType::F32, &gpu.device)?;
    let to = Var::zeros(LEN, DType::F32, &gpu.device)?;
    let matrix = from.reshape((LEN / COLUMNS, COLUMNS))?;
    let copy = rate(gpu, "copy", 2, samples, || Ok(to.set(&from)?))?;
    let read = rate(gpu, "read", 1, samples, || {
        matrix.sum(1)?;
        Ok(())
    })?;
    // Two reads and a write, into memory of the result's own.
    let update = rate(gpu, "update", 3, samples, || {
        (&from + to.as_tensor())?;
        Ok(())
    })?;
    Ok(Bandwidth { read, copy, update })
}

/// The median in bytes per second; `passes` over a buffer count.
fn rate(
    gpu: &Gpu,
    name: &str,
    passes: usize,
    samples: &mut Samples,
    work: impl Fn() -> Result<(), Error>,
) -> Result<f64, Error> {
    let name = format!("bandwidth.{name}");
    let mut timer = gpu.session.timer().map_err(|refusal| refused("a timer", refusal))?;
    for index in 0..WARM_UP + REPETITIONS {
        gpu.session.time(&mut timer, &work)?;
        gpu.wait()?;
        if index >= WARM_UP
            && let Some(ms) = timer.last_ms()
        {
            samples.push(name.as_str(), "GB/s", (passes * size_of::<f32>() * LEN) as f64 / ms * 1e-6);
        }
    }
    Ok(samples.median(&name).unwrap_or(f64::NAN) * 1e9)
}
