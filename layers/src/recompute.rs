//! Activations that are computed again for the backward pass instead of being kept for it.
//!
//! ```text
//!  forward:   h ─► run ─► y            what `run` made on the way is let go of; h is kept
//!  backward:  h ─► run ─► y ◄─ ∂y      made again, with gradients of h and of the variables
//! ```
//!
//! An operation of candle has three inputs at most, and a part of a network has more variables. So they hang on a chain of tokens, one number each:
//! the operation hands its gradient to the token, by when the gradients of all variables lie ready, and each link of the chain passes two of them on.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::{BackendDevice as _, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, Var, bail,
};

use crate::operations::uncounted;

/// `run(h)`, of which only `h` is kept for the backward pass, which runs it again: less memory, a forward pass more.
///
/// `variables` are those that `run` reads, in parts of it that are computed again as well. Bits of results and gradients are those of `run(h)` where
/// `run` computes the same each time: what it reads besides must not change before the backward pass. Random numbers that follow from a
/// counter on the device do so, as long as the counter is advanced outside. What the result does not depend on, the input included, has no
/// gradient, as without this. A product is counted once ([`operations`](crate::operations)). Gradients of gradients do not exist.
///
/// # Shapes
/// those of `run`
/// # Errors
/// Those of `run`. In the backward pass those of `run` and of its own backward pass, and when `run` reads a variable that is not one of `variables`, or
/// its result has another shape or element type than before.
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use esper_layers::recompute;
///
/// let (h, w) = (Var::new(&[2.0_f32], &Device::Cpu)?, Var::new(&[3.0_f32], &Device::Cpu)?);
/// let weight = w.clone();
/// let y = recompute(&h, [&w], move |h| (h * weight.as_tensor())?.sqr())?;
/// assert_eq!(y.to_vec1::<f32>()?, [36.0]);
/// let gradients = y.backward()?;
/// assert_eq!(gradients.get(&h).expect("a gradient").to_vec1::<f32>()?, [36.0]);
/// assert_eq!(gradients.get(&w).expect("a gradient").to_vec1::<f32>()?, [24.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn recompute<'a>(
    h: &Tensor,
    variables: impl IntoIterator<Item = &'a Var>,
    run: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let mut y = run(h)?;
    // What has no gradient must not wait for one: candle's backward pass panics where none comes.
    let reached = y.sorted_nodes();
    let is_reached = |tensor: &Tensor| reached.iter().any(|node| node.id() == tensor.id());
    let variables: Vec<Var> = variables.into_iter().filter(|variable| is_reached(variable)).cloned().collect();
    let h = if is_reached(h) { h.clone() } else { h.detach() };
    if variables.is_empty() && !h.track_op() {
        return Ok(y);
    }
    // By this, what `run` recorded is let go of.
    y = y.detach().contiguous()?;
    let gradients = Ready::default();
    let mut token = Tensor::zeros(1, DType::F32, h.device())?;
    let none = token.clone();
    for (index, pair) in variables.chunks(2).enumerate() {
        let link = Link { gradients: gradients.clone(), index };
        token = pair[0].apply_op3(pair.get(1).map_or(&none, |second| second.as_tensor()), &token, link)?;
    }
    let part = Part { run: Box::new(run), y: Mutex::new(Some(y)), variables, gradients };
    h.apply_op2(&token, part)
}

/// Gradients of variables, pair by pair, between the operation that computes them and the links that pass them on.
type Ready = Arc<Mutex<Vec<[Option<Tensor>; 2]>>>;

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Run = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

/// A part of a network as one operation of its input and a token.
struct Part {
    run: Box<Run>,
    /// The result, until the forward pass has taken it.
    y: Mutex<Option<Tensor>>,
    variables: Vec<Var>,
    gradients: Ready,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("variables", &self.variables).finish_non_exhaustive()
    }
}

impl Part {
    /// The numbers of the result, in storage of its own.
    fn take<S>(&self, copy: impl FnOnce(&Storage, &Layout) -> Option<Result<S>>) -> Result<(S, Shape)> {
        let Some(y) = locked(&self.y).take() else { bail!("a part is run forward once") };
        // Of a view, only what it shows.
        let y = if y.layout().start_offset() == 0 { y } else { y.force_contiguous()? };
        let (storage, layout) = y.storage_and_layout();
        let Some(copied) = copy(&storage, layout) else { bail!("a part left the device of its input") };
        Ok((copied?, layout.shape().clone()))
    }

    /// Whether what was computed again is what the gradient is of, and leads to nothing whose gradient would be lost.
    fn check(&self, input: &Tensor, y: &Tensor, gradient: &Tensor) -> Result<()> {
        if y.shape() != gradient.shape() || y.dtype() != gradient.dtype() {
            let (was, is) = (gradient, y);
            bail!(
                "recompute: {:?} of {:?}, computed again {:?} of {:?}",
                was.shape(),
                was.dtype(),
                is.shape(),
                is.dtype()
            )
        }
        let is_known = |node: &Tensor| node.id() == input.id() || self.variables.iter().any(|of| of.id() == node.id());
        match y.sorted_nodes().into_iter().find(|node| node.is_variable() && !is_known(node)) {
            Some(other) => {
                let shape = other.shape();
                bail!("recompute: `run` reads a variable of shape {shape:?} that is not one of `variables`")
            }
            None => Ok(()),
        }
    }
}

/// What reads `after` from now on comes after `before`, in compiled graphs too.
#[cfg(feature = "cuda")]
fn keep_order(after: &Tensor, before: &[&Tensor]) -> Result<()> {
    if after.device().is_cuda() { crate::device::keep_order(after, before) } else { Ok(()) }
}

#[cfg(not(feature = "cuda"))]
#[expect(clippy::unnecessary_wraps, reason = "as on a GPU")]
fn keep_order(_: &Tensor, _: &[&Tensor]) -> Result<()> {
    Ok(())
}

impl CustomOp2 for Part {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.take(|storage, _| if let Storage::Cpu(y) = storage { Some(Ok(y.clone())) } else { None })
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.take(|storage, layout| if let Storage::Cuda(y) = storage { Some(y.try_clone(layout)) } else { None })
    }

    fn bwd(
        &self,
        h: &Tensor,
        token: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let has_gradient = h.track_op() && h.dtype().is_float();
        // Made again earlier, it would lie in memory all the time that it was to be away.
        keep_order(h, &[gradient])?;
        let input = if has_gradient { Var::from_tensor(&h.detach())?.as_tensor().clone() } else { h.clone() };
        let y = uncounted(|| (self.run)(&input))?;
        self.check(&input, &y, gradient)?;
        let mut store = y.apply_op1(Pull { gradient: gradient.clone() })?.backward()?;
        let mut of = |variable: &Var| store.remove(variable);
        let pairs = self.variables.chunks(2).map(|pair| [of(&pair[0]), pair.get(1).and_then(&mut of)]);
        let pairs: Vec<[Option<Tensor>; 2]> = pairs.collect();
        // It has one: an operation on the way may say that it is none, which is 0.
        let of_input = has_gradient.then(|| store.remove(&input).map_or_else(|| input.zeros_like(), Ok)).transpose()?;
        if let Some(of_input) = &of_input {
            // The part before, which waits for this, is made again when nothing needs this one any more.
            keep_order(of_input, &pairs.iter().flatten().flatten().collect::<Vec<_>>())?;
        }
        *locked(&self.gradients) = pairs;
        Ok((of_input, token.track_op().then(|| token.detach())))
    }
}

/// Two variables and the token before it, as a token.
struct Link {
    gradients: Ready,
    index: usize,
}

impl CustomOp3 for Link {
    fn name(&self) -> &'static str {
        "recompute-link"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        one_zero_cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        before: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        one_zero(before)
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        before: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some([first, second]) = locked(&self.gradients).get_mut(self.index).map(std::mem::take) else {
            bail!("a link without the gradients of its part")
        };
        Ok((first, second, before.track_op().then(|| gradient.clone())))
    }
}

/// One number whose gradient with respect to its input is the given one: what a backward pass of a part starts from.
struct Pull {
    gradient: Tensor,
}

impl CustomOp1 for Pull {
    fn name(&self) -> &'static str {
        "recompute-pull"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        one_zero_cpu()
    }

    fn cuda_fwd(&self, y: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        one_zero(y)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.gradient.clone()))
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what an operation returns")]
fn one_zero_cpu() -> Result<(CpuStorage, Shape)> {
    Ok((CpuStorage::F32(vec![0.0]), Shape::from(1)))
}

fn one_zero(beside: &CudaStorage) -> Result<(CudaStorage, Shape)> {
    let shape = Shape::from(1);
    Ok((beside.device().zeros_impl(&shape, DType::F32)?, shape))
}

#[cfg(test)]
mod tests;
