//! What each output of a convolution sees along one side.

use candle_core::{Result, Tensor};

/// The window of a convolution along one side: output i sees `kernel` positions from i·`stride` − `padding` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Positions one output sees, at least 1.
    pub(crate) kernel: usize,
    /// Zeros before the first and after the last position (count).
    pub(crate) padding: usize,
    /// Positions from one output to the next, at least 1.
    pub(crate) stride: usize,
}

impl Window {
    /// The window that is centered on each position in turn; as many outputs as positions when `kernel` is odd.
    pub(crate) fn centered(kernel: usize) -> Self {
        Self { kernel, padding: kernel / 2, stride: 1 }
    }

    /// Outputs over `length` positions, (length + 2·padding − kernel) / stride + 1, for a kernel that fits.
    pub(crate) fn num_outputs(self, length: usize) -> usize {
        (length + 2 * self.padding).saturating_sub(self.kernel) / self.stride + 1
    }

    /// Whether each output sees the position of its own number and nothing else.
    pub(super) fn is_identity(self) -> bool {
        self == Self { kernel: 1, padding: 0, stride: 1 }
    }

    /// What each output sees: `x` (N, L, C) → rows (N·L', kernel·C) with the taps outside.
    pub(super) fn unfold(self, x: &Tensor) -> Result<Tensor> {
        let (num_samples, length, channels) = x.dims3()?;
        if self.is_identity() {
            return x.reshape((num_samples * length, channels));
        }
        let blocks = self.blocks(x)?;
        let taps: Vec<Tensor> = (0..=self.last_block())
            .map(|block| {
                let num_taps = self.stride.min(self.kernel - block * self.stride);
                self.slice(&blocks, block)?.narrow(1, 0, num_taps * channels)
            })
            .collect::<Result<_>>()?;
        let seen = Tensor::cat(&taps, 1)?;
        let num_outputs = self.num_outputs(length);
        let seen = seen.reshape((num_samples, self.num_blocks(length), self.kernel * channels))?;
        seen.narrow(1, 0, num_outputs)?.reshape((num_samples * num_outputs, self.kernel * channels))
    }

    /// What each output sees along the first side: `x` (N, H, W, C) → (N, H', W, kernel·C) with the taps outside.
    pub(super) fn unfold_outer(self, x: &Tensor) -> Result<Tensor> {
        if self.is_identity() {
            return Ok(x.clone());
        }
        let (num_samples, height, width, channels) = x.dims4()?;
        let (line, num_blocks) = (width * channels, self.num_blocks(height));
        let blocks = self.blocks(&x.reshape((num_samples, height, line))?)?;
        let taps: Vec<Tensor> = (0..self.kernel)
            .map(|tap| {
                let lines = self.slice(&blocks, tap / self.stride)?.narrow(1, tap % self.stride * line, line)?;
                lines.reshape((num_samples * num_blocks * width, channels))
            })
            .collect::<Result<_>>()?;
        let seen = Tensor::cat(&taps, 1)?;
        seen.reshape((num_samples, num_blocks, width, self.kernel * channels))?.narrow(1, 0, self.num_outputs(height))
    }

    /// `x` (N, L, C) with zeros around it → blocks of `stride` positions ((N·blocks + last), stride·C).
    ///
    /// Window i of a sample starts where its block i does, so that every tap is a slice of blocks. The samples lie behind
    /// one another and a slice runs through all of them: it needs no strides, and slices without are joined several times
    /// faster. The windows that reach into the next sample are cut off afterwards.
    fn blocks(self, x: &Tensor) -> Result<Tensor> {
        let (num_samples, length, channels) = x.dims3()?;
        let num_blocks = self.num_blocks(length);
        let positions = num_blocks * self.stride;
        let right = positions.saturating_sub(self.padding + length);
        let padded = x.pad_with_zeros(1, self.padding, right)?.narrow(1, 0, positions)?;
        let blocks = padded.reshape((num_samples * num_blocks, self.stride * channels))?;
        blocks.pad_with_zeros(0, 0, self.last_block())
    }

    /// The blocks in which the windows have their block `block`.
    fn slice(self, blocks: &Tensor, block: usize) -> Result<Tensor> {
        blocks.narrow(0, block, blocks.dim(0)? - self.last_block())
    }

    /// The last block that a window reaches into, counted from its first.
    fn last_block(self) -> usize {
        (self.kernel - 1) / self.stride
    }

    fn num_blocks(self, length: usize) -> usize {
        self.num_outputs(length) + self.last_block()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_as_many_outputs_as_places_it_fits_into() {
        for kernel in 1..=6 {
            assert!(kernel % 2 == 0 || (1..10).all(|length| Window::centered(kernel).num_outputs(length) == length));
            for (padding, stride) in (0..3).flat_map(|padding| (1..4).map(move |stride| (padding, stride))) {
                for length in (1..10).filter(|length| length + 2 * padding >= kernel) {
                    let places = (0..=length + 2 * padding - kernel).step_by(stride).count();
                    let window = Window { kernel, padding, stride };
                    assert_eq!(window.num_outputs(length), places, "{window:?} over {length}");
                }
            }
        }
    }
}
