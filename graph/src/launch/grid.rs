//! The shapes of launches.

use cudarc::driver::LaunchConfig;

/// Threads of a block; reductions rely on it.
pub const THREADS: u32 = 256;
/// Blocks in a row beyond which more of them gain nothing: threads take further elements in turn.
const MAX_BLOCKS: usize = 1024;

/// Enough blocks for `elements`, times `rows`.
#[must_use]
pub fn grid(elements: usize, rows: usize) -> LaunchConfig {
    let blocks = elements.div_ceil(THREADS as usize).clamp(1, MAX_BLOCKS);
    blocks_of(blocks, rows)
}

/// A grid of exactly so many blocks of [`THREADS`].
#[must_use]
pub fn blocks_of(blocks: usize, rows: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (count(blocks), count(rows), 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// One thread.
#[must_use]
pub fn single() -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 }
}

/// A count as kernels take it.
///
/// # Panics
/// From 2³² on.
#[must_use]
pub fn count(value: usize) -> u32 {
    u32::try_from(value).expect("tensors of a step have fewer than 2^32 rows")
}
