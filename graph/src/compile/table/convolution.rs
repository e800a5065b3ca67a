//! Convolutions, pooling and resizing: one thread per element of the output.

use super::call::{Call, product};
use super::decoded::{Decoded, Use};
use super::layout::layouts;
use crate::compile::lift::Memory;

fn of(uses: Vec<Use>) -> Option<Decoded> {
    Some(Decoded { uses, pointwise: None, reduced: None })
}

/// Input and kernel by their layouts, and an output of `spatial` elements per sample and output channel.
fn convolution(
    call: &Call<'_>,
    memory: &mut dyn Memory,
    [info, num_dims, spatial]: [usize; 3],
    is_transposed: bool,
) -> Option<Decoded> {
    let (layouts, reading) = layouts(call, memory, info, [num_dims, 2])?;
    let [input, kernel] = layouts.as_slice() else { return None };
    let (channels, outputs) = if is_transposed { (0, 1) } else { (1, 0) };
    if kernel.dims[channels] != input.dims[1] {
        return None;
    }
    let numel = product(&[input.dims[0], kernel.dims[outputs], spatial])?;
    if !call.has_threads(numel) {
        return None;
    }
    let input = call.reading(info + 1, input.extent()?)?;
    let kernel = call.reading(info + 2, kernel.extent()?)?;
    of(vec![reading, input, kernel, call.writing(info + 3, numel)?])
}

pub(super) fn conv1d(call: &Call<'_>, memory: &mut dyn Memory, is_transposed: bool) -> Option<Decoded> {
    let info = if is_transposed { 6 } else { 5 };
    convolution(call, memory, [info, 3, call.count(1)?], is_transposed)
}

pub(super) fn conv2d(call: &Call<'_>, memory: &mut dyn Memory, is_transposed: bool) -> Option<Decoded> {
    let info = if is_transposed { 7 } else { 6 };
    let spatial = product(&[call.count(1)?, call.count(2)?])?;
    convolution(call, memory, [info, 4, spatial], is_transposed)
}

/// One input by its layout, and an output of which every element is written.
fn map(call: &Call<'_>, reading: Use, info: usize, extent: usize, numel: usize) -> Option<Decoded> {
    of(vec![reading, call.reading(info + 1, extent)?, call.writing(info + 2, numel)?])
}

/// A thread writes the elements of one position of the kernel window.
pub(super) fn im2col1d(call: &Call<'_>, memory: &mut dyn Memory) -> Option<Decoded> {
    let (layouts, reading) = layouts(call, memory, 6, [3, 1])?;
    let input = layouts.first()?;
    let num_threads = product(&[input.dims[0], call.count(1)?, input.dims[1]])?;
    if num_threads != call.count(0)? || !call.has_threads(num_threads) {
        return None;
    }
    map(call, reading, 6, input.extent()?, product(&[num_threads, call.count(2)?])?)
}

pub(super) fn im2col(call: &Call<'_>, memory: &mut dyn Memory) -> Option<Decoded> {
    let (layouts, reading) = layouts(call, memory, 8, [4, 1])?;
    let input = layouts.first()?;
    let window = product(&[call.count(1)?, call.count(2)?, call.count(3)?, call.count(4)?])?;
    let numel = product(&[input.dims[0], input.dims[1], window])?;
    if numel != call.count(0)? || !call.has_threads(numel) {
        return None;
    }
    map(call, reading, 8, input.extent()?, numel)
}

pub(super) fn col2im1d(call: &Call<'_>) -> Option<Decoded> {
    let numel = call.count(0)?;
    let [l_out, l_in, c_out, k_size] = [1, 2, 3, 4].map(|argument| call.count(argument));
    let (l_out, l_in, c_out, k_size) = (l_out?, l_in?, c_out?, k_size?);
    let sample = product(&[c_out, l_out])?;
    if sample == 0 || !numel.is_multiple_of(sample) || !call.has_threads(numel) {
        return None;
    }
    let source = product(&[numel / sample, l_in, c_out, k_size])?;
    of(vec![call.reading(6, source)?, call.writing(7, numel)?])
}

pub(super) fn pool2d(call: &Call<'_>, memory: &mut dyn Memory) -> Option<Decoded> {
    let (layouts, reading) = layouts(call, memory, 5, [4, 1])?;
    let input = layouts.first()?;
    let size = |dim: usize, window: usize, stride: usize| {
        let steps = input.dims[dim].checked_sub(call.count(window)?)?.checked_div(call.count(stride)?)?;
        Some(steps + 1)
    };
    let numel = product(&[input.dims[0], input.dims[1], size(2, 1, 3)?, size(3, 2, 4)?])?;
    if !call.has_threads(numel) {
        return None;
    }
    map(call, reading, 5, input.extent()?, numel)
}

pub(super) fn upsample(call: &Call<'_>, memory: &mut dyn Memory, info: usize) -> Option<Decoded> {
    let (layouts, reading) = layouts(call, memory, info, [4, 1])?;
    let input = layouts.first()?;
    let numel = product(&[input.dims[0], input.dims[1], call.count(0)?, call.count(1)?])?;
    if !call.has_threads(numel) {
        return None;
    }
    map(call, reading, info, input.extent()?, numel)
}
