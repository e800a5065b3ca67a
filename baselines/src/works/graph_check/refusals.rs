//! Every refusal, provoked: the step goes on eagerly, the reason is right, and the parameters are those of a run that
//! never recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use esper_graph::{Captured, Refusal, Session};
use leyline::region::Eager;
use tolaria::host_read::{HostReads, read_scalar, read_vec};
use tolaria::optim::OptimizerConfig;
use tolaria::trainer::{NullObserver, StepMode};

use super::plain::{Middle, trainer, values};
use crate::gpu::growing::{differing, in_mode};
use crate::gpu::open::Gpu;
use crate::gpu::report::{Broken, Report, promise};

const SGD: OptimizerConfig = OptimizerConfig::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
const EPOCHS: u64 = 3;
/// Warm-up takes two passes, so the third is the first recording.
const RECORDING: usize = 2;

/// A mistake in the middle layer: given how many passes there were before this one.
type Mistake = Box<dyn Fn(usize, &Tensor) -> candle_core::Result<Tensor> + Send + Sync>;

pub(super) fn run(gpu: &Gpu, eager: &mut Eager, report: &mut Report) {
    for (name, keeps_bits, mistake) in mistakes(gpu) {
        report.check(format!("refusal.{name}"), |_| in_training(gpu, eager, name, keeps_bits, mistake));
    }
    report.check("refusal.kept_activation", |_| in_training(gpu, eager, "released_inside", true, keeping_the_last()));
    report.check("refusal.empty", |_| {
        let refused = gpu.session.capture::<String>(eager, |_| Ok(()));
        expect(refused, "empty")
    });
    report.check("refusal.unsupported", |_| {
        let shared = Device::new_cuda(gpu.ordinal)?;
        let refused = Session::open(&shared).map(drop);
        expect(refused, "unsupported")
    });
    report.check("refusal.released_inside", |_| released(gpu, eager));
    report.check("refusal.moved", |_| moved(gpu, eager));
    report.check("refusal.not_held", |_| not_held(gpu, eager));
    report.check("refusal.host_copies", |_| host_copies(gpu, eager));
    report.check("refusal.driver", |_| driver(gpu, eager));
    report.check("refusal.other_thread", |_| other_thread(gpu, eager));
    report.check("refusal.usable_afterwards", |_| usable_afterwards(gpu, eager));
}

/// Keeps the activation of its last pass, as models do that log it: the recording frees one from before and lets one
/// of its own escape, which the next eager pass drops.
fn keeping_the_last() -> Mistake {
    let last: Mutex<Option<Tensor>> = Mutex::new(None);
    Box::new(move |_, h| {
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some((h * 2.0)?);
        Ok(h.clone())
    })
}

/// Mistakes by the name of the refusal that they lead to, with whether they leave the values alone.
fn mistakes(gpu: &Gpu) -> Vec<(&'static str, bool, Mistake)> {
    let device = gpu.device.clone();
    let kept: Mutex<Vec<Tensor>> = Mutex::new(Vec::new());
    let (uploads, random) = (device.clone(), device.clone());
    let failed = |text: &str| candle_core::Error::Msg(text.to_owned());
    vec![
        (
            "host_read",
            true,
            Box::new(|_, h| {
                #[expect(clippy::disallowed_methods, reason = "the planted mistake")]
                h.sum_all()?.to_scalar::<f32>()?;
                Ok(h.clone())
            }),
        ),
        (
            "changing_value",
            true,
            Box::new(move |pass, h| {
                // Added and taken away again, so that the step computes what it would without.
                let number = Tensor::new(&[pass as f32], &uploads)?;
                h.broadcast_add(&number.sub(&number)?)
            }),
        ),
        (
            "unfreed_allocations",
            true,
            Box::new(move |pass, h| {
                if pass == RECORDING {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push((h * 2.0)?);
                }
                Ok(h.clone())
            }),
        ),
        (
            "host_random",
            false,
            Box::new(move |_, h| {
                #[expect(clippy::disallowed_methods, reason = "the planted mistake")]
                let noise = Tensor::rand(0.0_f32, 1e-3, h.shape(), &random)?;
                h + noise
            }),
        ),
        ("missing_gradient", true, Box::new(|pass, h| if pass == RECORDING { Ok(h.detach()) } else { Ok(h.clone()) })),
        (
            "region_failed",
            true,
            Box::new(move |pass, h| if pass == RECORDING { Err(failed("planted")) } else { Ok(h.clone()) }),
        ),
        (
            "panicked",
            true,
            Box::new(|pass, h| {
                assert_ne!(pass, RECORDING, "planted");
                Ok(h.clone())
            }),
        ),
        (
            "out_of_memory",
            true,
            Box::new(move |pass, h| {
                if pass == RECORDING {
                    // Either one might fit, both do not.
                    let halves = [0, 1].map(|_| Tensor::zeros((70, 1 << 28), DType::F32, &device));
                    halves.into_iter().try_for_each(|half| half.map(drop))?;
                }
                Ok(h.clone())
            }),
        ),
    ]
}

fn in_training(gpu: &Gpu, eager: &mut Eager, name: &str, keeps_bits: bool, mistake: Mistake) -> Result<String, Broken> {
    let passes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&passes);
    let middle: Middle = Box::new(move |h| mistake(counted.fetch_add(1, Ordering::Relaxed), h));
    let mut broken = trainer(gpu, middle, SGD, 1, EPOCHS, in_mode(StepMode::Graph))?;
    broken.run(eager, &mut NullObserver)?;
    let identity: Middle = Box::new(|h| Ok(h.clone()));
    let execution = in_mode(StepMode::Eager);
    let mut sound = trainer(gpu, identity, SGD, 1, EPOCHS, execution)?;
    sound.run(eager, &mut NullObserver)?;

    let refusal = broken.last_refusal().ok_or_else(|| Broken("nothing was refused".to_owned()))?;
    promise(refusal.name() == name, || format!("refused as {}: {refusal}", refusal.name()))?;
    promise(broken.progress() == sound.progress(), || "training stopped".to_owned())?;
    let stats = broken.graph_stats().total;
    promise(stats.fallbacks > 0, || format!("{stats:?}"))?;
    if keeps_bits {
        let wrong = differing(&values(&broken)?, &values(&sound)?);
        promise(wrong == 0, || format!("{wrong} parameters differ from a run that never recorded"))?;
    }
    let same = if keeps_bits { ", parameters as without recording" } else { "" };
    Ok(format!("at {}: {refusal}; {} steps went on{same}", refusal.stage(), broken.progress().1.0))
}

/// Confirms the name of a refusal.
fn expect<T>(outcome: Result<T, Refusal>, name: &str) -> Result<String, Broken> {
    match outcome {
        Err(refusal) if refusal.name() == name => Ok(format!("at {}: {refusal}", refusal.stage())),
        Err(refusal) => Err(Broken(format!("refused as {}: {refusal}", refusal.name()))),
        Ok(_) => Err(Broken("nothing was refused".to_owned())),
    }
}

/// A graph that doubles `input` into `output` and holds neither.
fn doubling(gpu: &Gpu, eager: &mut Eager, input: &Tensor, output: &Tensor) -> Result<Captured, Broken> {
    let region = || output.slice_set(&(input * 2.0)?, 0, 0);
    gpu.session.warm(region)?;
    let captured = gpu.session.capture(eager, |_| region());
    captured.map_err(|refusal| Broken(refusal.to_string()))
}

/// A tensor from before the region is replaced in it: freeing it there is an error that only a later call reports. The one in
/// its place was never computed, and says so.
fn released(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let make = || Tensor::ones(64, DType::F32, &gpu.device);
    let (input, output, mut outer) = (make()?, make()?, Some(make()?));
    let region = || output.slice_set(&(&input * 2.0)?, 0, 0);
    gpu.session.warm(region)?;
    gpu.session.warm(region)?;
    let refused = gpu.session.capture(eager, |_| {
        region()?;
        outer = Some((&input * 3.0)?);
        Ok::<_, candle_core::Error>(())
    });
    let text = expect(refused, "released_inside")?;
    let kept = outer.ok_or_else(|| Broken("nothing was kept".to_owned()))?;
    let found = read_vec(&kept, "what was kept", &mut HostReads::default())?;
    promise(found.iter().all(|number| number.is_nan()), || format!("{found:?} was kept"))?;
    Ok(text)
}

fn moved(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let make = || Tensor::ones(64, DType::F32, &gpu.device);
    let (input, output) = (make()?, make()?);
    let mut captured = doubling(gpu, eager, &input, &output)?;
    captured.hold("input", &input)?;
    captured.confirm("input", &input).map_err(|refusal| Broken(refusal.to_string()))?;
    expect(captured.confirm("input", &make()?), "moved")
}

/// What a graph does not hold may be gone: it is replayed once it holds all that it points at, and then owns it.
fn not_held(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let make = |value: f32| Tensor::full(value, 1 << 20, &gpu.device);
    let (input, output) = (make(1.0)?, make(0.0)?);
    let mut captured = doubling(gpu, eager, &input, &output)?;
    let nothing = expect(captured.replay(), "not_held")?;
    captured.hold("input", &input)?;
    expect(captured.replay(), "not_held")?;
    captured.hold("output", &output)?;
    captured.replay().map_err(|refusal| Broken(refusal.to_string()))?;
    let result = output.clone();
    drop((input, output));
    // Memory of the same size, which the tensors would have left behind.
    let others: Vec<Tensor> = (0..8).map(|_| make(7.0)).collect::<Result<_, _>>()?;
    captured.replay().map_err(|refusal| Broken(refusal.to_string()))?;
    let mut reads = HostReads::default();
    for (tensor, expected) in others.iter().chain([&result]).zip([7.0; 8].into_iter().chain([2.0])) {
        let mean = read_scalar(&tensor.mean_all()?, "check", &mut reads)?;
        promise((mean - expected).abs() < 1e-6, || format!("{mean} where {expected} was expected"))?;
    }
    Ok(format!("{nothing}; held tensors outlive those who made them"))
}

/// An upload that goes past candle's own checks, straight to the stream.
#[cfg(feature = "cuda")]
fn host_copies(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let stream = gpu.device.as_cuda_device()?.cuda_stream();
    let refused = gpu.session.capture(eager, |_| stream.clone_htod(&[1.0_f32; 16]).map(drop));
    expect(refused, "host_copies")
}

/// The stream is recording already, by other means.
#[cfg(feature = "cuda")]
fn driver(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    use candle_core::cuda_backend::cudarc::driver::sys::CUgraphInstantiate_flags;
    use candle_core::cuda_backend::cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

    let foreign = |error: candle_core::cuda_backend::cudarc::driver::DriverError| Broken(error.to_string());
    let stream = gpu.device.as_cuda_device()?.cuda_stream();
    stream.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(foreign)?;
    let refused = gpu.session.capture::<String>(eager, |_| Ok(()));
    drop(stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
    expect(refused, "driver")
}

#[cfg(not(feature = "cuda"))]
fn driver(_gpu: &Gpu, _eager: &mut Eager) -> Result<String, Broken> {
    Err(Broken("this build has no GPU support".to_owned()))
}

/// A graph belongs to the thread that recorded it.
fn other_thread(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let make = || Tensor::ones(64, DType::F32, &gpu.device);
    let captured = doubling(gpu, eager, &make()?, &make()?)?;
    let refused = std::thread::spawn(move || captured.replay()).join();
    expect(refused.map_err(|_| Broken("the other thread panicked".to_owned()))?, "other_thread")
}

#[cfg(not(feature = "cuda"))]
fn host_copies(_gpu: &Gpu, _eager: &mut Eager) -> Result<String, Broken> {
    Err(Broken("this build has no GPU support".to_owned()))
}

/// After all these refusals the device records and replays as if nothing had happened.
fn usable_afterwards(gpu: &Gpu, eager: &mut Eager) -> Result<String, Broken> {
    let (input, output) = (Tensor::ones(64, DType::F32, &gpu.device)?, Tensor::zeros(64, DType::F32, &gpu.device)?);
    let mut captured = doubling(gpu, eager, &input, &output)?;
    captured.hold("input", &input)?;
    captured.hold("output", &output)?;
    captured.replay().map_err(|refusal| Broken(refusal.to_string()))?;
    let sum = read_scalar(&output.sum_all()?, "check", &mut HostReads::default())?;
    promise((sum - 128.0).abs() < f64::EPSILON, || format!("a replay gave {sum}, expected 128"))?;
    Ok("a capture and a replay gave the right values".to_owned())
}
