//! What is asked of the device while a graph is lifted.

/// Device memory outside the graph.
pub trait Memory {
    /// First address and length of the allocation that an address lies in; none where it lies in none.
    ///
    /// # Sync
    /// None.
    fn allocation(&mut self, address: u64) -> Option<(u64, usize)>;

    /// `count` 64-bit words from an address on; none where they cannot be read.
    ///
    /// # Sync
    /// One copy from the device to the host.
    fn words(&mut self, address: u64, count: usize) -> Option<Vec<u64>>;
}

const _: fn(&mut dyn Memory) = |_| {};
