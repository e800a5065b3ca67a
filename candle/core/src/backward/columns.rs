//! Gradients of convolutions of one group on a GPU: a product of matrices each, with what windows see as columns.
//!
//! candle's gradient of the input is a kernel that adds up one element after the other, and that of the weight a product for each channel,
//! with as many rows as a window has places.

use super::conv::Conv;
use super::direct::{fits, run, Kind};
use crate::{DType, Result, Tensor};

/// Most elements of columns, 2 GiB of `f32`: candle's own gradients take less memory.
const MAX_COLUMNS: usize = 1 << 29;

/// Whether [`gradients`] takes a convolution of `x` with `w`.
pub(super) fn takes(conv: &Conv, x: &Tensor, w: &Tensor) -> bool {
    let types = [DType::F16, DType::BF16, DType::F32, DType::F64];
    let Some(y) = conv.output(x.dims(), w.dims()) else { return false };
    let (each, dims) = windows(conv, x.dims(), w.dims(), y);
    let num_columns: usize = dims[1].iter().product::<usize>() * y[0] * y[2] * y[3];
    conv.groups == 1
        && x.device().is_cuda()
        && types.contains(&x.dtype())
        && w.dtype() == x.dtype()
        && w.dim(1).is_ok_and(|inputs| inputs == each.groups)
        && (1..MAX_COLUMNS).contains(&num_columns)
        && fits(&each, dims.each_ref().map(|dims| &dims[..]))
}

/// Those of x (N, C, H, W) and w (O, C, h, w), of that of the result (N, O, rows, columns), where they are wanted.
pub(super) fn gradients(
    conv: &Conv,
    (x, w, g): (&Tensor, &Tensor, &Tensor),
    wanted: (bool, bool),
) -> Result<Option<(Option<Tensor>, Option<Tensor>)>> {
    if !takes(conv, x, w) {
        return Ok(None);
    }
    let (samples, outputs, rows, columns) = g.dims4()?;
    let (each, dims) = windows(conv, x.dims(), w.dims(), [samples, outputs, rows, columns]);
    let dims = dims.each_ref().map(|dims| &dims[..]);
    let by_output = g.transpose(0, 1)?.reshape((outputs, samples * rows * columns))?;
    let (mut input, mut weight) = (None, None);
    if wanted.0 {
        let given = w.reshape((outputs, ()))?.t()?.matmul(&by_output)?;
        input = run(&each, Kind::Folded, &[&given], dims)?;
    }
    if wanted.1 {
        if let Some(seen) = run(&each, Kind::Seen, &[x], dims)? {
            weight = Some(by_output.matmul(&seen.t()?)?.reshape(w.dims())?);
        }
    }
    Ok((input.is_some() == wanted.0 && weight.is_some() == wanted.1).then_some((input, weight)))
}

/// The windows of a convolution over each channel for itself, and the sizes of x, of the window and of what it gives.
fn windows(conv: &Conv, x: &[usize], w: &[usize], y: [usize; 4]) -> (Conv, [[usize; 4]; 3]) {
    let each = Conv { vertical: conv.vertical, horizontal: conv.horizontal, groups: x[1] };
    let dims = [[x[0], x[1], x[2], x[3]], [x[1], 1, w[2], w[3]], [y[0], x[1], y[2], y[3]]];
    (each, dims)
}
