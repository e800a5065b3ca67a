//! The only device-to-host reads of this crate, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Tensor, WithDType};

static NUM_READS: AtomicU64 = AtomicU64::new(0);

/// Device-to-host reads made by this crate since the process started (count).
#[must_use]
pub fn num_host_reads() -> u64 {
    NUM_READS.load(Ordering::Relaxed)
}

/// All elements of a tensor in row-major order, as `f32`.
///
/// # Sync
/// One device-to-host copy.
pub(crate) fn read_f32(tensor: &Tensor) -> candle_core::Result<Vec<f32>> {
    read(&tensor.to_dtype(DType::F32)?)
}

/// All elements of a tensor in row-major order, exactly, whatever the type of a network.
///
/// # Sync
/// One device-to-host copy.
pub(crate) fn read_f64(tensor: &Tensor) -> candle_core::Result<Vec<f64>> {
    read(&tensor.to_dtype(DType::F64)?)
}

#[expect(clippy::disallowed_methods, reason = "the one place where this crate reads from the device")]
fn read<T: WithDType>(tensor: &Tensor) -> candle_core::Result<Vec<T>> {
    NUM_READS.fetch_add(1, Ordering::Relaxed);
    tensor.flatten_all()?.to_vec1()
}

/// All elements of a `u32` tensor in row-major order.
///
/// # Sync
/// One device-to-host copy.
#[expect(clippy::disallowed_methods, reason = "the one place where this crate reads from the device")]
pub(crate) fn read_u32(tensor: &Tensor) -> candle_core::Result<Vec<u32>> {
    NUM_READS.fetch_add(1, Ordering::Relaxed);
    tensor.flatten_all()?.to_vec1()
}
