//! The type in which values are summed.
//!
//! On the CPU the tensor library adds numbers of half precision in their own type: a sum of ones in `bf16` ends at 256,
//! because 257 is no element of it.

use candle_core::{DType, Result, Tensor};

/// The type in which values of this type are summed, and probabilities of them computed.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// `f` of the values in the type in which they are summed, in the type of `x`. The gradients that `f` sums over a batch are
/// summed in that type, too; nothing is converted where it is the type of `x`.
pub(crate) fn in_wide(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    f(&x.to_dtype(wide(x.dtype()))?)?.to_dtype(x.dtype())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::host_read::read_f64;

    #[test]
    fn a_sum_of_many_ones_is_their_number() {
        for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
            let ones = Tensor::ones((2, 1024), dtype, &Device::Cpu).unwrap();
            let sums = in_wide(&ones, |x| x.sum(1)).unwrap();
            assert_eq!((sums.dtype(), read_f64(&sums).unwrap()), (dtype, vec![1024.0; 2]));
        }
    }

    #[test]
    fn wide_values_give_the_same_bits_as_without_it() {
        for dtype in [DType::F32, DType::F64] {
            let x = Tensor::arange(0.1_f64, 33.0, &Device::Cpu).unwrap().sin().unwrap().to_dtype(dtype).unwrap();
            let bits =
                |tensor: &Tensor| -> Vec<u64> { read_f64(tensor).unwrap().into_iter().map(f64::to_bits).collect() };
            let found = in_wide(&x, |x| x.mean(0)).unwrap();
            assert_eq!(bits(&found), bits(&x.mean(0).unwrap()), "{dtype:?}");
        }
    }
}
