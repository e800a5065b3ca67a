//! One device that records and replays.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, Device, Tensor};
use cudarc::cublas::sys as cublas;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr as _, sys};

use super::driver::refused;
use super::event::DeviceTimer;
use crate::claim::{Claim, Claims, HeldElsewhere};
use crate::facts::DeviceFacts;
use crate::kernels::copy_all;
use crate::reason::{Refusal, Stage};

/// What cuBLAS may use for one product. Without a buffer of its own it would take one per graph.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A candle device made fit for graphs. Clones, and further sessions of the same candle device, are one and the same.
///
/// While one is alive, products on the device use one work space, and the device's tensors are not followed by events:
/// all work of a candle device is on one stream, which orders it.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    claim: Arc<DeviceClaim>,
}

/// A thread's hold of a device, shared by the clones of what was opened.
#[derive(Debug)]
pub struct DeviceClaim(Claim<'static, DeviceId>);

struct Shared {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    /// Held while a region is recorded.
    recording: Mutex<()>,
    /// Held because cuBLAS writes to it.
    workspace: CudaSlice<u8>,
}

/// Sessions of the process that are alive.
static SESSIONS: Mutex<Vec<(DeviceId, Weak<Shared>)>> = Mutex::new(Vec::new());
static CLAIMS: Claims<DeviceId> = Claims::new();

impl DeviceClaim {
    /// Claims a GPU for this thread; the CPU is everybody's.
    ///
    /// # Errors
    /// [`Refusal::SharedDevice`].
    pub fn of(device: &Device) -> Result<Option<Self>, Refusal> {
        let Device::Cuda(device) = device else { return Ok(None) };
        CLAIMS.take(device.id()).map(|claim| Some(Self(claim))).map_err(|HeldElsewhere| Refusal::SharedDevice)
    }

    /// Confirms that this thread may go on with the device, or takes it along where there is no other claim.
    ///
    /// # Errors
    /// [`Refusal::SharedDevice`].
    pub(crate) fn enter(&self) -> Result<(), Refusal> {
        self.0.enter().map_err(|HeldElsewhere| Refusal::SharedDevice)
    }
}

/// Runs `work` while no session of the device records: what a thread gives back that may not use the device is not to
/// become part of another thread's recording.
pub fn between_recordings<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    let Device::Cuda(device) = device else { return work() };
    let known = {
        let sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().find(|(id, _)| *id == device.id()).and_then(|(_, session)| session.upgrade())
    };
    let _recording = known.as_ref().map(|shared| shared.recording.lock().unwrap_or_else(PoisonError::into_inner));
    work()
}

impl Session {
    /// The session of a device.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] for the CPU, for a device on the per-thread default stream (use
    /// `Device::new_cuda_with_stream`) and for one without memory pools; [`Refusal::SharedDevice`] where a session or a
    /// trainer of the device lives that belongs to another thread; [`Refusal::Driver`].
    pub fn open(device: &Device) -> Result<Self, Refusal> {
        let claim = DeviceClaim::of(device)?;
        Self::claimed(device, claim.map(Arc::new))
    }

    /// The session of a device that is claimed; none where it is the CPU.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn claimed(device: &Device, claim: Option<Arc<DeviceClaim>>) -> Result<Self, Refusal> {
        let (Device::Cuda(device), Some(claim)) = (device, claim) else {
            return Err(Refusal::Unsupported { why: "the device is not a GPU" });
        };
        let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|(_, session)| session.strong_count() > 0);
        // Only the one that is returned is taken hold of: dropping another one here would wait for the lock for ever.
        let known = sessions.iter().find(|(id, _)| *id == device.id()).and_then(|(_, session)| session.upgrade());
        if let Some(shared) = known {
            return Ok(Self { shared, claim });
        }
        let shared = Arc::new(Shared::new(device)?);
        sessions.push((device.id(), Arc::downgrade(&shared)));
        Ok(Self { shared, claim })
    }

    /// For as long as a region is recorded.
    pub(super) fn recording(&self) -> MutexGuard<'_, ()> {
        self.shared.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`DeviceClaim::enter`].
    pub(crate) fn enter(&self) -> Result<(), Refusal> {
        self.claim.enter()
    }

    /// Which device it is.
    ///
    /// # Sync
    /// none
    #[must_use]
    pub fn facts(&self) -> DeviceFacts {
        let mut version = 0;
        // SAFETY: the call writes one number to `version` and needs no context.
        let known = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().is_ok();
        DeviceFacts {
            name: self.context().name().ok(),
            compute_capability: self.context().compute_capability().ok(),
            driver_version: known.then_some(version),
        }
    }

    /// Runs `work` eagerly in the way a region runs: constants that it uploads are kept for its capture.
    pub fn warm<R>(&self, work: impl FnOnce() -> R) -> R {
        let _guard = self.shared.device.enable_cuda_graph_htod_cache();
        work()
    }

    /// Waits until the device has done all it was asked to do.
    ///
    /// # Errors
    /// [`Refusal::Driver`] when the device reports a failure.
    /// # Sync
    /// waits for the device
    pub fn synchronize(&self) -> Result<(), Refusal> {
        self.stream().synchronize().map_err(refused("cuStreamSynchronize", Stage::Launch))
    }

    /// Copies tensors to others, (from, to), in one launch for up to 32 of them.
    ///
    /// # Shapes
    /// Both contiguous, with the same number of elements of the same type, which kernels take, in whole words of 4 bytes that begin at one.
    /// # Errors
    /// For other tensors, and when the launch fails.
    /// # Sync
    /// none
    pub fn copy_all(&self, copies: &[(&Tensor, &Tensor)]) -> candle_core::Result<()> {
        copy_all(&self.shared.device, copies)
    }

    /// A stopwatch on the device.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    pub fn timer(&self) -> Result<DeviceTimer, Refusal> {
        DeviceTimer::new(self.context()).map_err(refused("cuEventCreate", Stage::Open))
    }

    /// Runs `work`, which enqueues on this device, with the timer around it.
    ///
    /// # Sync
    /// none; the timer measures nothing while its last stretch is under way
    pub fn time<R>(&self, timer: &mut DeviceTimer, work: impl FnOnce() -> R) -> R {
        timer.around(self.stream(), work)
    }

    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.shared.stream
    }

    /// Addresses of the memory that cuBLAS may use, whose bytes mean nothing after a product.
    pub(super) fn workspace(&self) -> std::ops::Range<u64> {
        let start = self.shared.workspace.device_ptr(self.stream()).0;
        start..start + WORKSPACE_BYTES as u64
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.shared.stream.context()
    }

    pub(crate) fn device(&self) -> &CudaDevice {
        &self.shared.device
    }
}

impl Shared {
    fn new(device: &CudaDevice) -> Result<Self, Refusal> {
        let stream = device.cuda_stream();
        let context = stream.context();
        // The per-thread default stream has handle 2; it is another stream for every thread.
        if stream.cu_stream() as usize <= 2 {
            return Err(Refusal::Unsupported { why: "the device has no stream of its own" });
        }
        if !context.has_async_alloc() {
            return Err(Refusal::Unsupported { why: "the device has no memory pools" });
        }
        // SAFETY: a candle device has one stream, so nothing needs events between streams. The staging stream of this
        // crate orders itself with events of its own.
        unsafe { context.disable_event_tracking() };
        let workspace = stream.alloc_zeros::<u8>(WORKSPACE_BYTES).map_err(refused("cuMemAllocAsync", Stage::Open))?;
        let blas = device.cublas_handle();
        // SAFETY: the buffer lives as long as the session, and `Drop` takes it away from cuBLAS before it is freed.
        let status = unsafe {
            cublas::cublasSetWorkspace_v2(*blas.handle(), workspace.device_ptr(&stream).0 as *mut _, WORKSPACE_BYTES)
        };
        if status != cublas::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            let message = format!("{status:?}");
            return Err(Refusal::Driver { call: "cublasSetWorkspace", stage: Stage::Open, message });
        }
        Ok(Self { device: device.clone(), stream, recording: Mutex::new(()), workspace })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.device.id();
        if sessions.iter().any(|(other, session)| *other == id && session.strong_count() > 0) {
            // A later session of this device has set a work space of its own.
            return;
        }
        let blas = self.device.cublas_handle();
        // SAFETY: setting the stream again makes cuBLAS forget the work space. Errors leave it as it was; then the
        // context is lost and no product follows.
        let status = unsafe { cublas::cublasSetStream_v2(*blas.handle(), self.stream.cu_stream().cast()) };
        if status != cublas::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            tracing::warn!(?status, "cuBLAS kept a work space that is freed");
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.shared.device).finish()
    }
}
