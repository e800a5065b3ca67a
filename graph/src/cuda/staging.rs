//! Copies to the device through a ring of pinned buffers.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use candle_core::Tensor;
use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr as _, DriverError, result};

use super::driver::enter;
use super::event::DeviceTimer;
use super::feed::Feed;
use super::session::Session;
use crate::kernels::{WordCopy, copy_words, scatter, word_copies};
use crate::launch::address;
use crate::staging::{HostSlice, StagingLane};

const WORD: usize = 4;
/// Words between the starts of two parts: what the device reads fastest.
const ALIGN_WORDS: usize = 64;
/// Up to so many parts are copied to their tensors one by one, where nothing can overlap anyway: fewer calls than a
/// buffer on the device and a kernel that deals it out.
const MAX_DIRECT: usize = 3;
/// Several parts of up to so many words, with the gaps between them, or one with copies of tensors beside it, are read by a kernel where
/// they are, one launch for 32: on an H200 that took less time than a copy for each of two parts, and more than the copy of one. From
/// where on copies are faster was not measured.
const MAX_READ: usize = 1 << 14;
/// Copies from one that is measured to the next: the events cost as much as a small copy.
const SAMPLE_EVERY: u64 = 64;
/// Smallest buffer, words.
const MIN_WORDS: usize = 4096;

/// A ring of pinned host buffers, each with its buffer on the device. The host runs ahead of the device by at most the
/// number of buffers.
///
/// ```text
///   host parts ─► pinned[i] ─(copy, own stream)─► device[i] ─(kernel, compute stream)─► static tensors
///                    ▲ waits for its last copy       ▲ waits for its last kernel
/// ```
/// On the compute stream a few parts are copied to their tensors directly, and several small ones read by a kernel from the pinned buffer,
/// as is one beside copies of tensors.
pub struct StagingRing {
    session: Session,
    lane: Arc<CudaStream>,
    overlaps: bool,
    slots: Vec<Slot>,
    next: usize,
    timer: DeviceTimer,
    num_copies: u64,
}

struct Slot {
    pinned: Pinned,
    device: CudaSlice<u32>,
    copied: CudaEvent,
    consumed: CudaEvent,
}

impl StagingRing {
    /// A ring of `num_slots` buffers.
    ///
    /// # Errors
    /// When the device fails.
    pub fn new(session: &Session, num_slots: NonZeroUsize, lane: StagingLane) -> candle_core::Result<Self> {
        Self::open(session, num_slots, lane).map_err(candle_core::Error::wrap)
    }

    fn open(session: &Session, num_slots: NonZeroUsize, lane: StagingLane) -> Result<Self, DriverError> {
        let overlaps = lane == StagingLane::Own;
        let stream = if overlaps { session.context().new_stream()? } else { Arc::clone(session.stream()) };
        let slots = (0..num_slots.get()).map(|_| Slot::new(session, MIN_WORDS)).collect::<Result<_, _>>()?;
        let timer = DeviceTimer::new(session.context())?;
        Ok(Self { session: session.clone(), lane: stream, overlaps, slots, next: 0, timer, num_copies: 0 })
    }

    /// Copies each part into its tensor, in the order of the compute stream; the tensors are on the session's device and share no memory.
    ///
    /// # Errors
    /// When a part does not fit its tensor, before anything is copied; when the device fails.
    /// # Sync
    /// waits for the copy that used this buffer before, one turn of the ring ago, or for the graph that made it
    pub fn stage(&mut self, parts: &[(HostSlice<'_>, &Tensor)]) -> candle_core::Result<()> {
        self.stage_beside(parts, &[])
    }

    /// Copies the parts, and tensors to others as [`Session::copy_all`] does, in no order; on the compute stream in one launch with parts
    /// that a kernel reads. What is written shares no memory with another tensor given here.
    ///
    /// # Errors
    /// Those of [`Self::stage`] and [`Session::copy_all`]: what does not fit is found before anything is copied.
    /// # Sync
    /// waits for the copy that used this buffer before, one turn of the ring ago, or for the graph that made it
    pub fn stage_beside(
        &mut self,
        parts: &[(HostSlice<'_>, &Tensor)],
        copies: &[(&Tensor, &Tensor)],
    ) -> candle_core::Result<()> {
        self.feed(parts, copies)?.run().map_err(candle_core::Error::wrap)
    }

    /// Brings the parts into a pinned buffer, for whoever takes the [`Feed`] to copy them from there to their tensors, and tensors to others.
    /// Large parts, and those of a lane of their own, are on their way when this comes back.
    ///
    /// # Errors
    /// Those of [`Self::stage_beside`].
    /// # Sync
    /// waits for the copy that used this buffer before, one turn of the ring ago, or for the graph that made it
    pub fn feed(
        &mut self,
        parts: &[(HostSlice<'_>, &Tensor)],
        copies: &[(&Tensor, &Tensor)],
    ) -> candle_core::Result<Feed<'_>> {
        if let Some((part, tensor)) = parts.iter().find(|(part, tensor)| !part.fits(tensor)) {
            candle_core::bail!(
                "{} words cannot be staged into {:?} {:?}",
                part.num_words(),
                tensor.dtype(),
                tensor.dims()
            )
        }
        let mut words_beside = word_copies(copies)?;
        let held = copies.iter().flat_map(|(from, to)| [*from, *to]).chain(parts.iter().map(|(_, tensor)| *tensor));
        let held: Vec<Tensor> = held.cloned().collect();
        if parts.is_empty() {
            return Ok(Feed::new(self.session.clone(), None, words_beside, held));
        }
        let mut offsets = Vec::with_capacity(parts.len());
        let mut words = 0;
        for (part, _) in parts {
            offsets.push(words);
            words += part.num_words().next_multiple_of(ALIGN_WORDS);
        }
        let wrap = |error: DriverError| candle_core::Error::wrap(error);
        self.fill(parts, &offsets, words).map_err(wrap)?;
        let index = self.next;
        self.next = (index + 1) % self.slots.len();
        if !self.overlaps && (words <= MAX_READ || parts.len() <= MAX_DIRECT) {
            let targets = parts.iter().zip(&offsets).map(|((part, tensor), offset)| {
                Ok(Copy { from: *offset, words: part.num_words(), to: address(tensor)? })
            });
            let targets = targets.collect::<candle_core::Result<Vec<_>>>()?;
            if words > MAX_READ {
                self.copy(index, &targets).map_err(wrap)?;
                return Ok(Feed::new(self.session.clone(), None, words_beside, held));
            }
            // With unified addressing, which every 64-bit system has, page-locked memory has the same address for host and devices.
            let pinned = &self.slots[index].pinned;
            words_beside.extend(targets.iter().map(|copy| {
                let from = pinned.source(copy).as_ptr() as u64;
                WordCopy { from, to: copy.to, words: copy.words }
            }));
            return Ok(Feed::new(self.session.clone(), Some((self, index)), words_beside, held));
        }
        let slot = &self.slots[index];
        let whole = Copy { from: 0, words, to: slot.device.device_ptr(&self.lane).0 };
        self.copy(index, &[whole]).map_err(wrap)?;
        let slot = &self.slots[index];
        let targets: Vec<(usize, &Tensor)> =
            offsets.into_iter().zip(parts).map(|(at, (_, tensor))| (at, *tensor)).collect();
        let done = scatter(self.session.device(), &slot.device, &targets);
        // Also of a first launch before a second one failed.
        let marked = if self.overlaps { mark(&slot.consumed, self.session.stream()) } else { Ok(()) };
        done?;
        marked.map_err(wrap)?;
        Ok(Feed::new(self.session.clone(), None, words_beside, held))
    }

    /// Enqueues the copies of a feed, some of which read this pinned buffer.
    pub(super) fn enqueue(&mut self, index: usize, copies: &[WordCopy]) -> candle_core::Result<()> {
        match copies {
            // A part alone: it is at the start of the buffer.
            [copy] => {
                let copy = Copy { from: 0, words: copy.words, to: copy.to };
                self.copy(index, &[copy]).map_err(candle_core::Error::wrap)
            }
            copies => self.read(index, copies),
        }
    }

    /// A graph that reads a pinned buffer was enqueued on the compute stream.
    pub(super) fn mark_read(&mut self, index: usize) {
        self.timer.forget();
        if let Err(error) = mark(&self.slots[index].copied, self.session.stream()) {
            tracing::warn!(%error, "the device was waited for: it does not say when a staging buffer is free");
        }
    }

    /// Time of the last copy to the device that was measured, ms, with copies of tensors in the same launch; absent before the first one, and
    /// once a graph made them.
    pub fn copy_ms(&mut self) -> Option<f64> {
        self.timer.last_ms()
    }

    fn fill(&mut self, parts: &[(HostSlice<'_>, &Tensor)], offsets: &[usize], words: usize) -> Result<(), DriverError> {
        let slot = &mut self.slots[self.next];
        slot.copied.synchronize()?;
        if slot.pinned.words < words {
            // Rare: sizes change with the key of a step. The old buffers must be idle before they go.
            slot.consumed.synchronize()?;
            self.session.stream().synchronize()?;
            *slot = Slot::new(&self.session, words.next_power_of_two())?;
        }
        for ((part, _), offset) in parts.iter().zip(offsets) {
            slot.pinned.write(*offset, part);
        }
        Ok(())
    }

    /// Enqueues a kernel on the compute stream that copies out of a pinned buffer, and between tensors.
    fn read(&mut self, index: usize, copies: &[WordCopy]) -> candle_core::Result<()> {
        let (slot, device) = (&self.slots[index], self.session.device());
        // SAFETY: the pinned words are not written before `copied` has come, nor freed before the stream was waited for; each target is
        // as long as its source, as `feed` checked, and tensors are freed in the order of the stream.
        let done = sampled(&mut self.timer, &mut self.num_copies, &self.lane, || unsafe { copy_words(device, copies) });
        let marked = mark(&slot.copied, &self.lane);
        done?;
        marked.map_err(candle_core::Error::wrap)
    }

    /// Enqueues copies out of a pinned buffer on the lane; the compute stream waits for them.
    fn copy(&mut self, index: usize, copies: &[Copy]) -> Result<(), DriverError> {
        let (slot, lane) = (&self.slots[index], &self.lane);
        self.session.context().bind_to_thread()?;
        if self.overlaps {
            lane.wait(&slot.consumed)?;
        }
        let enqueue = || {
            copies.iter().try_for_each(|copy| {
                // SAFETY: the pinned words are not written before `copied` has come; the target is as long, as `feed` checked, and
                // neither is freed before the lane was waited for.
                unsafe { result::memcpy_htod_async(copy.to, slot.pinned.source(copy), lane.cu_stream()) }
            })
        };
        let done = sampled(&mut self.timer, &mut self.num_copies, lane, enqueue);
        let marked = mark(&slot.copied, lane);
        done?;
        marked?;
        if self.overlaps {
            self.session.stream().wait(&slot.copied)?;
        }
        Ok(())
    }
}

/// Records the event that says that a buffer is free. Where that fails the stream is waited for, so that nobody takes it for free before it is.
fn mark(free: &CudaEvent, stream: &CudaStream) -> Result<(), DriverError> {
    free.record(stream).inspect_err(|_| {
        if let Err(error) = stream.synchronize() {
            tracing::warn!(%error, "a staging buffer may still be read");
        }
    })
}

/// Runs `enqueue`, with the timer around it now and then.
fn sampled<R>(timer: &mut DeviceTimer, num_copies: &mut u64, lane: &CudaStream, enqueue: impl FnOnce() -> R) -> R {
    let is_sampled = num_copies.is_multiple_of(SAMPLE_EVERY);
    *num_copies += 1;
    if is_sampled { timer.around(lane, enqueue) } else { enqueue() }
}

/// Words of a pinned buffer on their way to an address of the device.
struct Copy {
    from: usize,
    words: usize,
    to: u64,
}

impl Drop for StagingRing {
    fn drop(&mut self) {
        // The buffers are the streams' until both have caught up.
        let waited = self.lane.synchronize().and_then(|()| self.session.stream().synchronize());
        if let Err(error) = waited {
            tracing::warn!(%error, "a staging ring was dropped on a failed device");
        }
    }
}

impl fmt::Debug for StagingRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingRing").field("slots", &self.slots.len()).field("overlaps", &self.overlaps).finish()
    }
}

impl Slot {
    fn new(session: &Session, words: usize) -> Result<Self, DriverError> {
        let context = session.context();
        // SAFETY: a copy writes the words before a kernel reads them.
        let device = unsafe { session.stream().alloc(words) }?;
        let (copied, consumed) = (context.new_event(None)?, context.new_event(None)?);
        // The memory is there once the compute stream has got so far; the first copy waits for it.
        consumed.record(session.stream())?;
        Ok(Self { pinned: Pinned::new(context, words)?, device, copied, consumed })
    }
}

/// Page-locked words, zero at first.
pub(super) struct Pinned {
    start: NonNull<u32>,
    words: usize,
    context: Arc<CudaContext>,
}

// SAFETY: the memory belongs to this value alone and to no thread in particular.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<CudaContext>, words: usize) -> Result<Self, DriverError> {
        enter(context)?;
        // SAFETY: the result is checked, and freed in `Drop`.
        let start = unsafe { result::malloc_host(words * WORD, 0) }?.cast::<u32>();
        let start = NonNull::new(start).expect("the driver returns memory or an error");
        // SAFETY: `words` words were allocated.
        unsafe { start.as_ptr().write_bytes(0, words) };
        Ok(Self { start, words, context: Arc::clone(context) })
    }

    /// The first `len` bytes; absent where there are fewer.
    pub(super) fn bytes_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        // SAFETY: so many bytes are there and were written; they are borrowed as long as this is.
        (len <= self.words * WORD).then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), len) })
    }

    /// The words of a copy.
    fn source(&self, copy: &Copy) -> &[u32] {
        assert!(copy.from + copy.words <= self.words, "a copy must stay in its buffer");
        // SAFETY: so many words are there and were written; who writes them again has the buffer to himself.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast_const().add(copy.from), copy.words) }
    }

    /// Writes `part` from word `offset` on; the caller has made it fit.
    fn write(&mut self, offset: usize, part: &HostSlice<'_>) {
        assert!(offset + part.num_words() <= self.words, "a part must fit into the buffer");
        let source = match part {
            HostSlice::F32(values) => values.as_ptr().cast::<u8>(),
            HostSlice::U32(values) => values.as_ptr().cast(),
            HostSlice::F64(values) => values.as_ptr().cast(),
        };
        // SAFETY: in bounds as asserted; source and target are different allocations.
        unsafe {
            self.start.as_ptr().add(offset).cast::<u8>().copy_from_nonoverlapping(source, part.num_words() * WORD)
        };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the memory came from `malloc_host` and no copy from it is under way: the ring waits first.
        let freed = enter(&self.context).and_then(|()| unsafe { result::free_host(self.start.as_ptr().cast()) });
        if let Err(error) = freed {
            tracing::warn!(%error, "pinned memory was not freed");
        }
    }
}
