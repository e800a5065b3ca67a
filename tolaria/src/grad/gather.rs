//! Copies the gradients of a backward pass into a flat buffer, or adds them to what is there.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use leyline::id::SeedId;
use leyline::layout::{Owner, ParameterLayout, Segment};
use leyline::model::Parameter;

use super::pool::GradientLease;
use crate::cpu::{self, Divide};
use crate::error::Error;
use crate::path::Path;

/// Which segments a backward pass has gradients for (rule TM-3 of [`leyline::model`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientScope {
    /// The loss of the logits: every segment that is not isolated.
    Main,
    /// The loss of a seed's shadow: the isolated segments of that seed.
    Shadow(SeedId),
}

impl GradientScope {
    /// Whether the backward pass reaches `segment`.
    #[must_use]
    pub fn contains(self, segment: &Segment) -> bool {
        match self {
            Self::Main => !segment.spec.isolated,
            Self::Shadow(seed) => segment.spec.isolated && segment.spec.owner == Owner::Seed(seed),
        }
    }
}

/// What becomes of an element of a gradient on its way to its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weight<'a> {
    /// It is divided by the scale of its loss, (1,) of `f32`, a power of two.
    pub(crate) scale: Option<&'a Tensor>,
    /// Then it is multiplied with it, and rounded.
    pub(crate) coefficient: f32,
    /// Whether it is added to what is there, and rounded, or takes its place.
    pub(crate) adds: bool,
}

impl Weight<'_> {
    /// A copy.
    pub(crate) const ONE: Self = Self { scale: None, coefficient: 1.0, adds: false };

    fn is_copy(&self) -> bool {
        self.scale.is_none() && cpu::is_one(self.coefficient) && !self.adds
    }
}

/// The type of a row of gradients that is not combined with others: `bf16` on a GPU where all parameters are, whose kernels
/// widen it as they read it, and `f32` elsewhere. The update has the same bits with either.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device};
///
/// assert_eq!(tolaria::grad::row_type(&[], &Device::Cpu), DType::F32);
/// ```
#[must_use]
pub fn row_type(parameters: &[Parameter], device: &Device) -> DType {
    let is_half = device.is_cuda() && parameters.iter().all(|parameter| parameter.var.dtype() == DType::BF16);
    if is_half { DType::BF16 } else { DType::F32 }
}

/// Copies the gradients of all segments in `scope` to their places in `into`; other places stay as they are. Those of `bf16` are
/// widened where it is of `f32`.
///
/// # Shapes
/// `into` (P,), of `f32` or of [`row_type`]; `parameters` in the order of `layout`.
/// # Errors
/// [`Error::MissingGradient`] when a parameter in scope has none, and [`Error::LayoutMismatch`] when parameters,
/// layout and buffer do not fit each other; then nothing was written.
/// # Sync
/// none
pub fn gather_gradients(
    grads: &GradStore,
    parameters: &[Parameter],
    layout: &ParameterLayout,
    scope: GradientScope,
    into: &GradientLease,
) -> Result<(), Error> {
    gather_weighed(grads, parameters, layout, scope, into, &Weight::ONE)
}

/// [`gather_gradients`] by a weight.
pub(crate) fn gather_weighed(
    grads: &GradStore,
    parameters: &[Parameter],
    layout: &ParameterLayout,
    scope: GradientScope,
    into: &GradientLease,
    weight: &Weight<'_>,
) -> Result<(), Error> {
    check_parameters(parameters, layout)?;
    let flat = into.as_tensor();
    if flat.elem_count() != layout.num_elements() {
        return Err(Error::mismatch("elements of the gradient buffer", layout.num_elements(), flat.elem_count()));
    }
    let mut sources = Vec::with_capacity(parameters.len());
    for (parameter, segment) in parameters.iter().zip(layout.segments()) {
        if scope.contains(segment) {
            let Some(gradient) = grads.get(&parameter.var) else {
                return Err(Error::MissingGradient { name: parameter.name.clone() });
            };
            check_gradient(gradient, segment, flat)?;
            sources.push((segment.offset, gradient.to_dtype(flat.dtype())?));
        }
    }
    let sources: Vec<_> = sources.iter().map(|(offset, gradient)| (*offset, gradient)).collect();
    place(flat, &sources, weight)
}

/// Puts tensors to their offsets in `flat`.
pub(crate) fn place(flat: &Tensor, sources: &Sources<'_>, weight: &Weight<'_>) -> Result<(), Error> {
    match Path::of_row(flat)? {
        Path::Kernel => {
            let scale = weight.scale.map(|scale| cpu::with_slices(&[scale], |scale| scale[0][0])).transpose()?;
            let factor = scale.map_or(1.0, f32::recip);
            Ok(cpu::with_slice_mut(flat, |flat| weigh(flat, sources, factor, weight))??)
        }
        Path::Device(kernels) if weight.is_copy() => Ok(kernels.gather(flat, sources)?),
        Path::Device(kernels) => Ok(kernels.weigh(flat, sources, weight)?),
    }
}

/// Confirms that parameters and segments have the same names in the same order, and the same lengths.
pub(crate) fn check_parameters(parameters: &[Parameter], layout: &ParameterLayout) -> Result<(), Error> {
    let segments = layout.segments();
    if parameters.len() != segments.len() {
        return Err(Error::mismatch("number of parameters", segments.len(), parameters.len()));
    }
    for (parameter, segment) in parameters.iter().zip(segments) {
        if parameter.name != segment.spec.name {
            return Err(Error::mismatch("name of a parameter", &segment.spec.name, &parameter.name));
        }
        if parameter.var.elem_count() != segment.len {
            let what = format!("elements of `{}`", parameter.name);
            return Err(Error::mismatch(what, segment.len, parameter.var.elem_count()));
        }
    }
    Ok(())
}

fn check_gradient(gradient: &Tensor, segment: &Segment, flat: &Tensor) -> Result<(), Error> {
    let is_known = gradient.dtype() == flat.dtype() || (gradient.dtype(), flat.dtype()) == (DType::BF16, DType::F32);
    if gradient.elem_count() == segment.len && is_known {
        return Ok(());
    }
    let what = format!("gradient of `{}`", segment.spec.name);
    let expected = format!("{} elements of {:?}", segment.len, flat.dtype());
    Err(Error::mismatch(what, expected, format!("{} elements of {:?}", gradient.elem_count(), gradient.dtype())))
}

/// Offsets in the flat buffer, and what to copy there.
pub(crate) type Sources<'a> = [(usize, &'a Tensor)];

/// Puts each element, times `factor` and by `weight`, to its place.
fn weigh(flat: &mut [f32], sources: &Sources<'_>, factor: f32, weight: &Weight<'_>) -> candle_core::Result<()> {
    for (offset, gradient) in sources {
        let gradient = gradient.contiguous()?;
        cpu::with_slices(&[&gradient], |gradient| {
            let pair = Pair { target: &mut flat[*offset..][..gradient[0].len()], source: gradient[0] };
            if cpu::worth_threads(3 * size_of_val(pair.source)) {
                cpu::for_each(pair, PIECE, &|pair| pair.run(factor, weight));
            } else {
                pair.run(factor, weight);
            }
        })?;
    }
    Ok(())
}

/// Elements that a thread takes at once.
const PIECE: usize = 1 << 16;

/// Places, and what is to get there.
struct Pair<'a> {
    target: &'a mut [f32],
    source: &'a [f32],
}

impl Pair<'_> {
    fn run(self, factor: f32, weight: &Weight<'_>) {
        if weight.is_copy() {
            return self.target.copy_from_slice(self.source);
        }
        let (coefficient, adds) = (weight.coefficient, weight.adds);
        cpu::vectorized(
            #[inline(always)]
            || {
                for (target, source) in self.target.iter_mut().zip(self.source) {
                    let weighed = source * factor * coefficient;
                    *target = if adds { *target + weighed } else { weighed };
                }
            },
        );
    }
}

impl Divide for Pair<'_> {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn split_at(self, index: usize) -> (Self, Self) {
        let (left, right) = self.target.split_at_mut(index);
        let (before, after) = self.source.split_at(index);
        (Self { target: left, source: before }, Self { target: right, source: after })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::grad::GradientBufferPool;
    use crate::testing::{HOST, bits, layout, parameters, random, seed, values, vector};

    fn lease(count: usize) -> GradientLease {
        GradientBufferPool::new().lease(count, DType::F32, &Device::Cpu).unwrap()
    }

    struct Case {
        layout: ParameterLayout,
        parameters: Vec<Parameter>,
    }

    /// Host `a` (2), isolated seed 1 `b` (3), seed 2 `c` (2) that is not isolated.
    fn case() -> Case {
        let layout = layout(&[("a", 2, HOST, false), ("b", 3, seed(1), true), ("c", 2, seed(2), false)]);
        let parameters = parameters(&layout, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        Case { layout, parameters }
    }

    /// The gradient of a sum of squares over the named parameters: twice their elements.
    fn gradients(case: &Case, names: &[&str]) -> GradStore {
        let mut sum = Tensor::new(0.0_f32, &Device::Cpu).unwrap();
        for parameter in case.parameters.iter().filter(|p| names.contains(&p.name.as_str())) {
            sum = (sum + parameter.var.sqr().unwrap().sum_all().unwrap()).unwrap();
        }
        sum.backward().unwrap()
    }

    #[test]
    fn only_the_segments_of_the_scope_are_written() {
        let case = case();
        let grads = gradients(&case, &["a", "b", "c"]);
        let into = lease(7);
        let gather = |scope| gather_gradients(&grads, &case.parameters, &case.layout, scope, &into).unwrap();
        gather(GradientScope::Shadow(SeedId(2)));
        assert_eq!(values(into.as_tensor()), [0.0; 7], "seed 2 has no isolated segment");
        gather(GradientScope::Main);
        assert_eq!(values(into.as_tensor()), [2.0, 4.0, 0.0, 0.0, 0.0, 12.0, 14.0]);
        gather(GradientScope::Shadow(SeedId(1)));
        assert_eq!(values(into.as_tensor()), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
    }

    #[test]
    fn a_parameter_in_scope_without_a_gradient_is_named_and_nothing_is_written() {
        let case = case();
        let grads = gradients(&case, &["a", "b"]);
        let into = lease(7);
        let gather = |scope| gather_gradients(&grads, &case.parameters, &case.layout, scope, &into);
        assert!(matches!(gather(GradientScope::Main), Err(Error::MissingGradient { name }) if name == "c"));
        assert_eq!(values(into.as_tensor()), [0.0; 7]);
        gather(GradientScope::Shadow(SeedId(1))).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let case = case();
        let grads = gradients(&case, &["a", "c"]);
        let main = |parameters: &[Parameter], into: &GradientLease| {
            gather_gradients(&grads, parameters, &case.layout, GradientScope::Main, into).unwrap_err().to_string()
        };
        assert_eq!(main(&case.parameters, &lease(6)), "elements of the gradient buffer: expected 7, found 6");
        assert_eq!(main(&case.parameters[..2], &lease(7)), "number of parameters: expected 3, found 2");
        let mut swapped = case.parameters.clone();
        swapped.swap(0, 1);
        assert_eq!(main(&swapped, &lease(7)), "name of a parameter: expected a, found b");
        let wide = GradientBufferPool::new().lease(7, DType::F64, &Device::Cpu).unwrap();
        assert_eq!(
            main(&case.parameters, &wide),
            "gradient of `a`: expected 2 elements of F64, found 2 elements of F32"
        );
    }

    #[test]
    fn views_are_copied_in_their_logical_order() {
        let matrix = Tensor::new(&[[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::Cpu).unwrap();
        let turned = matrix.t().unwrap();
        let sources = [(0, &turned), (7, &matrix)];
        let flat = vector(&[0.0; 14]);
        place(&flat, &sources, &Weight::ONE).unwrap();
        let expected = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0];
        assert_eq!(values(&flat), expected);
        let scale = vector(&[4.0]);
        place(&flat, &sources, &Weight { scale: Some(&scale), coefficient: 2.0, adds: true }).unwrap();
        assert_eq!(values(&flat), expected.map(|value| value + value / 2.0));
        place(&flat, &sources, &Weight { coefficient: 3.0, ..Weight::ONE }).unwrap();
        assert_eq!(values(&flat), expected.map(|value| 3.0 * value));
    }

    #[test]
    fn many_elements_are_added_as_each_alone() {
        // As much as threads are worth.
        let (source, before) = (random(9 * PIECE + 5, 1), random(9 * PIECE + 5, 2));
        let flat = vector(&before);
        place(&flat, &[(0, &vector(&source))], &Weight { coefficient: 0.3, adds: true, ..Weight::ONE }).unwrap();
        let expected: Vec<f32> = before.iter().zip(&source).map(|(before, source)| before + source * 0.3).collect();
        assert_eq!(bits(&values(&flat)), bits(&expected));
    }
}
