//! Grouped convolutions as one operation, and those of one dimension, transposed ones too.
//!
//! A gradient is a sum over the places of the kernel, not over groups: a depthwise convolution with a 7 × 7 kernel takes 49 steps,
//! however many channels it has.

use std::sync::Arc;

use super::product::Product;
use super::window::Window;
use crate::op::{BackpropOp, Op};
use crate::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, D};

/// Padding, stride and dilation of one dimension.
type Steps = (usize, usize, usize);

/// A convolution of `arg` (N, C, …) with `kernel` in `groups` by one kernel or product of a GPU; none where that is not asked for, or not possible.
pub(crate) fn direct(arg: &Tensor, kernel: &Tensor, steps: Steps, groups: usize) -> Result<Option<Tensor>> {
    #[cfg(feature = "cuda")]
    if crate::grouped::is_direct() && arg.device().is_cuda() {
        let conv = Conv::of(arg, steps, groups);
        let (x, w) = (flat(&arg.detach())?, flat(&kernel.detach())?);
        let found = match Product::of(&conv, &x, &w) {
            Some(product) => Some(product.output(&x, &w)?),
            None => {
                let Some(dims) = conv.output(x.dims(), w.dims()) else { return Ok(None) };
                super::direct::run(&conv, super::direct::Kind::Output, &[&x, &w], [x.dims(), w.dims(), &dims])?
            }
        };
        return found.map(|found| if arg.rank() == 4 { Ok(found) } else { found.squeeze(2) }).transpose();
    }
    Ok(None)
}

/// One dimension as two of which the first has one place.
fn flat(tensor: &Tensor) -> Result<Tensor> {
    if tensor.rank() == 3 {
        tensor.unsqueeze(2)
    } else {
        Ok(tensor.clone())
    }
}

/// `result` as that of a convolution of `arg` (N, C, …) with `kernel` in `groups`, with one or two dimensions.
pub(crate) fn grouped(result: &Tensor, arg: &Tensor, kernel: &Tensor, steps: Steps, groups: usize) -> Result<Tensor> {
    let op = BackpropOp::new2(arg, kernel, |arg, kernel| {
        Op::CustomOp2(arg, kernel, Arc::new(Box::new(Grouped { steps, groups })))
    });
    Ok(result.recorded(op))
}

struct Grouped {
    steps: Steps,
    groups: usize,
}

impl CustomOp2 for Grouped {
    fn name(&self) -> &'static str {
        "grouped-convolution"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        crate::bail!("{} is recorded only", self.name())
    }

    fn bwd(
        &self,
        arg: &Tensor,
        kernel: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        grouped_backward(arg, kernel, grad, self.steps, self.groups)
    }
}

/// Gradients of a convolution of `arg` (N, C, …) with `kernel` in `groups`, of those that something asks for.
pub(crate) fn grouped_backward(
    arg: &Tensor,
    kernel: &Tensor,
    grad: &Tensor,
    steps: Steps,
    groups: usize,
) -> Result<(Option<Tensor>, Option<Tensor>)> {
    let wanted = (arg.track_op(), kernel.track_op());
    let (arg, kernel) = (arg.detach(), kernel.detach());
    let conv = Conv::of(&arg, steps, groups);
    let (x, w, g) = (flat(&arg)?, flat(&kernel)?, flat(grad)?);
    #[cfg(feature = "cuda")]
    if Product::of(&conv, &x, &w).is_none() {
        if let Some((input, weight)) = super::columns::gradients(&conv, (&x, &w, &g), wanted)? {
            let (input, weight) =
                (input.map(|input| input.reshape(arg.dims())), weight.map(|weight| weight.reshape(kernel.dims())));
            return Ok((input.transpose()?, weight.transpose()?));
        }
    }
    let input = wanted.0.then(|| conv.input(&x, &w, &g)?.reshape(arg.dims())).transpose()?;
    let weight = wanted.1.then(|| conv.weight(&x, &w, &g)?.reshape(kernel.dims())).transpose()?;
    Ok((input, weight))
}

/// Whether gradients of a convolution of `arg` with `kernel` in two dimensions are computed here: products give them, as on a GPU all but
/// those of huge ones, or a stride leaves another rest of the height than of the width, which candle's own backward pass does not allow for.
pub(crate) fn is_replaced(arg: &Tensor, kernel: &Tensor, steps: Steps) -> Result<bool> {
    let (padding, stride, dilation) = steps;
    let rest =
        |dim| Ok::<_, crate::Error>((arg.dim(dim)? + 2 * padding - dilation * (kernel.dim(dim)? - 1) - 1) % stride);
    let conv = Conv::of(arg, steps, 1);
    #[cfg(feature = "cuda")]
    if super::columns::takes(&conv, arg, kernel) {
        return Ok(true);
    }
    Ok(Product::of(&conv, arg, kernel).is_some() || rest(2)? != rest(3)?)
}

/// Gradients of a transposed convolution of `arg` (N, I, L) with `kernel` (I, O, K): those of both.
pub(crate) fn conv_transpose1d(arg: &Tensor, kernel: &Tensor, grad: &Tensor, steps: Steps) -> Result<(Tensor, Tensor)> {
    let (padding, stride, dilation) = steps;
    let (arg, kernel, grad) = (arg.detach(), kernel.detach(), grad.contiguous()?);
    // It is the transpose of a convolution, which is therefore its gradient; output padding adds what that one does not see.
    let input = grad.conv1d(&kernel, padding, stride, dilation, 1)?.narrow(D::Minus1, 0, arg.dim(D::Minus1)?)?;
    let conv = Conv { vertical: (0, 1, 1), horizontal: steps, groups: 1 };
    let weight = conv.weight(&grad.unsqueeze(2)?, &kernel.unsqueeze(2)?, &arg.unsqueeze(2)?)?;
    Ok((input.contiguous()?, weight.reshape(kernel.dims())?))
}

/// A convolution of x (N, groups·I, H, W) with w (groups·O, I, h, w) that gives g (N, groups·O, …).
pub(super) struct Conv {
    pub(super) vertical: Steps,
    pub(super) horizontal: Steps,
    pub(super) groups: usize,
}

impl Conv {
    fn of(arg: &Tensor, steps: Steps, groups: usize) -> Self {
        Self { vertical: if arg.rank() == 3 { (0, 1, 1) } else { steps }, horizontal: steps, groups }
    }

    /// (N, groups·O, …); none where the kernel is larger than the input.
    #[cfg(feature = "cuda")]
    pub(super) fn output(&self, x: &[usize], w: &[usize]) -> Option<[usize; 4]> {
        let moves = |(padding, stride, dilation): Steps, size: usize, window: usize| {
            let room = (size + 2 * padding).checked_sub(dilation * window.checked_sub(1)? + 1)?;
            Some(room.checked_div(stride)? + 1)
        };
        Some([x[0], w[0], moves(self.vertical, x[2], w[2])?, moves(self.horizontal, x[3], w[3])?])
    }

    fn window(&self, w: &Tensor, g: &Tensor) -> Result<Window> {
        let ((_, _, height, width), (_, _, rows, columns)) = (w.dims4()?, g.dims4()?);
        Ok(Window {
            size: (height, width),
            stride: (self.vertical.1, self.horizontal.1),
            dilation: (self.vertical.2, self.horizontal.2),
            moves: (rows, columns),
        })
    }

    fn padding(&self) -> (usize, usize) {
        (self.vertical.0, self.horizontal.0)
    }

    /// (N, groups·C, rows, columns) as (N, groups, C, rows·columns).
    fn by_group(&self, x: &Tensor) -> Result<Tensor> {
        let (n, c, rows, columns) = x.dims4()?;
        x.reshape((n, self.groups, c / self.groups, rows * columns))
    }

    fn input(&self, x: &Tensor, w: &Tensor, g: &Tensor) -> Result<Tensor> {
        if let Some(product) = Product::of(self, x, w) {
            return product.input_gradient(w, g);
        }
        #[cfg(feature = "cuda")]
        if let Some(found) =
            super::direct::run(self, super::direct::Kind::InputGradient, &[w, g], [x.dims(), w.dims(), g.dims()])?
        {
            return Ok(found);
        }
        let window = self.window(w, g)?;
        let ((n, c, height, width), (outputs, inputs, _, _)) = (x.dims4()?, w.dims4()?);
        let padding = self.padding();
        let (_, _, tall, wide) = window.pad(x, padding)?.dims4()?;
        let g_by_group = self.by_group(g)?;
        let mut sum: Option<Tensor> = None;
        for place in window.places() {
            let at = w.narrow(2, place.0, 1)?.narrow(3, place.1, 1)?;
            let at = at.reshape((1, self.groups, outputs / self.groups, inputs))?;
            let part = if outputs == self.groups {
                at.transpose(2, 3)?.broadcast_mul(&g_by_group)?
            } else {
                at.transpose(2, 3)?.contiguous()?.broadcast_matmul(&g_by_group)?
            };
            let part = window.put(&part.reshape((n, c, window.moves.0, window.moves.1))?, place, (tall, wide))?;
            sum = Some(match sum {
                None => part,
                Some(sum) => (sum + part)?,
            });
        }
        match sum {
            None => x.zeros_like(),
            Some(sum) => sum.narrow(2, padding.0, height)?.narrow(3, padding.1, width)?.contiguous(),
        }
    }

    fn weight(&self, x: &Tensor, w: &Tensor, g: &Tensor) -> Result<Tensor> {
        if let Some(product) = Product::of(self, x, w) {
            return product.weight_gradient(x, w, g);
        }
        #[cfg(feature = "cuda")]
        if let Some(found) =
            super::direct::run(self, super::direct::Kind::WeightGradient, &[x, g], [x.dims(), w.dims(), g.dims()])?
        {
            return Ok(found);
        }
        let window = self.window(w, g)?;
        let (outputs, inputs, rows, columns) = w.dims4()?;
        let padded = window.pad(x, self.padding())?;
        let g_by_group = self.by_group(g)?;
        let parts = window
            .places()
            .map(|place| {
                let seen = self.by_group(&window.see(&padded, place)?)?;
                let part = if inputs == 1 {
                    g_by_group.broadcast_mul(&seen)?.sum_keepdim(D::Minus1)?
                } else {
                    g_by_group.contiguous()?.matmul(&seen.transpose(2, 3)?.contiguous()?)?
                };
                part.sum(0)?.reshape((outputs, inputs, 1))
            })
            .collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts, 2)?.reshape((outputs, inputs, rows, columns))
    }
}
