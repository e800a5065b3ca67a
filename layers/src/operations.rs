//! Counts the floating-point operations of products, from their shapes.
//!
//! A product of (n, k) and (k, m) is 2·n·k·m operations forward, and as many again backward for each operand that has a gradient: what follows from
//! it is known when the product is formed, for a pass is followed by its backward pass exactly where it records one. Linear layers, convolutions (as
//! products of rows, depthwise ones as well) and attention count; what is done element by element, updates and the algebra of gradients do not.
//! Steps that a GPU replays form no products here, and are not counted.

use std::cell::Cell;

use candle_core::Tensor;

/// Operations by what they were for. Multiplications and additions count one each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Operations {
    /// Of products of which a gradient follows, which is counted with them.
    pub training: u64,
    /// Of all others.
    pub evaluation: u64,
    /// Of both kinds, within [`looking`].
    pub looking: u64,
}

impl Operations {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.training + self.evaluation + self.looking
    }
}

thread_local! {
    static COUNT: Cell<Operations> = const { Cell::new(Operations { training: 0, evaluation: 0, looking: 0 }) };
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// What `run` returns, and the operations of the products that it formed on this thread.
///
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use esper_layers::operations::counted;
/// use esper_layers::{LinearOptions, linear};
///
/// let weight = Var::zeros((3, 2), DType::F32, &Device::Cpu)?;
/// let x = Tensor::zeros((5, 3), DType::F32, &Device::Cpu)?;
/// let (_, found) = counted(|| linear(&x, &weight, None, &LinearOptions::default()));
/// // 2·5·3·2 forward, and as many for the gradient of the weight; `x` has none.
/// assert_eq!((found.training, found.total()), (120, 120));
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn counted<R>(run: impl FnOnce() -> R) -> (R, Operations) {
    let before = COUNT.take();
    let result = run();
    let found = COUNT.get();
    let all = |a: u64, b: u64| a + b;
    COUNT.set(Operations {
        training: all(before.training, found.training),
        evaluation: all(before.evaluation, found.evaluation),
        looking: all(before.looking, found.looking),
    });
    (result, found)
}

/// As [`counted`], and what is counted around it knows nothing of it: for passes that are there to know what others will cost.
///
/// # Sync
/// none
pub fn counted_apart<R>(run: impl FnOnce() -> R) -> (R, Operations) {
    uncounted(|| counted(run))
}

/// Runs `run`, whose products are there to learn what a change would be worth, not for the network as it is.
///
/// # Sync
/// none
pub fn looking<R>(run: impl FnOnce() -> R) -> R {
    let before = IS_LOOKING.replace(true);
    let result = run();
    IS_LOOKING.set(before);
    result
}

/// Runs `run`, whose products were formed and counted before.
pub(crate) fn uncounted<R>(run: impl FnOnce() -> R) -> R {
    let before = COUNT.get();
    let result = run();
    COUNT.set(before);
    result
}

/// Counts products of these operands, of so many multiplications in all.
pub fn count(operands: [&Tensor; 2], multiplications: usize) {
    let num_gradients = operands.into_iter().filter(|operand| operand.track_op()).count();
    let operations = 2 * multiplications as u64 * (1 + num_gradients as u64);
    let mut count = COUNT.get();
    let of = match (IS_LOOKING.get(), num_gradients) {
        (true, _) => &mut count.looking,
        (false, 0) => &mut count.evaluation,
        (false, _) => &mut count.training,
    };
    *of += operations;
    COUNT.set(count);
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Result, Var};

    use super::*;
    use crate::{AttentionOptions, LinearOptions, attention, linear};

    fn of(x: &Tensor, weight: &Tensor) -> Operations {
        let (output, found) = counted(|| linear(x, weight, None, &LinearOptions::default()));
        output.unwrap();
        found
    }

    /// Two layers, 4 → 3 → 2, of 5 samples: by hand.
    #[test]
    fn two_layers_are_counted_as_by_hand_for_training_evaluation_and_looking() -> Result<()> {
        let var = |shape| Var::zeros(shape, DType::F32, &Device::Cpu);
        let (first, second, x) = (var((4, 3))?, var((3, 2))?, Tensor::zeros((5, 4), DType::F32, &Device::Cpu)?);
        let network = |first: &Tensor, second: &Tensor| {
            let hidden = linear(&x, first, None, &LinearOptions::default())?;
            linear(&hidden, second, None, &LinearOptions::default())
        };
        let frozen = || network(&first.as_detached_tensor(), &second.as_detached_tensor());
        let (_, found) = counted(|| (network(&first, &second), frozen(), looking(frozen)));
        // Forward 2·5·12 and 2·5·6; backward the weight of the first, weight and input of the second.
        let (forward, backward) = (120 + 60, 120 + 2 * 60);
        assert_eq!(found, Operations { training: forward + backward, evaluation: forward, looking: forward });
        assert_eq!(of(&x, &first).total(), 240);
        Ok(())
    }

    #[test]
    fn a_weight_that_is_held_fixed_costs_no_gradient_of_its_own() -> Result<()> {
        let input = Var::zeros((5, 4), DType::F32, &Device::Cpu)?;
        let fixed = Tensor::zeros((4, 3), DType::F32, &Device::Cpu)?;
        assert_eq!(of(&input, &fixed), Operations { training: 2 * 120, ..Operations::default() });
        Ok(())
    }

    #[test]
    fn what_is_counted_within_is_part_of_what_is_counted_around() -> Result<()> {
        let (x, w) =
            (Tensor::zeros((1, 2), DType::F32, &Device::Cpu)?, Tensor::zeros((2, 2), DType::F32, &Device::Cpu)?);
        let (inner, outer) = counted(|| of(&x, &w));
        assert_eq!((inner.total(), outer.total()), (8, 8));
        let ((_, apart), around) = counted(|| counted_apart(|| of(&x, &w)));
        assert_eq!((apart.total(), around.total()), (8, 0));
        Ok(())
    }

    /// Two products of (T, D) and (D, T), or (T, T) and (T, D), per head and sequence.
    #[test]
    fn attention_is_counted_as_by_hand() -> Result<()> {
        let (batches, length, heads, width) = (2, 5, 3, 4);
        let qkv = Tensor::zeros((batches, length, 3 * heads * width), DType::F32, &Device::Cpu)?;
        let options = AttentionOptions { num_heads: heads, causal: false };
        let (found, operations) = counted(|| attention(&qkv, &options));
        found?;
        assert_eq!(operations.evaluation, (2 * 2 * batches * heads * length * length * width) as u64);
        let var = Var::from_tensor(&qkv)?;
        let (found, operations) = counted(|| attention(&var, &options));
        found?;
        assert_eq!(operations.training, (3 * 2 * 2 * batches * heads * length * length * width) as u64);
        Ok(())
    }
}
