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
//! that is accepted is the frame that was written ([`codec`]); a sink that fails or stalls costs packets, never steps.
//!
//! *Critical events* are kept before all others, in bounded memory: 64 have a reserve ([`QueueConfig::critical_capacity`]). The 65th that
//! no sink has got yet takes room of the common queue (1024, `telemetry.queue_packets`). Where that is full too, it is dropped: it counts in
//! `esper.telemetry.dropped_total` with `kind="event"`, as any other, and in what is scraped its name still counts in `esper.events_total`.
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
