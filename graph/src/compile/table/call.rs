//! The arguments of a launch, read by what the parameters are.

use super::decoded::Use;
use super::entries::Entry;
use super::parameter::Parameter;
use crate::compile::kernel::LaunchShape;

/// Counts past this are refused: kernels count in 32 bits.
pub(super) const MAX_COUNT: usize = 1 << 31;

/// A launch whose arguments have the lengths of the parameters.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) launch: &'a LaunchShape,
    parameters: &'a [Parameter],
    arguments: &'a [Vec<u8>],
}

impl<'a> Call<'a> {
    pub(super) fn new(entry: &'a Entry, launch: &'a LaunchShape, arguments: &'a [Vec<u8>]) -> Option<Self> {
        let is_fitting = entry.parameters.len() == arguments.len()
            && entry
                .parameters
                .iter()
                .zip(arguments)
                .all(|(parameter, argument)| parameter.size_bytes() == argument.len());
        is_fitting.then_some(Self { launch, parameters: &entry.parameters, arguments })
    }

    /// The bytes of an argument as a little-endian number.
    fn word(&self, index: usize) -> Option<u64> {
        let argument = self.arguments.get(index)?;
        let mut bytes = [0; 8];
        bytes.get_mut(..argument.len())?.copy_from_slice(argument);
        Some(u64::from_le_bytes(bytes))
    }

    /// A count of any integer type; none where it is negative or too large for the kernel.
    pub(super) fn count(&self, index: usize) -> Option<usize> {
        let count = usize::try_from(self.word(index)?).ok()?;
        (count <= MAX_COUNT).then_some(count)
    }

    /// The bytes of a number.
    pub(super) fn bytes(&self, index: usize) -> Option<&'a [u8]> {
        self.arguments.get(index).map(Vec::as_slice)
    }

    /// An address; none where it is null.
    pub(super) fn address(&self, index: usize) -> Option<u64> {
        self.word(index).filter(|&address| address != 0)
    }

    /// Bytes of `count` elements of an argument.
    pub(super) fn bytes_of(&self, index: usize, count: usize) -> Option<usize> {
        count.checked_mul(self.parameters.get(index)?.element()?.size_bytes())
    }

    /// Reads the first `count` elements of an argument that is not null.
    pub(super) fn reading(&self, index: usize, count: usize) -> Option<Use> {
        Some(Use::reading(index, self.address(index)?, self.bytes_of(index, count)?))
    }

    /// Writes each of the first `count` elements of an argument that is not null.
    pub(super) fn writing(&self, index: usize, count: usize) -> Option<Use> {
        Some(Use::writing(index, self.address(index)?, self.bytes_of(index, count)?))
    }

    /// Writes some of the first `count` elements of an argument that is not null.
    pub(super) fn writing_some(&self, index: usize, count: usize) -> Option<Use> {
        Some(Use::writing_some(index, self.address(index)?, self.bytes_of(index, count)?))
    }

    /// Whether blocks and threads lie in one dimension, and there are at least `count` threads.
    pub(super) fn has_threads(&self, count: usize) -> bool {
        let threads = u64::from(self.launch.grid[0]) * u64::from(self.launch.block[0]);
        self.is_one_dimensional() && threads >= count as u64
    }

    pub(super) fn is_one_dimensional(&self) -> bool {
        self.launch.grid[1..] == [1, 1] && self.launch.block[1..] == [1, 1]
    }
}

/// The product of counts, where a kernel can count that far.
pub(super) fn product(counts: &[usize]) -> Option<usize> {
    let product = counts.iter().try_fold(1_usize, |product, &count| product.checked_mul(count))?;
    (product <= MAX_COUNT).then_some(product)
}
