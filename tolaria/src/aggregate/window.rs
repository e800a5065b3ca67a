//! The aggregation of one window.

use std::ops::Range;

use candle_core::Tensor;
use leyline::id::StepIndex;
use leyline::layout::ParameterLayout;
use leyline::seed::Attribution;

use super::combine::{Term, combine};
use super::config::ConflictResolution;
use super::gram::Gram;
use super::pcgrad::{Projection, project};
use super::report::{Aggregated, ConflictReport, OwnerReport};
use super::shares::{Shares, host_share};
use crate::cpu::Path;
use crate::error::Error;
use crate::grad::{GradientLease, runs};
use crate::host_read::HostReads;
use crate::rng::{self, Purpose};

/// One microbatch after its backward pass.
#[derive(Debug)]
pub struct MicrobatchGradient {
    /// Gradient of the mean loss over its samples, shape (P,).
    pub gradient: GradientLease,
    /// Samples (n_k).
    pub num_samples: usize,
    /// Whose it is.
    pub attribution: Attribution,
}

/// What the random order of projections follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectionOrder {
    /// Seed of the run.
    pub seed: u64,
    /// The optimizer step.
    pub step: StepIndex,
}

/// Turns the gradients g_1 … g_K of a window into one gradient.
///
/// With [`ConflictResolution::Mean`] that is `Σ (n_k/N) g_k`. With [`ConflictResolution::PcGrad`], conflicts between
/// owners are projected away on the segments that are not isolated. The plain gradient results bit for bit when there
/// is no conflict, and without looking for one when the window has one microbatch or one owner. A NaN or an infinite
/// element conflicts with nothing and stays visible in the result.
///
/// The result is the same on every run, and its elements differ from exact arithmetic by at most
/// `(K + 1) 2⁻²⁴ Σ_k |a_k g_k|`, a_k being the coefficients.
///
/// # Shapes
/// gradients (P,) of one type and device, P as in `layout`
/// # Errors
/// [`Error::LayoutMismatch`] for an empty window, a window without samples, or gradients that do not fit.
/// # Sync
/// none on the CPU; elsewhere PCGrad copies K×K numbers to the host, counted as `pcgrad gram`
/// # Source
/// Yu et al. 2020, arXiv 2001.06782, algorithm 1
pub fn aggregate(
    window: Vec<MicrobatchGradient>,
    layout: &ParameterLayout,
    resolution: ConflictResolution,
    order: ProjectionOrder,
    reads: &mut HostReads,
) -> Result<Aggregated, Error> {
    let path = window.first().map_or(Path::Composed, |first| Path::of(first.gradient.as_tensor()));
    aggregate_on(path, window, layout, resolution, order, reads)
}

/// [`aggregate`] on a path of the caller's choice.
pub(super) fn aggregate_on(
    path: Path,
    window: Vec<MicrobatchGradient>,
    layout: &ParameterLayout,
    resolution: ConflictResolution,
    order: ProjectionOrder,
    reads: &mut HostReads,
) -> Result<Aggregated, Error> {
    let fractions = check(&window, layout)?;
    let weighted = window.iter().map(|microbatch| &microbatch.attribution).zip(fractions.iter().copied());
    let host_share = weighted.clone().map(|(attribution, fraction)| host_share(attribution) * fraction).sum();

    let mut conflicts = None;
    if window.len() > 1 {
        let rows: Vec<&Tensor> = window.iter().map(|microbatch| microbatch.gradient.as_tensor()).collect();
        let mut resolved = None;
        if resolution == ConflictResolution::PcGrad {
            let shares = Shares::new(weighted);
            if shares.owners().len() > 1 {
                let mut rng = rng::stream(order.seed, Purpose::ProjectionOrder, order.step.0);
                let gram = Gram::measure(path, &rows, &ranges(layout, false), reads)?;
                let projection = project(&gram, &shares, &mut rng);
                conflicts = Some(report(&shares, &projection));
                resolved = projection.coefficients;
            }
        }
        match resolved {
            None => combine(path, &rows, &[(0..layout.num_elements(), &fractions)])?,
            Some(coefficients) => {
                let terms: Vec<Term<'_>> = ranges(layout, false)
                    .into_iter()
                    .map(|range| (range, coefficients.as_slice()))
                    .chain(ranges(layout, true).into_iter().map(|range| (range, fractions.as_slice())))
                    .collect();
                combine(path, &rows, &terms)?;
            }
        }
    }
    let first = window.into_iter().next().expect("a checked window has a microbatch");
    Ok(Aggregated { gradient: first.gradient, host_share, conflicts })
}

/// Confirms that the window can be aggregated, and returns `n_k/N`.
fn check(window: &[MicrobatchGradient], layout: &ParameterLayout) -> Result<Vec<f64>, Error> {
    let total: usize = window.iter().map(|microbatch| microbatch.num_samples).sum();
    let Some(first) = window.first().filter(|_| total > 0) else {
        return Err(Error::mismatch("accumulation window", "at least one sample", "none"));
    };
    let first = first.gradient.as_tensor();
    for microbatch in window {
        let gradient = microbatch.gradient.as_tensor();
        if gradient.elem_count() != layout.num_elements() {
            let what = "elements of a microbatch's gradient";
            return Err(Error::mismatch(what, layout.num_elements(), gradient.elem_count()));
        }
        if gradient.dtype() != first.dtype() || !gradient.device().same_device(first.device()) {
            let kind = |tensor: &Tensor| format!("{:?} on {:?}", tensor.dtype(), tensor.device().location());
            return Err(Error::mismatch("gradients of a window", kind(first), kind(gradient)));
        }
    }
    Ok(window.iter().map(|microbatch| microbatch.num_samples as f64 / total as f64).collect())
}

/// Elements that are isolated, or those that are not, as few ranges as possible.
fn ranges(layout: &ParameterLayout, isolated: bool) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for run in runs(layout).into_iter().filter(|run| run.isolated == isolated) {
        match ranges.last_mut() {
            Some(last) if last.end == run.range.start => last.end = run.range.end,
            _ => ranges.push(run.range),
        }
    }
    ranges
}

fn report(shares: &Shares, projection: &Projection) -> ConflictReport {
    let norms = &projection.norms;
    let sum: f64 = norms.iter().sum();
    let owner = |(index, owner)| OwnerReport {
        owner,
        weight: shares.weight(index),
        norm: norms[index],
        norm_share: if norms[index] <= 0.0 { 0.0 } else { norms[index] / sum },
    };
    ConflictReport { stats: projection.stats, owners: shares.owners().iter().copied().enumerate().map(owner).collect() }
}
