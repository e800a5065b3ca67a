//! Sinks: where packets go. They run on the worker thread and may be slow; they must not be relied on.
//!
//! # For implementers
//! - A packet with critical events that `write` refused is offered again, before all later ones, until it is taken or the error
//!   [is for good](Error::is_for_good); others are not, unless they wait behind one. A sink may get a packet twice of which it took a part.
//! - `write` leaves nothing behind that makes an earlier or later packet unreadable, also when it fails.
//! - `flush` is called after packets of critical priority and before the worker ends.

mod append;
mod frame;
mod json_lines;
mod memory;
#[cfg(feature = "otlp")]
mod otlp;
mod tensor_board;

pub use frame::FrameSink;
pub use json_lines::JsonLinesSink;
pub use memory::{MemorySink, PacketLog};
#[cfg(feature = "otlp")]
pub use otlp::{Endpoint, OtlpSink};
pub use tensor_board::TensorBoardSink;

use crate::error::Error;
use crate::packet::Packet;

/// Packets that may wait for a sink that [is remote](Sink::is_remote), and behind a critical packet that any sink has not taken yet.
pub const REMOTE_QUEUE: usize = 64;

/// Takes packets.
pub trait Sink: Send + std::fmt::Debug {
    /// Short name, for example `frames`; a label value.
    fn name(&self) -> &'static str;

    /// Takes one packet.
    ///
    /// # Errors
    /// When the packet was not stored; [`Error::Refused`] when it never will be: any other error of a critical packet holds up what comes
    /// after it. Counted, reported once until the sink works again; the run
    /// goes on.
    fn write(&mut self, packet: &Packet) -> Result<(), Error>;

    /// Whether what it took has the packet's events. To one that leaves them out no packet is offered again, and it delivers no event.
    fn takes_events(&self) -> bool {
        true
    }

    /// Makes what was written durable, as far as the sink can.
    ///
    /// # Errors
    /// When it may not be durable.
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether writing may wait for another machine or process. Such a sink has a thread and a queue of its own, so that it holds up no other one:
    /// [`REMOTE_QUEUE`] packets may wait, more are dropped and counted; those with critical events always find room, and go first.
    fn is_remote(&self) -> bool {
        false
    }

    /// Sequence number of the last packet that an earlier recorder left in this sink. Numbering goes on after it, so
    /// that a resumed run does not use a number twice.
    fn last_sequence(&self) -> Option<u64> {
        None
    }
}

const _: fn(&mut dyn Sink) = |_| {};
