//! The arithmetic of the products of a thread, for as long as a function runs.
//!
//! Layers ask for it where nothing else says what they multiply. A weight is rounded once per scope, not once per use: a step
//! of several microbatches is one scope, at whose end the rounded weights are let go of, before anything updates them.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use candle_core::cuda::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};
use candle_core::{DType, Result, Tensor, TensorId};

use crate::key::Precision;

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Scope {
    precision: Precision,
    /// By the tensor that was rounded, which lives as long, and the type.
    rounded: Vec<(Tensor, DType, Tensor)>,
    copies: Vec<WorkingCopy>,
    num_products: u64,
}

impl Scope {
    fn copy_of(&self, weight: &Tensor, dtype: DType) -> Option<Tensor> {
        let found = self.copies.iter().find(|copy| copy.of == weight.id() && copy.copy.dtype() == dtype)?;
        Some(found.copy.clone())
    }
}

/// A weight in half precision beside itself, which its owner writes wherever he writes the weight.
#[derive(Debug, Clone)]
pub struct WorkingCopy {
    of: TensorId,
    copy: Tensor,
}

impl WorkingCopy {
    /// `copy` of `weight`.
    ///
    /// # Errors
    /// When it is of another shape or device, or not of half precision.
    /// # Sync
    /// none
    pub fn new(weight: &Tensor, copy: &Tensor) -> Result<Self> {
        let is_half = matches!(copy.dtype(), DType::BF16 | DType::F16);
        if copy.shape() != weight.shape() || !is_half || !copy.device().same_device(weight.device()) {
            let kind = |tensor: &Tensor| {
                format!("{:?} {:?} on {:?}", tensor.dtype(), tensor.dims(), tensor.device().location())
            };
            candle_core::bail!("a copy in half precision of {} is {}", kind(weight), kind(copy))
        }
        Ok(Self { of: weight.id(), copy: copy.detach() })
    }
}

/// Scopes of TF32 in the process, and what candle's switch was before the first of them.
static TF32: Mutex<(usize, bool)> = Mutex::new((0, false));

/// What was there before, put back when it is dropped: candle's switch once no thread has a scope of TF32 any more.
struct Before {
    scope: Option<Scope>,
    is_tf32: bool,
}

impl Before {
    fn enter(scope: Scope) -> Self {
        let is_tf32 = scope.precision == Precision::Tf32;
        if is_tf32 {
            let (count, before) = &mut *TF32.lock().unwrap_or_else(PoisonError::into_inner);
            if *count == 0 {
                *before = gemm_reduced_precision_f32();
            }
            *count += 1;
            set_gemm_reduced_precision_f32(true);
        }
        Self { scope: SCOPE.with(|place| place.borrow_mut().replace(scope)), is_tf32 }
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        let scope = self.scope.take();
        // What the scope has rounded is freed after the borrow.
        let _ended = SCOPE.with(|place| std::mem::replace(&mut *place.borrow_mut(), scope));
        if self.is_tf32 {
            let (count, before) = &mut *TF32.lock().unwrap_or_else(PoisonError::into_inner);
            *count -= 1;
            if *count == 0 {
                set_gemm_reduced_precision_f32(*before);
            }
        }
    }
}

/// What `run` gives, with the products of `f32` that this thread forms in it in `precision`; and how often weights rounded to half
/// precision were asked for.
///
/// [`Precision::F32`] leaves them as candle's switch for the process says, and [`Precision::Tf32`] turns that on until no thread has such a
/// scope: what other threads multiply in `f32` on a GPU meanwhile is rounded as well. The others are known to whoever asks for
/// [`half`], as `esper-layers` does; candle's own products stay as they are.
///
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::DType;
/// use esper_graph::Precision;
/// use esper_graph::precision::{half, with_precision};
///
/// let (inside, num_products) = with_precision(Precision::Bf16, half);
/// assert_eq!((inside, num_products), (Some(DType::BF16), 0));
/// assert_eq!(half(), None);
/// ```
pub fn with_precision<R>(precision: Precision, run: impl FnOnce() -> R) -> (R, u64) {
    with_copies(precision, Vec::new(), run)
}

/// [`with_precision`], where [`working_copy`] finds `copies`. Whoever gives them answers for each being its weight, rounded to
/// the nearest number of its type, ties to even, as of when `run` begins.
///
/// # Sync
/// none
pub fn with_copies<R>(precision: Precision, copies: Vec<WorkingCopy>, run: impl FnOnce() -> R) -> (R, u64) {
    let scope = Scope { precision, rounded: Vec::new(), copies, num_products: 0 };
    let before = Before::enter(scope);
    let result = run();
    let num_products = SCOPE.with(|place| place.borrow().as_ref().map_or(0, |scope| scope.num_products));
    drop(before);
    (result, num_products)
}

/// The type to which factors of `f32` are rounded now; none where they are not.
#[must_use]
pub fn half() -> Option<DType> {
    SCOPE.with(|place| match place.borrow().as_ref()?.precision {
        Precision::F32 | Precision::Tf32 => None,
        Precision::Bf16 => Some(DType::BF16),
        Precision::F16 => Some(DType::F16),
    })
}

/// The copy of a weight in `dtype` that this scope was given, which has no gradient; counts it as asked for where there is one.
///
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Var};
/// use esper_graph::Precision;
/// use esper_graph::precision::{WorkingCopy, with_copies, working_copy};
///
/// let weight = Var::new(&[1.0_f32, 1.0 / 3.0], &Device::Cpu)?;
/// let copy = weight.detach().to_dtype(DType::BF16)?;
/// let copies = vec![WorkingCopy::new(&weight, &copy)?];
/// let (found, num_products) = with_copies(Precision::Bf16, copies, || working_copy(&weight, DType::BF16));
/// assert_eq!(found.unwrap().to_dtype(DType::F32)?.to_vec1::<f32>()?, [1.0, 0.333_984_38]);
/// assert_eq!(num_products, 1);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[must_use]
pub fn working_copy(weight: &Tensor, dtype: DType) -> Option<Tensor> {
    SCOPE.with(|place| {
        let mut place = place.borrow_mut();
        let scope = place.as_mut()?;
        let copy = scope.copy_of(weight, dtype)?;
        scope.num_products += 1;
        Some(copy)
    })
}

/// What `run` gives in a scope with the precision of this one, if there is one, in which nothing is rounded yet: what is recorded in it
/// points at nothing that ends before it.
pub(crate) fn anew<R>(run: impl FnOnce() -> R) -> R {
    match SCOPE.with(|place| place.borrow().as_ref().map(|scope| scope.precision)) {
        Some(precision) => {
            let (result, num_products) = with_precision(precision, run);
            SCOPE.with(|place| place.borrow_mut().iter_mut().for_each(|scope| scope.num_products += num_products));
            result
        }
        None => run(),
    }
}

/// What `round` makes of a weight for products in `dtype`, which is kept until the scope ends; without a scope it is not. Counts
/// it as asked for.
///
/// # Errors
/// Those of `round`.
/// # Sync
/// none
pub fn rounded_once(weight: &Tensor, dtype: DType, round: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let known = |id: TensorId| {
        SCOPE.with(|place| {
            let mut place = place.borrow_mut();
            let scope = place.as_mut()?;
            scope.num_products += 1;
            let found = scope.rounded.iter().find(|(of, to, _)| of.id() == id && *to == dtype)?;
            Some(found.2.clone())
        })
    };
    if let Some(known) = known(weight.id()) {
        return Ok(known);
    }
    let rounded = round(weight)?;
    // What was computed from others comes only once.
    if weight.is_variable() || !weight.track_op() {
        SCOPE.with(|place| {
            if let Some(scope) = place.borrow_mut().as_mut() {
                scope.rounded.push((weight.clone(), dtype, rounded.clone()));
            }
        });
    }
    Ok(rounded)
}

/// The [`working_copy`] of a weight that a model is about to round itself. One of two dimensions or more counts as asked for, also where there
/// is none and the scope is of that precision: then the model rounds it.
///
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Var};
/// use esper_graph::Precision;
/// use esper_graph::precision::{WorkingCopy, rounded_by_model, with_copies};
///
/// let weight = Var::new(&[[1.0_f32 / 3.0]], &Device::Cpu)?;
/// let copies = vec![WorkingCopy::new(&weight, &weight.detach().to_dtype(DType::BF16)?)?];
/// for (copies, has_copy) in [(copies, true), (Vec::new(), false)] {
///     let (found, num_products) = with_copies(Precision::Bf16, copies, || rounded_by_model(&weight, DType::BF16));
///     assert_eq!((found.is_some(), num_products), (has_copy, 1));
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
#[must_use]
pub fn rounded_by_model(weight: &Tensor, dtype: DType) -> Option<Tensor> {
    let is_half = half() == Some(dtype);
    SCOPE.with(|place| {
        let mut place = place.borrow_mut();
        let scope = place.as_mut()?;
        let copy = scope.copy_of(weight, dtype);
        let is_product = weight.rank() > 1 && (copy.is_some() || (is_half && weight.dtype() == DType::F32));
        scope.num_products += u64::from(is_product);
        copy
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn a_weight_is_rounded_once_in_a_scope_and_anew_in_the_next() {
        let weight = Var::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap();
        let mut count = 0;
        let mut round = || {
            rounded_once(&weight, DType::F16, |weight| {
                count += 1;
                weight.detach().to_dtype(DType::F16)
            })
            .unwrap()
        };
        for num_scopes in 1..4 {
            let (ids, num_products) = with_precision(Precision::F16, || [round().id(), round().id()]);
            assert_eq!((ids[0] == ids[1], num_products), (true, 2), "scope {num_scopes}");
        }
        let [first, second] = [round(), round()];
        assert_ne!(first.id(), second.id());
        assert_eq!(count, 5);
    }

    #[test]
    fn a_copy_is_found_in_its_scope_by_its_weight_and_type() {
        let of = |values: &[f32]| Var::new(values, &Device::Cpu).unwrap();
        let (weight, other) = (of(&[1.0, 2.0]), of(&[1.0, 2.0]));
        let copy = weight.detach().to_dtype(DType::BF16).unwrap();
        for wrong in [weight.detach(), copy.narrow(0, 0, 1).unwrap()] {
            assert!(WorkingCopy::new(&weight, &wrong).is_err());
        }
        let copies = vec![WorkingCopy::new(&weight, &copy).unwrap()];
        let find = || {
            let found = [(&weight, DType::BF16), (&weight, DType::F16), (&other, DType::BF16)];
            found.map(|(weight, dtype)| working_copy(weight, dtype).is_some())
        };
        let (found, num_products) = with_copies(Precision::Bf16, copies, || {
            let nested = with_precision(Precision::Bf16, find).0;
            assert_eq!(nested, [false; 3]);
            find()
        });
        assert_eq!((found, num_products, find()), ([true, false, false], 1, [false; 3]));
    }

    #[test]
    fn a_scope_ends_with_its_function_also_when_that_panics() {
        let (inner, _) = with_precision(Precision::F16, || {
            let inside = with_precision(Precision::Bf16, half).0;
            let caught = std::panic::catch_unwind(|| with_precision(Precision::Bf16, || panic!("planted")));
            assert!(caught.is_err());
            (inside, half())
        });
        assert_eq!((inner, half()), ((Some(DType::BF16), Some(DType::F16)), None));
    }

    #[test]
    fn what_is_computed_is_not_kept() {
        let weight = Var::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap();
        with_precision(Precision::F16, || {
            let computed = (weight.as_tensor() * 2.0).unwrap();
            let of = || rounded_once(&computed, DType::F16, |computed| computed.to_dtype(DType::F16)).unwrap().id();
            assert_ne!(of(), of());
        });
    }

    #[test]
    fn the_switch_is_put_back_once_the_last_thread_has_left_its_scope() {
        let (count, before) = (|| TF32.lock().unwrap().0, gemm_reduced_precision_f32());
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                with_precision(Precision::Tf32, || barrier.wait());
                barrier.wait();
            });
            with_precision(Precision::Tf32, || {
                barrier.wait();
                // The other thread's scope, which may have begun first, is over.
                barrier.wait();
                assert_eq!(count(), 1);
                assert_eq!(gemm_reduced_precision_f32(), before || cfg!(feature = "cuda"));
            });
        });
        assert_eq!((count(), gemm_reduced_precision_f32()), (0, before));
    }
}
