//! Inner products of the gradients of a window, and their combination.

use std::ops::Range;

use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Result, Storage, Tensor};
use cudarc::driver::{DevicePtr as _, DeviceRepr, PushKernelArg as _};

use super::args::MAX_ROWS;
use super::module::{DeviceKernels, blocks_of, count, expect, grid};
use crate::graph::cuda::{address, tensor_error};

/// Blocks per pair; their partial sums are added in order.
const GRAM_BLOCKS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Rows {
    row: [u64; MAX_ROWS],
    count: u32,
}

// SAFETY: a plain structure of numbers, laid out as the kernel's.
unsafe impl DeviceRepr for Rows {}

impl DeviceKernels {
    /// `row_0[range] = Σ c_k row_k[range]`, from the first row to the last. `coefficients` (rows,) of `f32`.
    pub(crate) fn combine(&self, rows: &[&Tensor], coefficients: &Tensor, range: &Range<usize>) -> Result<()> {
        expect(coefficients, DType::F32, rows.len(), "coefficients")?;
        let table = table(rows, std::slice::from_ref(range))?;
        let (coefficients, start, length) = (address(coefficients)?, range.start as u64, range.len() as u64);
        let function = self.function("combine")?;
        let stream = self.stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&table).arg(&coefficients).arg(&start).arg(&length);
        // SAFETY: `table` confirmed that the range is in every row.
        tensor_error(unsafe { launch.launch(grid(range.len(), 1)) }).map(drop)
    }

    /// The symmetric matrix of inner products over `ranges`, (rows, rows) of `f64`, always added in the same order.
    pub(crate) fn gram(&self, rows: &[&Tensor], ranges: &[Range<usize>]) -> Result<Tensor> {
        let table = table(rows, ranges)?;
        let pairs = rows.len() * (rows.len() + 1) / 2;
        // Without a range nothing would write them.
        let partials = match ranges {
            [] => self.device.alloc_zeros::<f64>(pairs * GRAM_BLOCKS)?,
            _ => self.unwritten::<f64>(pairs * GRAM_BLOCKS)?,
        };
        let gram = self.unwritten::<f64>(rows.len() * rows.len())?;
        let stream = self.stream();
        let (partial_sums, result) = (partials.device_ptr(&stream).0, gram.device_ptr(&stream).0);
        let function = self.function("gram_partials")?;
        for (index, range) in ranges.iter().enumerate() {
            // The first range writes the partial sums, the others add to them.
            let (start, length, accumulate) = (range.start as u64, range.len() as u64, i32::from(index > 0));
            let mut launch = stream.launch_builder(&function);
            launch.arg(&table).arg(&start).arg(&length).arg(&partial_sums).arg(&accumulate);
            // SAFETY: `table` confirmed that the range is in every row; there is a partial sum per pair and block.
            tensor_error(unsafe { launch.launch(blocks_of(GRAM_BLOCKS, pairs)) })?;
        }
        let function = self.function("gram_finish")?;
        let (blocks, size) = (count(GRAM_BLOCKS), count(rows.len()));
        let mut launch = stream.launch_builder(&function);
        launch.arg(&partial_sums).arg(&blocks).arg(&size).arg(&result);
        // SAFETY: a block per pair, and a place for each in the matrix.
        tensor_error(unsafe { launch.launch(blocks_of(pairs, 1)) })?;
        drop(partials);
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(gram, self.device.clone()));
        Ok(Tensor::from_storage(storage, (rows.len(), rows.len()), BackpropOp::none(), false))
    }
}

fn table(rows: &[&Tensor], ranges: &[Range<usize>]) -> Result<Rows> {
    if rows.is_empty() || rows.len() > MAX_ROWS {
        candle_core::bail!("a window of {} microbatches: the GPU combines 1 to {MAX_ROWS}", rows.len())
    }
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let mut table = Rows { row: [0; MAX_ROWS], count: count(rows.len()) };
    for (place, row) in table.row.iter_mut().zip(rows) {
        if row.dtype() != DType::F32 || row.elem_count() < end {
            candle_core::bail!("a row of a window: expected at least {end} elements of f32, found {row:?}")
        }
        *place = address(row)?;
    }
    Ok(table)
}
