//! Coefficients of a window from the inner products of its rows.

use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Result, Storage, Tensor};
use cudarc::driver::{DevicePtr as _, PushKernelArg as _};

use super::args::MAX_ROWS;
use super::module::{DeviceKernels, blocks_of, count, expect};
use crate::graph::cuda::{address, tensor_error};

impl DeviceKernels {
    /// PCGrad over `gram` (K, K) of `f64`. Gives the coefficients (2, K) of `f32`, of segments that are not isolated
    /// and of those that are, and the number of conflicting ordered pairs, (1,) of `f64`.
    ///
    /// `arguments` of `f64`: the count of owners S up to [`MAX_OWNERS`](super::args::MAX_OWNERS), the fractions (K),
    /// the shares (S, K), the visiting orders (S, S − 1); more may follow. All results are NaN when S does not fit.
    pub(crate) fn pcgrad_solve(&self, gram: &Tensor, arguments: &Tensor) -> Result<(Tensor, Tensor)> {
        let (rows, _) = gram.dims2()?;
        if rows == 0 || rows > MAX_ROWS {
            candle_core::bail!("a window of {rows} microbatches: the GPU combines 1 to {MAX_ROWS}")
        }
        expect(gram, DType::F64, rows * rows, "inner products of a window")?;
        let num_arguments = arguments.elem_count();
        if num_arguments == 0 {
            candle_core::bail!("a window without arguments")
        }
        expect(arguments, DType::F64, num_arguments, "arguments of a window")?;
        // SAFETY: the kernel writes every element of both.
        let (coefficients, pairs) = unsafe { (self.device.alloc::<f32>(2 * rows)?, self.device.alloc::<f64>(1)?) };
        let stream = self.stream();
        let (products, numbers) = (address(gram)?, address(arguments)?);
        let (num_arguments, num_rows) = (count(num_arguments), count(rows));
        let (factors, conflicting) = (coefficients.device_ptr(&stream).0, pairs.device_ptr(&stream).0);
        let function = self.function("pcgrad_solve")?;
        let mut launch = stream.launch_builder(&function);
        launch.arg(&products).arg(&numbers).arg(&num_arguments).arg(&num_rows).arg(&factors).arg(&conflicting);
        // SAFETY: the sizes were checked above, and the kernel reads no argument beyond their number.
        tensor_error(unsafe { launch.launch(blocks_of(1, 1)) })?;
        let coefficients = Storage::Cuda(CudaStorage::wrap_cuda_slice(coefficients, self.device.clone()));
        let pairs = Storage::Cuda(CudaStorage::wrap_cuda_slice(pairs, self.device.clone()));
        Ok((
            Tensor::from_storage(coefficients, (2, rows), BackpropOp::none(), false),
            Tensor::from_storage(pairs, 1, BackpropOp::none(), false),
        ))
    }
}
