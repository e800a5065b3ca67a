//! Packets in memory, for tests, studies and benchmarks. Grows without bound.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::packet::Packet;
use crate::sink::Sink;

/// Keeps every packet.
#[derive(Debug, Default)]
pub struct MemorySink {
    log: PacketLog,
}

/// What a [`MemorySink`] has received so far; stays readable after the recorder is gone.
#[derive(Debug, Clone, Default)]
pub struct PacketLog {
    packets: Arc<Mutex<Vec<Packet>>>,
}

impl MemorySink {
    /// An empty sink.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A handle to the packets.
    #[must_use]
    pub fn packets(&self) -> PacketLog {
        self.log.clone()
    }
}

impl Sink for MemorySink {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Error> {
        self.log.lock().push(packet.clone());
        Ok(())
    }
}

impl PacketLog {
    /// The latest packet.
    #[must_use]
    pub fn last(&self) -> Option<Packet> {
        self.lock().last().cloned()
    }

    /// Every packet, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Packet> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Packet>> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
