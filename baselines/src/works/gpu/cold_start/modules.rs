//! The tensor library's modules of kernels, loaded on purpose and not on first use.

use std::time::Duration;

use candle_core::Device;
use leyline::clock::Clock;

use crate::error::Error;

/// Loads all modules for training, at once or one after the other, and gives the time of each in order. They are
/// unloaded again; what stays is the driver's cache of compiled kernels on disk, from which the tensor library's own
/// loads are served.
#[cfg(feature = "cuda")]
pub(super) fn load_all(
    device: &Device,
    at_once: bool,
    clock: &dyn Clock,
) -> Result<Vec<(&'static str, Duration)>, Error> {
    use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
    use candle_core::cuda_backend::kernels;

    let modules = [
        ("affine", kernels::AFFINE.ptx()),
        ("binary", kernels::BINARY.ptx()),
        ("cast", kernels::CAST.ptx()),
        ("conv", kernels::CONV.ptx()),
        ("fill", kernels::FILL.ptx()),
        ("indexing", kernels::INDEXING.ptx()),
        ("reduce", kernels::REDUCE.ptx()),
        ("sort", kernels::SORT.ptx()),
        ("ternary", kernels::TERNARY.ptx()),
        ("unary", kernels::UNARY.ptx()),
    ];
    let stream = device.as_cuda_device()?.cuda_stream();
    let context = stream.context();
    let load = |(name, source): (&'static str, &'static str)| {
        let started = clock.now();
        let module = context.load_module(Ptx::from_src(source)).map_err(candle_core::Error::wrap)?;
        Ok((name, clock.now() - started, module))
    };
    let loaded: Vec<Result<_, Error>> = if at_once {
        std::thread::scope(|scope| {
            let threads = modules.map(|module| scope.spawn(move || load(module)));
            threads.into_iter().map(|thread| thread.join().expect("loading does not panic")).collect()
        })
    } else {
        modules.into_iter().map(load).collect()
    };
    loaded.into_iter().map(|loaded| loaded.map(|(name, time, _)| (name, time))).collect()
}

/// Never reached: without the feature no device is a GPU.
#[cfg(not(feature = "cuda"))]
pub(super) fn load_all(
    device: &Device,
    _at_once: bool,
    _clock: &dyn Clock,
) -> Result<Vec<(&'static str, Duration)>, Error> {
    Err(Error::NeedsGpu { why: format!("{:?} has no modules", device.location()) })
}
