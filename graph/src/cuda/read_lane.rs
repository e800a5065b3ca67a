//! Tensors on their way to the host, on a stream of their own: the thread that trains does not wait for them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Error, Result, Tensor};
use cudarc::driver::CudaContext;

use super::driver::enter;
use super::session::Session;
use super::side::SideStream;
use super::staging::Pinned;
use crate::launch::address;
use crate::reason::Refusal;

/// Smallest buffer, words of 4 bytes.
const MIN_WORDS: usize = 1 << 16;

/// A stream on which tensors are copied to the host through a pinned buffer, which grows to the largest of them.
///
/// ```text
///   session's stream ─ event ─► own stream ─(copy)─► pinned buffer ─► tensor of the CPU, by whichever thread asks
/// ```
pub struct ReadLane {
    shared: Arc<Shared>,
}

struct Shared {
    side: Arc<SideStream>,
    context: Arc<CudaContext>,
    pinned: Mutex<Option<Pinned>>,
}

/// Tensors that are to be read, as the session's stream leaves them. Whoever began drops it: what it holds of the device is
/// given back on the stream of the session.
#[derive(Debug)]
pub struct PendingRead {
    lane: ReadLane,
    /// Each with its address, which is asked for on the thread of the session.
    sources: Vec<(Option<u64>, Tensor)>,
}

impl ReadLane {
    /// A lane beside the stream of a session.
    ///
    /// # Errors
    /// [`Refusal::Driver`].
    pub fn new(session: &Session) -> std::result::Result<Self, Refusal> {
        let (side, context) = (SideStream::after(session)?, Arc::clone(session.context()));
        Ok(Self { shared: Arc::new(Shared { side, context, pinned: Mutex::new(None) }) })
    }

    /// Begins to read tensors, of the session's device or of the CPU: what they hold once the device has done what it was
    /// asked for by now. Nothing may be written to them before [`PendingRead::finish`] returned.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none; a tensor that is not contiguous is copied on the device
    pub fn begin<'a>(&self, session: &Session, tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<PendingRead> {
        let source = |tensor: &Tensor| {
            let tensor = tensor.contiguous()?;
            let from = if tensor.device().is_cpu() { None } else { Some(address(&tensor)?) };
            Ok((from, tensor))
        };
        let sources = tensors.into_iter().map(source).collect::<Result<_>>()?;
        self.shared.side.wait_for(session).map_err(Error::wrap)?;
        Ok(PendingRead { lane: Self { shared: Arc::clone(&self.shared) }, sources })
    }
}

impl PendingRead {
    /// The tensors on the CPU, in their order. Any thread may ask, and as often as it likes.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// this thread waits for the device; the stream of the session does not
    pub fn finish(&self) -> Result<Vec<Tensor>> {
        let Shared { side, context, pinned } = &*self.lane.shared;
        enter(context).map_err(Error::wrap)?;
        let mut pinned = pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |(from, tensor): &(Option<u64>, Tensor)| {
            let Some(from) = *from else { return Ok(tensor.clone()) };
            let len = tensor.elem_count() * tensor.dtype().size_in_bytes();
            if pinned.as_mut().and_then(|pinned| pinned.bytes_mut(len)).is_none() {
                let words = len.div_ceil(size_of::<u32>()).max(MIN_WORDS);
                *pinned = Some(Pinned::new(context, words).map_err(Error::wrap)?);
            }
            let bytes = pinned.as_mut().and_then(|pinned| pinned.bytes_mut(len)).expect("it was made as large");
            side.read(from, bytes).map_err(Error::wrap)?;
            Tensor::from_raw_buffer(bytes, tensor.dtype(), tensor.dims(), &Device::Cpu)
        };
        self.sources.iter().map(read).collect()
    }
}

impl fmt::Debug for ReadLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadLane").finish_non_exhaustive()
    }
}
