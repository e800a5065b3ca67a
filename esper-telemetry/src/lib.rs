//! Telemetry: records what subsystems measure and what happens to them, and writes it down without ever stopping them.
//!
//! ```text
//!  caller threads                                                   worker thread
//!  Gauge::set, Counter::add ──► cells ◄──┐
//!                                        │ read at `publish`
//!  event(Event) ───┬─ critical ─► reserve ┐                       ┌─► FrameSink      packets.bin
//!                  └─ others ───► common ─┼─► Assembler ─► Packet ┼─► JsonLinesSink  packets.jsonl
//!  publish(Boundary, values) ───► common ─┘      ▲                └─► lane: queue, thread ─► OtlpSink
//!         │ no room                              │ names, labels
//!         ▼                                  Registry ◄── Catalogue ──► Markdown, Prometheus names
//!   dropped_total
//! ```
//!
//! *Entry points*: [`Catalogue::new`] with the descriptors of all subsystems, then [`TelemetryRecorder::start`].
//! [`exposition::Exposition`] is what a Prometheus server reads;
//! [`reader::FrameReader`] and [`decode::decode_file`] read what was written.
//!
//! *Invariants*: TE-1 to TE-3 of [`leyline::telemetry`]; everything emitted is delivered or counted as dropped
//! ([`ledger`]); a packet holds the values of its boundary, not those of the moment in which it is written; a frame
//! that is accepted is the frame that was written ([`codec`]); a sink that fails or stalls costs ordinary packets, never steps.
//!
//! *Critical events* are not dropped while the recorder lives. The queue takes them however many wait, and no call waits. A packet that holds
//! some is offered to a sink that fails until the sink takes it, before what came later: with each packet, each second while none comes, and
//! for two seconds at the end. Behind it 64 packets wait, ordinary ones among them; further ordinary ones are dropped and counted. An event
//! that waits takes about 320 bytes in the queue and 640 in a packet, with one short attribute, and each value of that packet 280
//! (`tests/no_allocation.rs`); `esper.telemetry.critical_waiting` tells how many wait. They are lost, counted and, at the end, told by name where
//! every sink refuses the packet for good ([`Error::is_for_good`]), where none has taken it at the end, and where a sink panics, which ends its
//! thread. A process that is killed loses what waits without a count.
//!
//! *Not here*: what is measured (each subsystem's `telemetry.rs`), an HTTP endpoint (`esper`).
#![forbid(unsafe_code)]

pub mod error;
mod name;
mod sync;
pub mod telemetry;
pub mod catalogue;
pub mod prometheus;
pub mod registry;
pub mod ledger;
pub mod queue;
pub mod recorder;
pub mod exposition;
mod worker;
mod slot;
mod lane;
mod assembler;
pub mod packet;
pub mod codec;
pub mod reader;
pub mod sink;
mod aside;
pub mod decode;

pub use aside::set_aside;
pub use catalogue::Catalogue;
pub use error::Error;
pub use exposition::Exposition;
pub use ledger::{Counts, Stats};
pub use packet::Packet;
pub use queue::QueueConfig;
pub use recorder::{Guard, Shutdown, TelemetryRecorder};
