//! What is known of a launch.

use crate::compile::fused::Fused;
use crate::compile::pointwise::Pointwise;

/// What a launch of a known kernel reads and writes; every argument that is not named is a number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decoded {
    /// The addresses among the arguments, without those that are null.
    pub uses: Vec<Use>,
    /// What each element is, for element-wise kernels; pointers are indices into `uses`.
    pub pointwise: Option<Pointwise>,
    /// What each row is reduced to, for reductions; pointers are indices into `uses`.
    pub reduced: Option<Fused>,
}

/// An argument that is an address, and the bytes from there on that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Index of the argument.
    pub argument: usize,
    /// Its value.
    pub address: u64,
    /// How many bytes from the address on may be read; 0 for none.
    pub read_bytes: usize,
    /// What is written.
    pub write: Option<Written>,
}

/// Bytes from an address on that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// How many, at least 1.
    pub bytes: usize,
    /// Whether each of them is written, whatever the data.
    pub is_full: bool,
}

impl Use {
    /// Reads the first `bytes`.
    pub(super) fn reading(argument: usize, address: u64, bytes: usize) -> Self {
        Self { argument, address, read_bytes: bytes, write: None }
    }

    /// Writes each of the first `bytes`.
    pub(super) fn writing(argument: usize, address: u64, bytes: usize) -> Self {
        let write = (bytes > 0).then_some(Written { bytes, is_full: true });
        Self { argument, address, read_bytes: 0, write }
    }

    /// Writes some of the first `bytes`.
    pub(super) fn writing_some(argument: usize, address: u64, bytes: usize) -> Self {
        let write = (bytes > 0).then_some(Written { bytes, is_full: false });
        Self { argument, address, read_bytes: 0, write }
    }

    /// Reads the first `bytes` too.
    pub(super) fn and_reading(mut self, bytes: usize) -> Self {
        self.read_bytes = bytes;
        self
    }

    /// Address of the first byte that is not used.
    pub(super) fn end(&self) -> u64 {
        let used = self.read_bytes.max(self.write.map_or(0, |write| write.bytes));
        self.address.saturating_add(used as u64)
    }
}
