//! Pooling with any window and stride: a sum over places of the window, on a GPU one kernel with the same bits.

use super::window::Window;
use crate::{Result, Tensor};

fn window(grad: &Tensor, size: (usize, usize), stride: (usize, usize)) -> Result<Window> {
    let (_, _, rows, columns) = grad.dims4()?;
    Ok(Window { size, stride, dilation: (1, 1), moves: (rows, columns) })
}

/// Sums what each place gives back, of the size of `arg`.
fn back(
    arg: &Tensor,
    padded: &Tensor,
    window: Window,
    mut of: impl FnMut((usize, usize)) -> Result<Tensor>,
) -> Result<Tensor> {
    let (_, _, height, width) = arg.dims4()?;
    let (_, _, padded_height, padded_width) = padded.dims4()?;
    let mut sum: Option<Tensor> = None;
    for place in window.places() {
        let part = window.put(&of(place)?, place, (padded_height, padded_width))?;
        sum = Some(match sum {
            None => part,
            Some(sum) => (sum + part)?,
        });
    }
    match sum {
        None => arg.zeros_like(),
        Some(sum) => sum.narrow(2, 0, height)?.narrow(3, 0, width)?.contiguous(),
    }
}

/// The gradient of `arg` by one kernel; none where there is no such kernel.
#[cfg(feature = "cuda")]
fn direct(
    kind: super::direct::Kind,
    operands: &[&Tensor],
    (arg, grad): (&Tensor, &Tensor),
    (size, stride): ((usize, usize), (usize, usize)),
) -> Result<Option<Tensor>> {
    let groups = arg.dim(1)?;
    let conv = super::conv::Conv { vertical: (0, stride.0, 1), horizontal: (0, stride.1, 1), groups };
    super::direct::run(&conv, kind, operands, [arg.dims(), &[groups, 1, size.0, size.1], grad.dims()])
}

/// The gradient of `arg`: each element of a window has the same part.
pub(crate) fn avg_pool2d(arg: &Tensor, grad: &Tensor, size: (usize, usize), stride: (usize, usize)) -> Result<Tensor> {
    let part = (grad / (size.0 * size.1) as f64)?;
    #[cfg(feature = "cuda")]
    if let Some(found) = direct(super::direct::Kind::MeanGradient, &[&part], (arg, grad), (size, stride))? {
        return Ok(found);
    }
    let window = window(grad, size, stride)?;
    let padded = window.pad(&arg.detach(), (0, 0))?;
    back(arg, &padded, window, |_| Ok(part.clone()))
}

/// The gradient of `arg`: the first of the largest elements of a window has it all.
pub(crate) fn max_pool2d(
    arg: &Tensor,
    node: &Tensor,
    grad: &Tensor,
    size: (usize, usize),
    stride: (usize, usize),
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if let Some(found) = direct(super::direct::Kind::MaxGradient, &[arg, node, grad], (arg, grad), (size, stride))? {
        return Ok(found);
    }
    let window = window(grad, size, stride)?;
    let padded = window.pad(&arg.detach(), (0, 0))?;
    let node = node.detach();
    let mut open = grad.contiguous()?;
    back(arg, &padded, window, |place| {
        let is_largest = window.see(&padded, place)?.eq(&node)?;
        let nothing = open.zeros_like()?;
        let given = is_largest.where_cond(&open, &nothing)?;
        open = is_largest.where_cond(&nothing, &open)?;
        Ok(given)
    })
}
