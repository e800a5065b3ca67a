//! The GPU that a work measures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;
use esper_graph::{Captured, Refusal, Session};
use leyline::clock::Clock;
use leyline::region::Eager;

use super::samples::Samples;
use crate::environment::Environment;
use crate::error::Error;
use crate::result::{BenchResult, SCHEMA};
use crate::works::Setting;

/// A device with its session and the clock.
#[derive(Debug, Clone)]
pub struct Gpu {
    pub(super) ordinal: usize,
    pub(super) device: Device,
    pub(super) session: Session,
    pub(super) clock: Arc<dyn Clock>,
}

impl Gpu {
    /// Opens the GPU of a setting.
    ///
    /// # Errors
    /// [`Error::NeedsGpu`] when the build, the setting or the machine has none that replays graphs.
    pub fn open(setting: &Setting) -> Result<Self, Error> {
        let ordinal = ordinal(setting)?;
        Self::on(&open_device(ordinal)?, ordinal, &setting.clock)
    }

    /// A session on a device that is open. It is a new one when the sessions before it are dropped.
    pub(super) fn on(device: &Device, ordinal: usize, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let session = open_session(device)?;
        Ok(Self { ordinal, device: device.clone(), session, clock: Arc::clone(clock) })
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Waits for the device.
    pub(super) fn wait(&self) -> Result<(), Error> {
        self.session.synchronize().map_err(|refusal| refused("waiting for the device", refusal))
    }

    /// Runs `region` twice as a warm-up, then records it. What it computes is computed twice.
    pub(super) fn warm_and_capture(
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
    pub(super) fn result(&self, name: &str, notes: &str, config: &[(&str, String)], samples: Samples) -> BenchResult {
        let ordinal = self.ordinal;
        BenchResult {
            schema: SCHEMA,
            name: name.to_owned(),
            command: format!(
                "cargo run --release -p esper --features cuda -- bench {name} --device cuda:{ordinal} --out DIR"
            ),
            notes: notes.to_owned(),
            environment: Environment::detect(self.clock.as_ref()).on_gpu(&self.session.facts()),
            config: config
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.clone()))
                .collect::<BTreeMap<String, String>>(),
            measurements: samples.into_measurements(),
            metrics: Vec::new(),
        }
    }
}

/// The number of the GPU that was asked for.
pub(super) fn ordinal(setting: &Setting) -> Result<usize, Error> {
    if !cfg!(feature = "cuda") {
        return Err(Error::NeedsGpu { why: "this build has none; build with `--features cuda`".to_owned() });
    }
    setting.gpu.ok_or_else(|| Error::NeedsGpu { why: "the device is the CPU; give `--device cuda:0`".to_owned() })
}

/// The device, with a stream of its own: the per-thread default one cannot be captured.
pub(super) fn open_device(ordinal: usize) -> Result<Device, Error> {
    Device::new_cuda_with_stream(ordinal).map_err(|error| {
        let message = error.to_string();
        let why = format!("cuda:{ordinal} cannot be opened: {}", message.lines().next().unwrap_or_default());
        Error::NeedsGpu { why }
    })
}

pub(super) fn open_session(device: &Device) -> Result<Session, Error> {
    Session::open(device).map_err(|refusal| Error::NeedsGpu { why: refusal.to_string() })
}

/// Records `region`, which ran under `Session::warm` before. Whoever asks keeps what the region uses beside its graph.
#[allow(unsafe_code)]
#[cfg_attr(not(feature = "cuda"), allow(unreachable_code, reason = "without GPU support nothing is captured"))]
pub(super) fn capture(
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
pub(super) fn replay(captured: &Captured) -> Result<(), Error> {
    captured.replay().map_err(|refusal| refused("a replay", refusal))
}

pub(super) fn refused(what: &str, source: Refusal) -> Error {
    Error::Refused { what: what.to_owned(), source }
}
