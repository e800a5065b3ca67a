//! Sinks that work until a fault is switched on: each fault is one of the operating system.

use std::io::{PipeWriter, Read as _, Write as _, pipe};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use esper_telemetry::codec::encode_frame;
use esper_telemetry::sink::{FrameSink, Sink};
use esper_telemetry::{Error, Packet};

/// What is wrong with a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A pipe from which nobody reads.
    Stalled,
    /// A pipe without a reader.
    Closed,
    /// A pipe from which a byte is read each second.
    Trickles,
    /// `/dev/full`, on which nothing fits.
    Full,
}

/// A file, and in its place something broken while the fault is on. Counts what was written.
#[derive(Debug)]
pub(super) struct Breakable {
    works: FrameSink,
    broken: Option<Box<dyn Sink>>,
    is_on: Arc<AtomicBool>,
    num_written: Arc<AtomicU64>,
}

impl Breakable {
    pub(super) fn new(
        path: &Path,
        fault: Option<Fault>,
        is_on: &Arc<AtomicBool>,
        num_written: &Arc<AtomicU64>,
    ) -> Result<Self, Error> {
        let broken = fault.map(|fault| fault.sink(is_on)).transpose()?;
        let works = FrameSink::append(path)?;
        Ok(Self { works, broken, is_on: Arc::clone(is_on), num_written: Arc::clone(num_written) })
    }

    fn now(&mut self) -> &mut dyn Sink {
        match &mut self.broken {
            Some(broken) if self.is_on.load(Ordering::SeqCst) => broken.as_mut(),
            _ => &mut self.works,
        }
    }
}

impl Sink for Breakable {
    fn name(&self) -> &'static str {
        "breakable"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        self.now().write(packet)?;
        self.num_written.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.now().flush()
    }
}

impl Fault {
    fn sink(self, is_on: &Arc<AtomicBool>) -> Result<Box<dyn Sink>, Error> {
        if self == Self::Full {
            return Ok(Box::new(FrameSink::append("/dev/full")?));
        }
        let (mut reader, writer) = pipe().map_err(|error| Error::Sink(error.into()))?;
        if self != Self::Closed {
            let is_on = Arc::clone(is_on);
            // Until the writer is gone. What waits when the fault ends is read at once.
            thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                loop {
                    let is_slow = is_on.load(Ordering::SeqCst);
                    if is_slow {
                        thread::sleep(Duration::from_millis(if self == Self::Trickles { 1000 } else { 1 }));
                    }
                    let wanted = match (is_slow, self) {
                        (false, _) => bytes.len(),
                        (true, Self::Trickles) => 1,
                        (true, _) => continue,
                    };
                    if reader.read(&mut bytes[..wanted]).is_ok_and(|read| read == 0) {
                        break;
                    }
                }
            });
        }
        Ok(Box::new(Piped(writer)))
    }
}

/// Frames through a pipe.
#[derive(Debug)]
struct Piped(PipeWriter);

impl Sink for Piped {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        let sequence = packet.sequence;
        let frame = encode_frame(packet).map_err(|source| Error::Encode { sequence, source })?;
        self.0.write_all(&frame).map_err(|error| Error::Sink(error.into()))
    }
}
