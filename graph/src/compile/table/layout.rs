//! Dimensions and strides that a kernel reads from device memory.

use super::call::{Call, MAX_COUNT, product};
use super::decoded::Use;
use crate::compile::lift::Memory;

/// More dimensions than any tensor has: a larger number is no number of dimensions.
const MAX_DIMS: usize = 16;

/// Dimensions and strides of a tensor, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) dims: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

impl Layout {
    /// Number of positions.
    pub(super) fn len(&self) -> Option<usize> {
        product(&self.dims)
    }

    /// Distance from the first element to one past the last.
    pub(super) fn extent(&self) -> Option<usize> {
        if self.dims.contains(&0) {
            return Some(0);
        }
        let mut last = 0_usize;
        for (&dim, &stride) in self.dims.iter().zip(&self.strides) {
            last = last.checked_add((dim - 1).checked_mul(stride)?)?;
        }
        (last < MAX_COUNT).then_some(last + 1)
    }

    /// Whether positions in order are elements in order.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&dim, &stride) in self.dims.iter().zip(&self.strides).rev() {
            if dim > 1 && stride != expected {
                return false;
            }
            expected *= dim;
        }
        true
    }

    /// Whether every element of the extent has one position: contiguous but for the order of dimensions.
    pub(super) fn is_dense(&self) -> bool {
        let mut order: Vec<(usize, usize)> =
            self.strides.iter().copied().zip(self.dims.iter().copied()).filter(|&(_, dim)| dim != 1).collect();
        order.sort_unstable();
        let mut expected = 1;
        order.into_iter().all(|(stride, dim)| {
            let is_next = stride == expected;
            expected *= dim;
            is_next
        })
    }
}

/// Dimensions and the strides of some operands, as most kernels take them.
#[derive(Debug)]
pub(super) struct Info {
    /// Shape of the positions.
    pub(super) shape: Vec<usize>,
    /// The operands, in order.
    pub(super) layouts: Vec<Layout>,
    /// The reading of the dimensions and strides themselves.
    pub(super) reading: Option<Use>,
}

impl Info {
    /// Reads dimensions and the strides of `num_layouts` operands; null stands for contiguous operands.
    pub(super) fn read(
        call: &Call<'_>,
        memory: &mut dyn Memory,
        [numel, num_dims, argument]: [usize; 3],
        num_layouts: usize,
    ) -> Option<Self> {
        let (numel, num_dims) = (call.count(numel)?, call.count(num_dims)?);
        let Some(address) = call.address(argument) else {
            let layout = Layout { dims: vec![numel], strides: vec![1] };
            return Some(Self { shape: vec![numel], layouts: vec![layout; num_layouts], reading: None });
        };
        if num_dims > MAX_DIMS {
            return None;
        }
        let words = words(memory, address, num_dims * (1 + num_layouts))?;
        let (dims, strides) = words.split_at(num_dims);
        let strides_of = |index: usize| strides[index * num_dims..(index + 1) * num_dims].to_vec();
        let layout = |index| Layout { dims: dims.to_vec(), strides: strides_of(index) };
        let layouts: Vec<Layout> = (0..num_layouts).map(layout).collect();
        let reading = (!words.is_empty()).then(|| Use::reading(argument, address, words.len() * 8));
        (product(dims)? == numel).then(|| Self { shape: dims.to_vec(), layouts, reading })
    }
}

/// Numbers in device memory that no kernel can take for a count are none.
pub(super) fn words(memory: &mut dyn Memory, address: u64, count: usize) -> Option<Vec<usize>> {
    if count == 0 {
        return Some(Vec::new());
    }
    let words = memory.words(address, count).filter(|words| words.len() == count)?;
    words.into_iter().map(|word| usize::try_from(word).ok().filter(|&count| count <= MAX_COUNT)).collect()
}

/// The layouts that convolutions and pooling read: dimensions and strides, one after the other, `num_dims` each.
pub(super) fn layouts(
    call: &Call<'_>,
    memory: &mut dyn Memory,
    argument: usize,
    [num_dims, num_layouts]: [usize; 2],
) -> Option<(Vec<Layout>, Use)> {
    let address = call.address(argument)?;
    let words = words(memory, address, 2 * num_dims * num_layouts)?;
    let layouts = words.chunks_exact(2 * num_dims).map(|chunk| {
        let (dims, strides) = chunk.split_at(num_dims);
        Layout { dims: dims.to_vec(), strides: strides.to_vec() }
    });
    Some((layouts.collect(), Use::reading(argument, address, words.len() * 8)))
}
