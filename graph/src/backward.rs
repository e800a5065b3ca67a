//! A backward pass that adds nothing to the first gradient of a variable.
//!
//! Candle's adds every gradient to zeros, which for a large weight are two passes over memory more. An operation may set the gradient of
//! a variable [`apart`] instead, so that it is passed on as it is.

use std::cell::RefCell;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId};

/// Elements from which a gradient is worth setting apart: to find out which pass asks for it costs about as much as adding these.
const WORTH_IT: usize = 1 << 14;

thread_local! {
    static PASS: RefCell<Option<Pass>> = const { RefCell::new(None) };
}

/// A backward pass under way.
struct Pass {
    of: Tensor,
    /// What the pass goes through, once somebody asked.
    nodes: Option<Vec<TensorId>>,
    /// Variables with gradients, in the order in which they were found.
    apart: Vec<(Tensor, Tensor)>,
}

/// What was under way before, put back when it is dropped.
struct Before(Option<Pass>);

impl Drop for Before {
    fn drop(&mut self) {
        PASS.set(self.0.take());
    }
}

/// As `of.backward()`, but that operations may set gradients [`apart`]. Gradients have the bits of that, except that a first one of -0 stays
/// -0, and that three or more of one variable may be added in another order.
///
/// # Errors
/// As `of.backward()`.
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{Device, Var};
/// use esper_graph::backward::backward;
///
/// let w = Var::new(&[3.0_f32], &Device::Cpu)?;
/// let gradients = backward(&w.sqr()?)?;
/// assert_eq!(gradients.get(&w).expect("a gradient").to_vec1::<f32>()?, [6.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn backward(of: &Tensor) -> Result<GradStore> {
    let before = Before(PASS.replace(Some(Pass { of: of.clone(), nodes: None, apart: Vec::new() })));
    let gradients = of.backward();
    let apart = PASS.take().map_or_else(Vec::new, |pass| pass.apart);
    drop(before);
    let mut gradients = gradients?;
    for (variable, gradient) in apart {
        let sum = match gradients.remove(&variable) {
            Some(others) => (others + gradient)?,
            None => gradient,
        };
        gradients.insert(&variable, sum);
    }
    Ok(gradients)
}

/// For the backward pass of an operation: keeps `gradient` of its argument `argument` for the [`backward`] that is under way, or gives it
/// back, to be returned to candle.
///
/// It is kept where the argument is a large variable and the operation, known by its output `result`, is one of those that this pass goes
/// through: a pass within the backward pass of another operation gets its own gradients, as long as it begins from detached arguments.
///
/// # Sync
/// none
#[must_use]
pub fn apart(result: &Tensor, argument: &Tensor, gradient: Tensor) -> Option<Tensor> {
    if !argument.is_variable() || gradient.elem_count() < WORTH_IT {
        return Some(gradient);
    }
    PASS.with_borrow_mut(|pass| {
        let Some(Pass { of, nodes, apart }) = pass else { return Some(gradient) };
        let nodes = nodes.get_or_insert_with(|| of.sorted_nodes().into_iter().map(Tensor::id).collect());
        if !nodes.contains(&result.id()) {
            return Some(gradient);
        }
        apart.push((argument.clone(), gradient));
        None
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Var};

    use super::*;

    /// Its argument as it is, with a gradient set apart where it may be.
    struct Same;

    impl CustomOp1 for Same {
        fn name(&self) -> &'static str {
            "same"
        }

        fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
            Ok((storage.clone(), layout.shape().clone()))
        }

        fn bwd(&self, argument: &Tensor, result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
            Ok(apart(result, argument, gradient.clone()))
        }
    }

    /// Another backward pass within the one under way; its result is twice its argument.
    struct Within;

    impl CustomOp1 for Within {
        fn name(&self) -> &'static str {
            "within"
        }

        fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
            Ok((storage.clone(), layout.shape().clone()))
        }

        fn bwd(&self, argument: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
            let inner = Var::from_tensor(&argument.detach())?;
            let gradients = (inner.apply_op1(Same)? * gradient)?.sum_all()?.backward()?;
            (gradients.get(&inner).expect("a gradient") * 2.0).map(Some)
        }
    }

    fn large() -> Var {
        Var::ones(WORTH_IT, DType::F32, &Device::Cpu).unwrap()
    }

    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "a test reads what it compares")]
    fn is_full_of(gradients: &GradStore, variable: &Var, value: f32) {
        let found = gradients.get(variable).expect("a gradient").to_vec1::<f32>().unwrap();
        assert_eq!(found, vec![value; variable.elem_count()]);
    }

    #[test]
    fn gradients_set_apart_are_added_to_each_other_and_to_those_of_candle() {
        let w = large();
        let same = || w.apply_op1(Same).unwrap();
        for (sum, expected) in [
            (same(), 1.0),
            ((same() + same()).unwrap(), 2.0),
            (((same() + w.as_tensor()).unwrap() + same()).unwrap(), 3.0),
        ] {
            is_full_of(&backward(&sum).unwrap(), &w, expected);
            is_full_of(&sum.backward().unwrap(), &w, expected);
        }
    }

    #[test]
    fn only_what_the_pass_goes_through_is_set_apart_in_it() {
        let (w, v) = (large(), large());
        // The gradient that the pass within sets apart is its own, and is doubled.
        let sum = (w.apply_op1(Within).unwrap() + v.apply_op1(Same).unwrap()).unwrap();
        let gradients = backward(&sum).unwrap();
        is_full_of(&gradients, &w, 2.0);
        is_full_of(&gradients, &v, 1.0);
    }
}
