//! Norms by run, and clipping by domain.

use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Result, Storage, Tensor};
use cudarc::driver::{DevicePtr as _, DeviceRepr, PushKernelArg as _};

use super::args::NormRun;
use super::module::{DeviceKernels, blocks_of, count, grid, single};
use crate::graph::cuda::{address, tensor_error};

const MAX_RUNS: usize = 32;
/// Blocks per run; their partial sums are added in order.
const BLOCKS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Runs {
    start: [u64; MAX_RUNS],
    length: [u64; MAX_RUNS],
}

// SAFETY: a plain structure of numbers, laid out as the kernel's.
unsafe impl DeviceRepr for Runs {}

impl DeviceKernels {
    /// Squared norms before clipping: the main one, then one per owner, (1 + owners,) of `f64`. With `max_norm` every
    /// domain of `gradient` is then scaled in place to at most this norm.
    pub(crate) fn measure_and_clip(
        &self,
        gradient: &Tensor,
        runs: &[NormRun],
        num_owners: usize,
        max_norm: Option<f64>,
    ) -> Result<Tensor> {
        let end = runs.iter().map(|run| run.range.end).max().unwrap_or(0);
        let fits = gradient.dtype() == DType::F32 && end <= gradient.elem_count();
        if !fits || runs.iter().any(|run| run.owner as usize >= num_owners) {
            candle_core::bail!("norms of {end} elements of {num_owners} owners do not fit {gradient:?}")
        }
        let stream = self.stream();
        let device = gradient.device();
        let flat = address(gradient)?;
        let norms = self.device.alloc_zeros::<f64>(1 + num_owners)?;
        let partials = self.unwritten::<f64>((runs.len() * BLOCKS).max(1))?;
        let squares = self.unwritten::<f64>(runs.len().max(1))?;
        let factors = self.unwritten::<f32>(runs.len().max(1))?;
        if !runs.is_empty() {
            let (partials, squares) = (partials.device_ptr(&stream).0, squares.device_ptr(&stream).0);
            let factors = factors.device_ptr(&stream).0;
            for (table, first, rows, _) in tables(runs) {
                let function = self.function("square_partials")?;
                let mut launch = stream.launch_builder(&function);
                launch.arg(&table).arg(&flat).arg(&first).arg(&partials);
                // SAFETY: every run is inside the gradient, as checked above; a partial sum per run and block.
                tensor_error(unsafe { launch.launch(blocks_of(BLOCKS, rows)) })?;
            }
            let function = self.function("square_finish")?;
            let blocks = count(BLOCKS);
            let mut launch = stream.launch_builder(&function);
            launch.arg(&partials).arg(&blocks).arg(&squares);
            // SAFETY: a block and a place per run.
            tensor_error(unsafe { launch.launch(blocks_of(runs.len(), 1)) })?;

            // Constants of the layout: uploaded once, then found in the cache of the region.
            let owners: Vec<u32> = runs.iter().map(|run| run.owner).collect();
            let domains: Vec<u32> = runs.iter().map(|run| run.domain).collect();
            let owners = Tensor::from_vec(owners, runs.len(), device)?;
            let domains = Tensor::from_vec(domains, runs.len(), device)?;
            let (owner, domain) = (address(&owners)?, address(&domains)?);
            let (num_runs, num_owners) = (count(runs.len()), count(num_owners));
            let (max, result) = (max_norm.unwrap_or(f64::INFINITY), norms.device_ptr(&stream).0);
            let function = self.function("norms_finish")?;
            let mut launch = stream.launch_builder(&function);
            launch.arg(&squares).arg(&owner).arg(&domain).arg(&num_runs).arg(&num_owners);
            launch.arg(&max).arg(&result).arg(&factors);
            // SAFETY: owners and domains per run, a norm per owner and one more, a factor per run.
            tensor_error(unsafe { launch.launch(single()) })?;
            if max_norm.is_some() {
                for (table, first, rows, longest) in tables(runs) {
                    let function = self.function("scale_runs")?;
                    let mut launch = stream.launch_builder(&function);
                    launch.arg(&table).arg(&flat).arg(&first).arg(&factors);
                    // SAFETY: as for the squares.
                    tensor_error(unsafe { launch.launch(grid(longest, rows)) })?;
                }
            }
        }
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(norms, self.device.clone()));
        Ok(Tensor::from_storage(storage, 1 + num_owners, BackpropOp::none(), false))
    }
}

/// The runs in tables, each with the index of its first run, its number of runs and the longest of them.
fn tables(runs: &[NormRun]) -> impl Iterator<Item = (Runs, u32, usize, usize)> {
    runs.chunks(MAX_RUNS).enumerate().map(|(index, chunk)| {
        let mut table = Runs { start: [0; MAX_RUNS], length: [0; MAX_RUNS] };
        for (place, run) in chunk.iter().enumerate() {
            table.start[place] = run.range.start as u64;
            table.length[place] = run.range.len() as u64;
        }
        let longest = chunk.iter().map(|run| run.range.len()).max().unwrap_or(0);
        (table, count(index * MAX_RUNS), chunk.len(), longest)
    })
}
