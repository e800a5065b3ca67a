//! Windows that move over the last two dimensions: what each of their places sees, and the way back.

use crate::{Result, Tensor};

/// A window: its size, its steps, the distance of its places, and how often it moves, each (vertically, horizontally).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) size: (usize, usize),
    pub(crate) stride: (usize, usize),
    pub(crate) dilation: (usize, usize),
    pub(crate) moves: (usize, usize),
}

impl Window {
    /// Its places, row by row.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let (height, width) = self.size;
        (0..height).flat_map(move |i| (0..width).map(move |j| (i, j)))
    }

    /// How far all its places reach, with the rest of the last steps.
    fn extent(&self) -> (usize, usize) {
        (
            self.dilation.0 * (self.size.0 - 1) + self.stride.0 * self.moves.0,
            self.dilation.1 * (self.size.1 - 1) + self.stride.1 * self.moves.1,
        )
    }

    /// `x` (N, C, H, W) with zeros around it, `padding` before and as many after as the window reaches.
    pub(crate) fn pad(&self, x: &Tensor, padding: (usize, usize)) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let after = |extent: usize, size: usize, padding: usize| extent.saturating_sub(size + padding).max(padding);
        let extent = self.extent();
        x.pad_with_zeros(2, padding.0, after(extent.0, height, padding.0))?.pad_with_zeros(
            3,
            padding.1,
            after(extent.1, width, padding.1),
        )
    }

    /// What the place (i, j) sees of a padded tensor (N, C, H, W) while the window moves: (N, C, moves).
    pub(crate) fn see(&self, padded: &Tensor, (i, j): (usize, usize)) -> Result<Tensor> {
        let (n, c, _, _) = padded.dims4()?;
        let ((down, right), (rows, columns)) = (self.stride, self.moves);
        padded
            .narrow(2, i * self.dilation.0, down * rows)?
            .narrow(3, j * self.dilation.1, right * columns)?
            .reshape((n, c, rows, down, columns, right))?
            .narrow(3, 0, 1)?
            .narrow(5, 0, 1)?
            .reshape((n, c, rows, columns))
    }

    /// `seen` (N, C, moves) at the places where (i, j) saw it, zeros elsewhere: (N, C, height, width) of the padded tensor.
    pub(crate) fn put(&self, seen: &Tensor, (i, j): (usize, usize), (height, width): (usize, usize)) -> Result<Tensor> {
        let (n, c, rows, columns) = seen.dims4()?;
        let (down, right) = self.stride;
        let (top, left) = (i * self.dilation.0, j * self.dilation.1);
        seen.reshape((n, c, rows, 1, columns, 1))?
            .pad_with_zeros(3, 0, down - 1)?
            .pad_with_zeros(5, 0, right - 1)?
            .reshape((n, c, rows * down, columns * right))?
            .pad_with_zeros(2, top, height - top - rows * down)?
            .pad_with_zeros(3, left, width - left - columns * right)
    }
}
