//! How data of a step reach the device.

use candle_core::Tensor;

/// The stream on which copies to the device run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StagingLane {
    /// That of the computation: nothing overlaps. Right for small inputs.
    #[default]
    Compute,
    /// One of their own: the copies of a step run while the step before it computes.
    Own,
}

/// Elements on the host.
#[derive(Debug, Clone, Copy)]
pub enum HostSlice<'a> {
    /// `f32`.
    F32(&'a [f32]),
    /// `u32`.
    U32(&'a [u32]),
    /// `f64`.
    F64(&'a [f64]),
}

impl HostSlice<'_> {
    /// Words of 32 bits.
    #[must_use]
    pub fn num_words(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::F64(values) => 2 * values.len(),
        }
    }

    /// Whether `tensor` has as many elements, of the same type.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a device is staged to"))]
    pub(crate) fn fits(&self, tensor: &Tensor) -> bool {
        let (dtype, len) = match self {
            Self::F32(values) => (candle_core::DType::F32, values.len()),
            Self::U32(values) => (candle_core::DType::U32, values.len()),
            Self::F64(values) => (candle_core::DType::F64, values.len()),
        };
        tensor.dtype() == dtype && tensor.elem_count() == len
    }
}
