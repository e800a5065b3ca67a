//! Compares a rewritten region with the captured one, on the real inputs of a step.

use cudarc::driver::{CudaSlice, DevicePtr as _, result};

use leyline::clock::{Clock as _, SystemClock};

use super::compiled::CompiledGraph;
use super::driver::refused;
use super::executable::Captured;
use super::session::Session;
use super::side::Arena;
use crate::kernels::{COUNTS_PER_SPAN, CopiedSpan, count_differences, exchange_spans};
use crate::launch::Span;
use crate::reason::{Refusal, Stage};
use crate::translate::{Difference, describe};

/// Where copies start: every kernel reads whole words of them.
const COPY_ALIGNMENT: usize = 256;

impl CompiledGraph {
    /// Runs one step through both graphs from the same state and compares what they leave, bit for bit; only the sign of
    /// a zero may differ, and only where [`Pass::ZeroSums`](crate::compile::Pass::ZeroSums) ran. The rewritten one
    /// finds `poison` in its own memory. What is the same in every replay is written before the first comparison and
    /// stays, as it does afterwards.
    ///
    /// This is the step: afterwards the state is what the captured graph made of it, whatever the outcome. Only where
    /// the captured graph itself could not be replayed, nothing has run.
    ///
    /// # Errors
    /// [`Refusal::NotCompiled`] with `differs` where the results do, and with `no_memory` where there is none for a copy
    /// of them; [`Refusal::OtherThread`]; [`Refusal::NotHeld`] where this graph points at memory that the captured one does
    /// not, or that it does not hold; [`Refusal::Driver`]. The graph is not replayed then.
    /// # Sync
    /// waits for the device
    pub fn verify(&mut self, captured: &Captured, poison: u8) -> Result<(), Refusal> {
        self.check_thread()?;
        captured.contains(&self.outside)?;
        let clock = SystemClock::new();
        self.is_verified = false;
        let outcome = self.compare_step(captured, poison);
        self.is_verified = outcome.is_ok();
        self.held = captured.held.clone();
        self.report.times.verify += clock.now();
        outcome
    }

    /// Gives back the memory that comparing needs, and what it was made from. A later comparison takes the memory anew.
    ///
    /// # Sync
    /// none
    pub fn end_verification(&mut self) {
        self.source = None;
        let Some(copies) = self.copies.take() else { return };
        if let Err(refusal) = copies.free_after(&self.session) {
            tracing::warn!(%refusal, "the copies of a comparison were not freed in order");
        }
    }

    fn compare_step(&mut self, captured: &Captured, poison: u8) -> Result<(), Refusal> {
        let copies = match Copies::take(&self.session, &self.written, self.copies.as_ref()) {
            Ok(copies) => copies,
            Err(refusal) => return captured.replay().and(Err(refusal)),
        };
        captured.replay()?;
        // The step is taken: whatever fails from here on fails the comparison.
        self.compare(&copies, poison).map_err(|refusal| match refusal {
            Refusal::NotCompiled { .. } => refusal,
            other => Refusal::NotCompiled { why: "not_compared", message: other.to_string() },
        })
    }

    /// Runs the rewritten graph from the state before the step, of which the copies are, and compares.
    fn compare(&mut self, copies: &Copies, poison: u8) -> Result<(), Refusal> {
        // Of the spans that changed places the copies are the captured results; the others still hold theirs.
        let mut num_exchanged = 0;
        let exchanged = copies.exchange(&mut num_exchanged);
        let differences =
            exchanged.and_then(|()| self.run_poisoned(poison)).and_then(|()| copies.differences(self.allows_signs));
        copies.put_back(num_exchanged)?;
        match describe(&self.written, &differences?) {
            Some(message) => Err(Refusal::NotCompiled { why: "differs", message }),
            None => Ok(()),
        }
    }
}

/// Copies of spans, on the device. All work is enqueued on the session's stream.
struct Copies {
    session: Session,
    spans: Vec<CopiedSpan>,
    /// Where the copies start.
    start: u64,
    /// What is freed with this; nothing where the memory was there before.
    _taken: Option<CudaSlice<u8>>,
}

/// Where the copy of each span is in a buffer, and how long that is.
fn placed(written: &[Span]) -> (Vec<CopiedSpan>, usize) {
    let mut bytes = 0_usize;
    let mut place = |span: &Span| {
        let offset = bytes.next_multiple_of(COPY_ALIGNMENT);
        bytes = offset + span.bytes;
        CopiedSpan { address: span.address, bytes: span.bytes, offset }
    };
    (written.iter().map(&mut place).collect(), bytes)
}

/// Bytes that copies of these spans take.
pub(super) fn copied_bytes(written: &[Span]) -> usize {
    placed(written).1
}

impl Copies {
    /// Copies the spans as they are, to `memory` where there is enough of it.
    fn take(session: &Session, written: &[Span], memory: Option<&Arena>) -> Result<Self, Refusal> {
        let (spans, bytes) = placed(written);
        if spans.is_empty() {
            let message = "there is nothing to compare".to_owned();
            return Err(Refusal::NotCompiled { why: "no_results", message });
        }
        session.context().bind_to_thread().map_err(refused("cuCtxSetCurrent", Stage::Compile))?;
        let (start, taken) = match memory.filter(|memory| memory.bytes() >= bytes) {
            Some(memory) => (memory.base(), None),
            None => {
                // SAFETY: every byte that is read is written first.
                let taken = unsafe { session.stream().alloc::<u8>(bytes) }.map_err(|error| Refusal::NotCompiled {
                    why: "no_memory",
                    message: format!("{bytes} bytes for a copy of the results: {error}"),
                })?;
                let start = taken.device_ptr(session.stream()).0;
                (start, Some(taken))
            }
        };
        let copies = Self { session: session.clone(), spans, start, _taken: taken };
        copies.each(copies.spans.len(), |span, copy| (span.address, copy))?;
        Ok(copies)
    }

    /// Every span changes places with its copy; `num_exchanged` says how many did, from the first on.
    fn exchange(&self, num_exchanged: &mut usize) -> Result<(), Refusal> {
        // SAFETY: the spans are apart from each other, lie in memory that the captured graph holds, and were copied from
        // there to a buffer that is freed on the same stream.
        unsafe { exchange_spans(self.session.device(), &self.spans, self.start, num_exchanged) }.map_err(refused_launch)
    }

    /// How each span differs from its copy; zeros of another sign are no difference where that is allowed.
    fn differences(&self, allows_signs: bool) -> Result<Vec<Difference>, Refusal> {
        let stream = self.session.stream();
        let unseen = [0, u64::MAX].repeat(self.spans.len());
        let copied = |call| refused(call, Stage::Compile);
        let found = stream.clone_htod(&unseen).map_err(copied("cuMemcpyHtoDAsync"))?;
        // SAFETY: as in `exchange`; there are as many numbers as the kernel writes.
        unsafe {
            let found = found.device_ptr(stream).0;
            count_differences(self.session.device(), &self.spans, self.start, allows_signs, found)
        }
        .map_err(refused_launch)?;
        let found = stream.clone_dtoh(&found).map_err(copied("cuMemcpyDtoHAsync"))?;
        self.session.synchronize()?;
        let difference = |counts: &[u64]| Difference { num_words: counts[0], first_word: counts[1] };
        Ok(found.chunks_exact(COUNTS_PER_SPAN).map(difference).collect())
    }

    /// Each of the first spans becomes what its copy is. A copy that cannot be enqueued is a failure of the device, on
    /// which nothing runs afterwards.
    fn put_back(&self, num_spans: usize) -> Result<(), Refusal> {
        self.each(num_spans, |span, copy| (copy, span.address))
    }

    /// Copies between each of the first spans and its copy; `ends` names source and destination.
    fn each(&self, num_spans: usize, ends: impl Fn(&CopiedSpan, u64) -> (u64, u64)) -> Result<(), Refusal> {
        let (stream, start) = (self.session.stream().cu_stream(), self.start);
        for span in &self.spans[..num_spans] {
            let (source, destination) = ends(span, start + span.offset as u64);
            // SAFETY: both ranges are memory of the device, and stay until the stream has caught up.
            unsafe { result::memcpy_dtod_async(destination, source, span.bytes, stream) }
                .map_err(refused("cuMemcpyDtoDAsync", Stage::Compile))?;
        }
        Ok(())
    }
}

fn refused_launch(error: candle_core::Error) -> Refusal {
    Refusal::Driver { call: "cuLaunchKernel", stage: Stage::Compile, message: error.to_string() }
}
