//! The only device-to-host reads of the crate, counted by name.
//!
//! A read makes the host wait for everything the device has been asked to do. Every read of training code therefore
//! goes through these functions, says what it is for, and shows in [`HostReads::counts`]; a read from a tensor that
//! lives on the CPU counts like any other, so that a test without a device can hold the line.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};

use crate::error::Error;

/// How many reads were made, by what they were for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostReads {
    counts: BTreeMap<&'static str, u64>,
}

impl HostReads {
    /// Reads by name.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// All reads.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    fn add(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

/// The only element of `tensor`, of any shape and float type.
///
/// # Errors
/// [`Error::LayoutMismatch`] unless there is exactly one element; when the device fails.
/// # Sync
/// one device-to-host copy
pub fn read_scalar(tensor: &Tensor, what: &'static str, reads: &mut HostReads) -> Result<f64, Error> {
    match read_vec_f64(tensor, what, reads)?[..] {
        [value] => Ok(value),
        ref values => Err(Error::mismatch(what, "1 element", format!("{} elements", values.len()))),
    }
}

/// All elements of `tensor` in row-major order, as `f32`.
///
/// # Errors
/// When the device fails.
/// # Sync
/// one device-to-host copy
pub fn read_vec(tensor: &Tensor, what: &'static str, reads: &mut HostReads) -> Result<Vec<f32>, Error> {
    // A GPU does not convert these.
    if tensor.dtype() == DType::I16 {
        return Ok(read::<i16>(tensor, what, reads)?.into_iter().map(f32::from).collect());
    }
    read(&tensor.to_dtype(DType::F32)?, what, reads)
}

/// All elements of `tensor` in row-major order, as `f64`.
///
/// # Errors
/// When the device fails.
/// # Sync
/// one device-to-host copy
pub fn read_vec_f64(tensor: &Tensor, what: &'static str, reads: &mut HostReads) -> Result<Vec<f64>, Error> {
    read(&tensor.to_dtype(DType::F64)?, what, reads)
}

/// All elements of an integer `tensor` in row-major order.
///
/// # Errors
/// When the elements are not `u32`, and when the device fails.
/// # Sync
/// one device-to-host copy
pub fn read_vec_u32(tensor: &Tensor, what: &'static str, reads: &mut HostReads) -> Result<Vec<u32>, Error> {
    read(tensor, what, reads)
}

fn read<T: candle_core::WithDType>(
    tensor: &Tensor,
    what: &'static str,
    reads: &mut HostReads,
) -> Result<Vec<T>, Error> {
    reads.add(what);
    #[expect(clippy::disallowed_methods, reason = "this is the counted read")]
    let values = tensor.flatten_all()?.to_vec1()?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn every_read_is_counted_under_its_name() {
        let mut reads = HostReads::default();
        let tensor = Tensor::new(&[[1.0_f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
        assert_eq!(read_vec(&tensor.t().unwrap(), "a", &mut reads).unwrap(), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(read_vec_f64(&tensor, "a", &mut reads).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert!(read_scalar(&tensor, "b", &mut reads).is_err(), "four elements are not one");
        assert!((read_scalar(&tensor.sum_all().unwrap(), "c", &mut reads).unwrap() - 10.0).abs() < f64::EPSILON);
        assert_eq!(*reads.counts(), BTreeMap::from([("a", 2), ("b", 1), ("c", 1)]));
        assert_eq!(reads.total(), 4);
    }
}
