//! The GPU that a work measures.

use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use esper_graph::{Captured, Refusal, Session};
use leyline::clock::Clock;
use leyline::region::Eager;

use crate::error::Error;
use crate::result::BenchResult;
use crate::samples::Samples;
use crate::work::{Setting, Settings};

/// A device with its session and the clock.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub(crate) ordinal: usize,
    pub(crate) device: Device,
    pub(crate) session: Session,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Gpu {
    /// Opens the GPU of a setting.
    ///
    /// # Errors
    /// [`Error::NeedsGpu`] when the build, the setting or the machine has none that replays graphs.
    pub(crate) fn open(setting: &Setting) -> Result<Self, Error> {
        let ordinal = ordinal(setting)?;
        Self::on(&open_device(ordinal)?, ordinal, &setting.clock)
    }

    /// A session on a device that is open. It is a new one when the sessions before it are dropped.
    pub(crate) fn on(device: &Device, ordinal: usize, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let session = open_session(device)?;
        Ok(Self { ordinal, device: device.clone(), session, clock: Arc::clone(clock) })
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Waits for the device.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        self.session.synchronize().map_err(|refusal| refused("waiting for the device", refusal))
    }

    /// Runs `region` twice as a warm-up, then records it. What it computes is computed twice.
    pub(crate) fn warm_and_capture(
        &self,
        eager: &mut Eager,
        what: &str,
        region: impl Fn() -> Result<(), Error>,
    ) -> Result<Captured, Error> {
        for _ in 0..2 {
            self.session.warm(&region)?;
        }
        capture(&self.session, eager, what, region)
    }

    /// A result of this device. `config` are the settings, `notes` what the numbers mean.
    pub(crate) fn result(&self, name: &str, notes: &str, config: Settings, samples: Samples) -> BenchResult {
        let of_cpu = BenchResult::new(name, notes, self.clock.as_ref());
        let ordinal = self.ordinal;
        BenchResult {
            command: format!(
                "cargo run --release -p esper --features cuda -- bench {name} --device cuda:{ordinal} --out DIR"
            ),
            environment: of_cpu.environment.on_gpu(&self.session.facts()),
            config,
            measurements: samples.into_measurements(),
            ..of_cpu
        }
    }
}

/// A result of the device of a setting: of the CPU where it names no GPU.
pub(crate) fn result_on(
    device: &Device,
    setting: &Setting,
    name: &str,
    notes: &str,
    config: Settings,
    samples: Samples,
) -> Result<BenchResult, Error> {
    Ok(match setting.gpu {
        Some(ordinal) => Gpu::on(device, ordinal, &setting.clock)?.result(name, notes, config, samples),
        None => samples.into_result(name, name, notes, config, setting.clock.as_ref()),
    })
}

/// The number of the GPU that was asked for.
pub(crate) fn ordinal(setting: &Setting) -> Result<usize, Error> {
    if !cfg!(feature = "cuda") {
        return Err(Error::NeedsGpu { why: "this build has none; build with `--features cuda`".to_owned() });
    }
    setting.gpu.ok_or_else(|| Error::NeedsGpu { why: "the device is the CPU; give `--device cuda:0`".to_owned() })
}

/// The device, with a stream of its own: the per-thread default one cannot be captured.
pub(crate) fn open_device(ordinal: usize) -> Result<Device, Error> {
    Device::new_cuda_with_stream(ordinal).map_err(|error| {
        let message = error.to_string();
        let why = format!("cuda:{ordinal} cannot be opened: {}", message.lines().next().unwrap_or_default());
        Error::NeedsGpu { why }
    })
}

pub(crate) fn open_session(device: &Device) -> Result<Session, Error> {
    Session::open(device).map_err(|refusal| Error::NeedsGpu { why: refusal.to_string() })
}

/// Records `region`, which ran under `Session::warm` before. Whoever asks keeps what the region uses beside its graph.
#[allow(unsafe_code)]
#[cfg_attr(not(feature = "cuda"), allow(unreachable_code, reason = "without GPU support nothing is captured"))]
pub(crate) fn capture(
    session: &Session,
    eager: &mut Eager,
    what: &str,
    region: impl FnOnce() -> Result<(), Error>,
) -> Result<Captured, Error> {
    // The causes too: a refusal tells apart what the tensor library said.
    let captured = session.capture(eager, |_| region().map_err(|error| error.chain()));
    let captured = captured.map_err(|refusal| refused(&format!("the capture of {what}"), refusal))?;
    // SAFETY: a work makes the network, its optimizer and its buffers before the graph of a step, replaces none of their
    // tensors, and drops them with or after it.
    Ok(unsafe { captured.assume_held() })
}

/// Enqueues a replay.
pub(crate) fn replay(captured: &Captured) -> Result<(), Error> {
    captured.replay().map_err(|refusal| refused("a replay", refusal))
}

pub(crate) fn refused(what: &str, source: Refusal) -> Error {
    Error::Refused { what: what.to_owned(), source }
}
