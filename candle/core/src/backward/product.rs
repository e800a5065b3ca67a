//! Convolutions whose windows lie side by side, those of one place among them: products of matrices, without a sum over the places of the
//! window and, for one place, without a copy.

use super::conv::Conv;
use crate::{DType, Result, Tensor};

/// Sizes of a convolution of x (N, I, rows·h, columns·w) with w (O, I, h, w) that gives (N, O, rows, columns).
pub(super) struct Product {
    samples: usize,
    channels: usize,
    outputs: usize,
    moves: [usize; 2],
    window: [usize; 2],
}

impl Product {
    /// None where windows overlap, leave something out or begin outside, where there is more than one group, or where candle multiplies no
    /// matrices of the type.
    pub(super) fn of(conv: &Conv, x: &Tensor, w: &Tensor) -> Option<Self> {
        let (&[samples, channels, height, width], &[outputs, inputs, tall, wide]) = (x.dims(), w.dims()) else {
            return None;
        };
        let moves = |(padding, stride, dilation): (usize, usize, usize), size: usize, window: usize| {
            let is_dense = padding == 0 && stride == window && (dilation == 1 || window == 1);
            (is_dense && window > 0 && size >= window && size % window == 0).then(|| size / window)
        };
        let moves = [moves(conv.vertical, height, tall)?, moves(conv.horizontal, width, wide)?];
        let types = [DType::F16, DType::F32, DType::F64];
        let has_products = types.contains(&x.dtype()) || (x.device().is_cuda() && x.dtype() == DType::BF16);
        (conv.groups == 1 && inputs == channels && has_products).then_some(Self {
            samples,
            channels,
            outputs,
            moves,
            window: [tall, wide],
        })
    }

    fn num_places(&self) -> usize {
        self.moves[0] * self.moves[1]
    }

    /// Elements that a window sees.
    fn num_seen(&self) -> usize {
        self.channels * self.window[0] * self.window[1]
    }

    /// The result.
    pub(super) fn output(&self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        let found = self.for_each_sample(&self.weights(w)?)?.matmul(&columns(&self.seen(x)?)?)?;
        found.reshape((self.samples, self.outputs, self.moves[0], self.moves[1]))
    }

    /// The gradient of x, of that of the result.
    pub(super) fn input_gradient(&self, w: &Tensor, g: &Tensor) -> Result<Tensor> {
        let found = self.for_each_sample(&self.weights(w)?.t()?)?.matmul(&columns(g)?)?;
        let ([rows, across], [tall, wide]) = (self.moves, self.window);
        let by_place = found.reshape((self.samples, self.channels, tall, wide, rows, across))?;
        // Where a window has one place these are the elements as they lie.
        by_place.permute((0, 1, 4, 2, 5, 3))?.reshape((self.samples, self.channels, rows * tall, across * wide))
    }

    /// The gradient of w, of that of the result.
    pub(super) fn weight_gradient(&self, x: &Tensor, w: &Tensor, g: &Tensor) -> Result<Tensor> {
        self.by_place(g)?.t()?.matmul(&self.by_place(&self.seen(x)?)?)?.reshape(w.dims())
    }

    fn weights(&self, w: &Tensor) -> Result<Tensor> {
        w.reshape((self.outputs, self.num_seen()))
    }

    fn for_each_sample(&self, matrix: &Tensor) -> Result<Tensor> {
        let (rows, columns) = matrix.dims2()?;
        matrix.unsqueeze(0)?.expand((self.samples, rows, columns))
    }

    /// What each window sees: (N, I·h·w, rows, columns).
    fn seen(&self, x: &Tensor) -> Result<Tensor> {
        let ([rows, across], [tall, wide]) = (self.moves, self.window);
        if self.window == [1, 1] {
            return Ok(x.clone());
        }
        let by_window = x.reshape((self.samples, self.channels, rows, tall, across, wide))?;
        by_window.permute((0, 1, 3, 5, 2, 4))?.reshape((self.samples, self.num_seen(), rows, across))
    }

    /// `x` (N, C, rows, columns) as (N·rows·columns, C), where possible without a copy.
    fn by_place(&self, x: &Tensor) -> Result<Tensor> {
        let channels = x.dim(1)?;
        if self.samples == 1 {
            return columns(x)?.squeeze(0)?.t();
        }
        x.permute((0, 2, 3, 1))?.reshape((self.samples * self.num_places(), channels))
    }
}

/// `x` (N, C, rows, columns) as (N, C, rows·columns), without a copy also where the channels of a place lie side by side.
fn columns(x: &Tensor) -> Result<Tensor> {
    let (samples, channels, rows, across) = x.dims4()?;
    let channels_last = x.permute((0, 2, 3, 1))?;
    if !x.is_contiguous() && channels_last.is_contiguous() {
        return channels_last.reshape((samples, rows * across, channels))?.transpose(1, 2);
    }
    x.reshape((samples, channels, rows * across))
}
