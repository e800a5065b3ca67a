//! Copies the gradients of a backward pass into a flat buffer.

use candle_core::backend::BackendStorage;
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, InplaceOp1, Layout, Storage, Tensor};
use leyline::id::SeedId;
use leyline::layout::{Owner, ParameterLayout, Segment};
use leyline::model::Parameter;

use super::pool::GradientLease;
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

/// Copies the gradients of all segments in `scope` to their places in `into`; other places stay as they are.
///
/// # Shapes
/// `into` (P,); `parameters` in the order of `layout`.
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
            sources.push((segment.offset, gradient));
        }
    }
    match Path::of(flat)? {
        Path::Kernel => Ok(flat.inplace_op1(&Gather(&sources))?),
        Path::Device(kernels) => Ok(kernels.gather(flat, &sources)?),
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
    if gradient.elem_count() == segment.len && gradient.dtype() == flat.dtype() {
        return Ok(());
    }
    let what = format!("gradient of `{}`", segment.spec.name);
    let expected = format!("{} elements of {:?}", segment.len, flat.dtype());
    Err(Error::mismatch(what, expected, format!("{} elements of {:?}", gradient.elem_count(), gradient.dtype())))
}

/// Offsets in the flat buffer, and what to copy there.
type Sources<'a> = [(usize, &'a Tensor)];

/// All copies in one operation: the buffer is locked once.
struct Gather<'a>(&'a Sources<'a>);

impl InplaceOp1 for Gather<'_> {
    fn name(&self) -> &'static str {
        "gather-gradients"
    }

    fn cpu_fwd(&self, flat: &mut CpuStorage, flat_layout: &Layout) -> candle_core::Result<()> {
        for (offset, gradient) in self.0 {
            let (storage, layout) = gradient.storage_and_layout();
            let Storage::Cpu(storage) = &*storage else {
                candle_core::bail!("a gradient of a CPU parameter is on another device")
            };
            storage.copy_strided_src(flat, flat_layout.start_offset() + offset, layout)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::grad::GradientBufferPool;
    use crate::testing::{HOST, layout, parameters, seed, values, vector};

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
        flat.inplace_op1(&Gather(&sources)).unwrap();
        let expected = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0];
        assert_eq!(values(&flat), expected);
    }
}
