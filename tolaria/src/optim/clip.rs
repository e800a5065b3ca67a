//! Norms of the gradient, and clipping by global norm per gradient domain.
//!
//! A *domain* is what one loss trains: the segments that are not isolated together, and the isolated segments of each
//! seed. Each domain is clipped by its own norm, so that the loss of a shadow cannot slow down the host.

use std::cell::RefCell;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use leyline::layout::{Owner, ParameterLayout};

use crate::cpu;
use crate::error::Error;
use crate::grad::{Run, runs};
use crate::graph::kernels::{DeviceKernels, NormRun};
use crate::path::Path;

/// Squared L2 norms before clipping, `f64`, on the device of the gradient.
#[derive(Debug, Clone)]
pub struct GradientNorms {
    /// Of all segments that are not isolated, a scalar.
    pub main_sq: Tensor,
    /// Of all segments of each owner, isolated or not, in the order asked for, shape (owners,).
    pub owners_sq: Tensor,
}

/// Measures the norms of `gradient`, then scales each domain in place by `min(1, max_norm / norm)`. Without `max_norm`
/// nothing is scaled, and a domain within its norm keeps its bits. A domain whose norm is not finite does not become
/// finite, and leaves the others alone.
///
/// # Shapes
/// `gradient` (P,)
/// # Errors
/// [`Error::LayoutMismatch`] when the gradient does not fit, or a segment belongs to nobody in `owners`.
/// # Sync
/// none
/// # Source
/// Pascanu et al. 2013, arXiv 1211.5063
pub fn measure_and_clip(
    gradient: &Tensor,
    layout: &ParameterLayout,
    owners: &[Owner],
    max_norm: Option<f64>,
) -> Result<GradientNorms, Error> {
    measure_and_clip_on(&Path::of(gradient), gradient, layout, owners, max_norm)
}

/// [`measure_and_clip`] on a path of the caller's choice.
pub(super) fn measure_and_clip_on(
    path: &Path,
    gradient: &Tensor,
    layout: &ParameterLayout,
    owners: &[Owner],
    max_norm: Option<f64>,
) -> Result<GradientNorms, Error> {
    if *gradient.dims() != [layout.num_elements()] {
        let (expected, found) = (format!("[{}]", layout.num_elements()), format!("{:?}", gradient.dims()));
        return Err(Error::mismatch("shape of the gradient", expected, found));
    }
    let runs = runs(layout);
    if let Some(run) = runs.iter().find(|run| !owners.contains(&run.owner)) {
        return Err(Error::mismatch("owners of the gradient", format!("{owners:?}"), format!("{:?}", run.owner)));
    }
    match path {
        Path::Kernel => by_slices(gradient, &runs, owners, max_norm),
        Path::Device(kernels) => on_device(kernels, gradient, &runs, owners, max_norm),
        Path::Composed => composed(gradient, &runs, owners, max_norm),
    }
}

/// The domain of a run: `None` is the main loss.
fn domain(run: &Run) -> Option<Owner> {
    run.isolated.then_some(run.owner)
}

fn by_slices(gradient: &Tensor, runs: &[Run], owners: &[Owner], max_norm: Option<f64>) -> Result<GradientNorms, Error> {
    let kernel = Kernel { runs, max_norm, squares: RefCell::new(Vec::with_capacity(runs.len())) };
    gradient.inplace_op1(&kernel)?;
    let squares = kernel.squares.into_inner();
    let sum = |belongs: &dyn Fn(&Run) -> bool| sum_where(runs, &squares, belongs);
    let main_sq = Tensor::new(sum(&|run| domain(run).is_none()), &Device::Cpu)?;
    let owners_sq: Vec<f64> = owners.iter().map(|owner| sum(&|run| run.owner == *owner)).collect();
    Ok(GradientNorms { main_sq, owners_sq: Tensor::from_vec(owners_sq, owners.len(), &Device::Cpu)? })
}

fn sum_where(runs: &[Run], squares: &[f64], belongs: impl Fn(&Run) -> bool) -> f64 {
    runs.iter().zip(squares).filter(|(run, _)| belongs(run)).map(|(_, square)| square).sum()
}

struct Kernel<'a> {
    runs: &'a [Run],
    max_norm: Option<f64>,
    /// Squared norm of each run, left here by the kernel.
    squares: RefCell<Vec<f64>>,
}

impl InplaceOp1 for Kernel<'_> {
    fn name(&self) -> &'static str {
        "measure-and-clip"
    }

    fn cpu_fwd(&self, gradient: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let gradient = cpu::slice_mut(gradient, layout)?;
        let mut squares = self.squares.borrow_mut();
        squares.extend(self.runs.iter().map(|run| {
            let elements = &gradient[run.range.clone()];
            cpu::dot(elements, elements)
        }));
        let Some(max_norm) = self.max_norm else { return Ok(()) };
        for run in self.runs {
            let square = sum_where(self.runs, &squares, |other| domain(other) == domain(run));
            let scale = max_norm / square.sqrt();
            if scale < 1.0 {
                let scale = cpu::to_f32(scale);
                gradient[run.range.clone()].iter_mut().for_each(|value| *value *= scale);
            }
        }
        Ok(())
    }
}

fn on_device(
    kernels: &DeviceKernels,
    gradient: &Tensor,
    runs: &[Run],
    owners: &[Owner],
    max_norm: Option<f64>,
) -> Result<GradientNorms, Error> {
    let index = |owner: Owner| owners.iter().position(|known| *known == owner).expect("owners were checked");
    let number = |index: usize| u32::try_from(index).expect("owners are few");
    let table: Vec<NormRun> = runs
        .iter()
        .map(|run| NormRun {
            range: run.range.clone(),
            owner: number(index(run.owner)),
            // 0 is the main loss, so that isolated owners count from 1.
            domain: domain(run).map_or(0, |owner| 1 + number(index(owner))),
        })
        .collect();
    let norms = kernels.measure_and_clip(gradient, &table, owners.len(), max_norm)?;
    Ok(GradientNorms { main_sq: norms.narrow(0, 0, 1)?.squeeze(0)?, owners_sq: norms.narrow(0, 1, owners.len())? })
}

fn composed(gradient: &Tensor, runs: &[Run], owners: &[Owner], max_norm: Option<f64>) -> Result<GradientNorms, Error> {
    let zero = Tensor::zeros((), DType::F64, gradient.device())?;
    let part = |run: &Run| gradient.narrow(0, run.range.start, run.range.len());
    let squares: Vec<Tensor> =
        runs.iter().map(|run| part(run)?.to_dtype(DType::F64)?.sqr()?.sum_all()).collect::<candle_core::Result<_>>()?;
    let sum = |belongs: &dyn Fn(&Run) -> bool| {
        let parts = runs.iter().zip(&squares).filter(|(run, _)| belongs(run));
        parts.map(|(_, square)| square).try_fold(zero.clone(), |sum, square| sum + square)
    };
    let main_sq = sum(&|run| domain(run).is_none())?;
    let owners_sq: Vec<Tensor> =
        owners.iter().map(|owner| sum(&|run| run.owner == *owner)).collect::<candle_core::Result<_>>()?;
    let owners_sq = if owners_sq.is_empty() {
        Tensor::zeros(0, DType::F64, gradient.device())?
    } else {
        Tensor::stack(&owners_sq, 0)?
    };
    if let Some(max_norm) = max_norm {
        for run in runs {
            let square = sum(&|other| domain(other) == domain(run))?;
            let scale = (square.sqrt()?.recip()? * max_norm)?.minimum(1.0)?.to_dtype(gradient.dtype())?;
            gradient.slice_set(&part(run)?.broadcast_mul(&scale)?, 0, run.range.start)?;
        }
    }
    Ok(GradientNorms { main_sq, owners_sq })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOST, assert_close, bits, layout, random, seed, values, values_f64, vector};

    /// Host (3) with seed 2 (2), isolated seed 1 (2), isolated seed 3 (1); the host again (1).
    fn example() -> (ParameterLayout, [Owner; 4]) {
        let layout = layout(&[
            ("a", 3, HOST, false),
            ("b", 2, seed(2), false),
            ("c", 2, seed(1), true),
            ("d", 1, seed(3), true),
            ("e", 1, HOST, false),
        ]);
        (layout, [HOST, seed(1), seed(2), seed(3)])
    }

    struct Expected<'a> {
        main_sq: f64,
        owners_sq: &'a [f64],
        clipped: &'a [f32],
    }

    #[track_caller]
    fn check(elements: &[f32], max_norm: Option<f64>, expected: &Expected<'_>) {
        let (layout, owners) = example();
        for path in &[Path::Kernel, Path::Composed] {
            let gradient = vector(elements);
            let norms = measure_and_clip_on(path, &gradient, &layout, &owners, max_norm).unwrap();
            let found: Vec<f64> = values_f64(&norms.main_sq).into_iter().chain(values_f64(&norms.owners_sq)).collect();
            let wanted = std::iter::once(expected.main_sq).chain(expected.owners_sq.iter().copied());
            for (found, wanted) in found.iter().zip(wanted) {
                assert!((found - wanted).abs() <= 1e-12 * wanted, "{path:?}: {found}, expected {wanted}");
            }
            assert_eq!(norms.owners_sq.dims(), [owners.len()]);
            assert_eq!(bits(&values(&gradient)), bits(expected.clipped), "{path:?}");
        }
    }

    const ELEMENTS: [f32; 9] = [2.0, 0.0, 4.0, 5.0, 1.0, 3.0, 4.0, 100.0, -2.0];

    #[test]
    fn without_a_limit_norms_are_measured_and_nothing_is_scaled() {
        let owners_sq = [24.0, 25.0, 26.0, 10_000.0];
        check(&ELEMENTS, None, &Expected { main_sq: 50.0, owners_sq: &owners_sq, clipped: &ELEMENTS });
        check(&ELEMENTS, Some(101.0), &Expected { main_sq: 50.0, owners_sq: &owners_sq, clipped: &ELEMENTS });
    }

    #[test]
    fn each_domain_is_clipped_by_its_own_norm() {
        let mut clipped = ELEMENTS;
        clipped[7] = 10.0;
        let owners_sq = [24.0, 25.0, 26.0, 10_000.0];
        check(&ELEMENTS, Some(10.0), &Expected { main_sq: 50.0, owners_sq: &owners_sq, clipped: &clipped });
        let elements = [8.0, 0.0, 0.0, 6.0, 0.0, 3.0, 4.0, 0.0, 0.0];
        let clipped = [4.0, 0.0, 0.0, 3.0, 0.0, 3.0, 4.0, 0.0, 0.0];
        check(
            &elements,
            Some(5.0),
            &Expected { main_sq: 100.0, owners_sq: &[64.0, 25.0, 36.0, 0.0], clipped: &clipped },
        );
    }

    #[test]
    fn a_shadow_never_changes_a_bit_of_anybody_else() {
        let (layout, owners) = example();
        for wild in [0.0, 1e30, f32::NAN, f32::INFINITY] {
            let (mut elements, mut calm) = (random(9, 1), random(9, 1));
            (elements[7], calm[7]) = (wild, 0.5);
            for path in &[Path::Kernel, Path::Composed] {
                let clip = |elements: &[f32]| {
                    let gradient = vector(elements);
                    measure_and_clip_on(path, &gradient, &layout, &owners, Some(0.25)).unwrap();
                    let mut bits = bits(&values(&gradient));
                    bits.remove(7);
                    bits
                };
                assert_eq!(clip(&elements), clip(&calm), "{path:?} with {wild}");
            }
        }
    }

    #[test]
    fn the_clipped_norm_is_the_limit_on_both_paths() {
        let layout = layout(&[("a", 5000, HOST, false)]);
        let elements = random(5000, 9);
        let norm = elements.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let expected: Vec<f64> = elements.iter().map(|x| f64::from(*x) * 0.3 / norm).collect();
        for path in &[Path::Kernel, Path::Composed] {
            let gradient = vector(&elements);
            measure_and_clip_on(path, &gradient, &layout, &[HOST], Some(0.3)).unwrap();
            // Elements are below 0.02; a rounded factor and a rounded product.
            assert_close(&values(&gradient), &expected, 0.02 * f64::from(f32::EPSILON));
        }
    }

    #[test]
    fn what_is_not_finite_stays_visible() {
        let layout = layout(&[("a", 2, HOST, false)]);
        for path in &[Path::Kernel, Path::Composed] {
            for bad in [f32::NAN, f32::INFINITY] {
                let gradient = vector(&[bad, 1.0]);
                let norms = measure_and_clip_on(path, &gradient, &layout, &[HOST], Some(1.0)).unwrap();
                assert!(!values_f64(&norms.main_sq)[0].is_finite());
                assert!(values(&gradient).iter().any(|value| !value.is_finite()), "{path:?} hides {bad}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (layout, owners) = example();
        let short = measure_and_clip(&vector(&[1.0; 8]), &layout, &owners, None).unwrap_err().to_string();
        assert_eq!(short, "shape of the gradient: expected [9], found [8]");
        let orphan = measure_and_clip(&vector(&[1.0; 9]), &layout, &owners[..3], None).unwrap_err().to_string();
        assert!(orphan.contains("found Seed(SeedId(3))"), "{orphan}");
    }
}
