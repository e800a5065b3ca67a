//! The aggregation of one window.

use std::ops::Range;

use candle_core::{DType, Tensor};
use leyline::layout::ParameterLayout;
use leyline::seed::Attribution;

use super::combine::{Term, combine};
use super::config::ConflictResolution;
use super::gram::Gram;
use super::pcgrad::project;
use super::plan::{ProjectionOrder, WindowPlan};
use super::report::{Aggregated, Combined, ConflictReport};
use crate::error::Error;
use crate::grad::{GradientLease, runs};
use crate::graph::kernels::{DeviceKernels, MAX_OWNERS, MAX_ROWS};
use crate::host_read::HostReads;
use crate::path::Path;

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

/// Plans a window and combines it, with a report on its owners.
///
/// [`WindowPlan::new`] followed by [`combine_window`], except that the host always finds the coefficients: the report
/// needs the inner products there.
///
/// # Shapes
/// gradients (P,) of one type and device, P as in `layout`
/// # Errors
/// [`Error::LayoutMismatch`] for an empty window, a window without samples, or gradients that do not fit.
/// # Sync
/// none on the CPU; elsewhere PCGrad copies K×K numbers to the host, counted as `pcgrad gram`
pub fn aggregate(
    window: Vec<MicrobatchGradient>,
    layout: &ParameterLayout,
    resolution: ConflictResolution,
    order: ProjectionOrder,
    reads: &mut HostReads,
) -> Result<Aggregated, Error> {
    let path = path_of(window.iter().map(|microbatch| &microbatch.gradient));
    aggregate_on(&path, window, layout, resolution, order, reads)
}

/// [`aggregate`] on a path of the caller's choice.
pub(super) fn aggregate_on(
    path: &Path,
    window: Vec<MicrobatchGradient>,
    layout: &ParameterLayout,
    resolution: ConflictResolution,
    order: ProjectionOrder,
    reads: &mut HostReads,
) -> Result<Aggregated, Error> {
    let (rows, microbatches): (Vec<GradientLease>, Vec<(usize, Attribution)>) = window
        .into_iter()
        .map(|microbatch| (microbatch.gradient, (microbatch.num_samples, microbatch.attribution)))
        .unzip();
    let plan = WindowPlan::new(&microbatches, resolution, order)?;
    check(&rows, layout, &plan)?;
    let combined = combine_by_host(path, rows, layout, &plan, reads)?;
    Ok(Aggregated { gradient: combined.gradient, host_share: plan.host_share(), conflicts: combined.report })
}

/// Turns the gradients g_1 … g_K of a window into one gradient.
///
/// When the plan does not look for conflicts that is `Σ (n_k/N) g_k`, the plain gradient. Otherwise conflicts between
/// owners are projected away on the segments that are not isolated; without a conflict the plain gradient results bit
/// for bit. A NaN or an infinite element conflicts with nothing and stays visible in the result.
///
/// The result is the same on every run, and its elements differ from exact arithmetic by at most
/// `(K + 1) 2⁻²⁴ Σ_k |a_k g_k|`, a_k being the coefficients.
///
/// On a GPU, a window of `f32` is device work alone, so that a graph can hold it. What is fixed in that work are the
/// shapes, the numbers of samples and [`WindowPlan::resolves_conflicts`]; the rest is read from `arguments`, which is
/// to have what [`WindowPlan::arguments`] gives before every replay. Without `arguments` those of `plan` are copied to
/// the device, for work that runs once. The kernels take 32 microbatches and arguments for 16 owners: beyond that, for
/// other types, and on the CPU, `plan` is followed on the host, and `arguments` only has to fit.
///
/// # Shapes
/// `rows` (P,) of one type and device, one per microbatch of `plan`, P as in `layout`; `arguments` flat, of `f64`, on
/// the device of the rows
/// # Errors
/// [`Error::LayoutMismatch`] for gradients or arguments that do not fit.
/// # Sync
/// none with the kernels of the CPU and of the GPU; otherwise looking for conflicts copies K×K numbers to the host,
/// counted as `pcgrad gram`
/// # Source
/// Yu et al. 2020, arXiv 2001.06782, algorithm 1
pub fn combine_window(
    rows: Vec<GradientLease>,
    layout: &ParameterLayout,
    plan: &WindowPlan,
    arguments: Option<&Tensor>,
    reads: &mut HostReads,
) -> Result<Combined, Error> {
    check(&rows, layout, plan)?;
    if let Some(arguments) = arguments {
        check_arguments(arguments, plan, rows[0].as_tensor())?;
    }
    let path = path_of(rows.iter());
    let num_arguments = |max_owners| WindowPlan::num_arguments(rows.len(), max_owners);
    // The owners that the arguments have room for: a replay of this work can meet more of them than this plan has.
    let room = arguments.map_or_else(|| num_arguments(plan.num_owners()), Tensor::elem_count);
    match path {
        Path::Device(kernels) if plan.resolves_conflicts() && room <= num_arguments(MAX_OWNERS) => {
            combine_by_kernels(&kernels, rows, layout, plan, arguments)
        }
        path => combine_by_host(&path, rows, layout, plan, reads),
    }
}

/// The composed path where the kernels of the GPU have no room for the rows.
fn path_of<'a>(mut rows: impl ExactSizeIterator<Item = &'a GradientLease>) -> Path {
    let num_rows = rows.len();
    match rows.next().map(|first| Path::of(first.as_tensor())) {
        Some(Path::Device(_)) if num_rows > MAX_ROWS => Path::Composed,
        Some(path) => path,
        None => Path::Composed,
    }
}

/// Coefficients from the GPU, for a plan that looks for conflicts.
fn combine_by_kernels(
    kernels: &DeviceKernels,
    rows: Vec<GradientLease>,
    layout: &ParameterLayout,
    plan: &WindowPlan,
    arguments: Option<&Tensor>,
) -> Result<Combined, Error> {
    let tensors: Vec<&Tensor> = rows.iter().map(GradientLease::as_tensor).collect();
    let of_plan = match arguments {
        Some(_) => None,
        None => {
            let arguments = plan.arguments(plan.num_owners())?;
            let length = arguments.len();
            Some(Tensor::from_vec(arguments, length, tensors[0].device())?)
        }
    };
    let arguments = arguments.or(of_plan.as_ref()).expect("there are those of the plan when there are no others");
    let gram = kernels.gram(&tensors, &ranges(layout, false))?;
    let (coefficients, conflicting_pairs) = kernels.pcgrad_solve(&gram, arguments)?;
    for (row, isolated) in [(0, false), (1, true)] {
        let coefficients = coefficients.get(row)?;
        for range in ranges(layout, isolated) {
            kernels.combine(&tensors, &coefficients, &range)?;
        }
    }
    Ok(Combined { gradient: first(rows), conflicting_pairs: Some(conflicting_pairs), report: None })
}

/// Coefficients from the host.
fn combine_by_host(
    path: &Path,
    rows: Vec<GradientLease>,
    layout: &ParameterLayout,
    plan: &WindowPlan,
    reads: &mut HostReads,
) -> Result<Combined, Error> {
    let tensors: Vec<&Tensor> = rows.iter().map(GradientLease::as_tensor).collect();
    let mut report = None;
    let mut resolved = None;
    if let Some(owners) = plan.owners() {
        let gram = Gram::measure(path, &tensors, &ranges(layout, false), reads)?;
        let projection = project(&gram, owners);
        report = Some(ConflictReport::new(&owners.shares, &projection));
        resolved = projection.coefficients;
    }
    match resolved {
        // The only gradient is its own mean.
        None if tensors.len() == 1 => {}
        None => combine(path, &tensors, &[(0..layout.num_elements(), plan.fractions())])?,
        Some(coefficients) => {
            let terms: Vec<Term<'_>> = ranges(layout, false)
                .into_iter()
                .map(|range| (range, coefficients.as_slice()))
                .chain(ranges(layout, true).into_iter().map(|range| (range, plan.fractions())))
                .collect();
            combine(path, &tensors, &terms)?;
        }
    }
    let pairs = report.as_ref().map(|report: &ConflictReport| report.stats.conflicting_pairs as f64);
    let conflicting_pairs = pairs.map(|pairs| Tensor::from_vec(vec![pairs], 1, tensors[0].device())).transpose()?;
    Ok(Combined { gradient: first(rows), conflicting_pairs, report })
}

/// The lease that every path combines into.
fn first(rows: Vec<GradientLease>) -> GradientLease {
    rows.into_iter().next().expect("a checked window has a microbatch")
}

/// Confirms that the gradients fit the layout, the plan and each other.
fn check(rows: &[GradientLease], layout: &ParameterLayout, plan: &WindowPlan) -> Result<(), Error> {
    if rows.len() != plan.num_microbatches() {
        return Err(Error::mismatch("microbatches of a window", plan.num_microbatches(), rows.len()));
    }
    let first = rows[0].as_tensor();
    for row in rows.iter().map(GradientLease::as_tensor) {
        if row.elem_count() != layout.num_elements() {
            let what = "elements of a microbatch's gradient";
            return Err(Error::mismatch(what, layout.num_elements(), row.elem_count()));
        }
        if row.dtype() != first.dtype() || !row.device().same_device(first.device()) {
            return Err(Error::mismatch("gradients of a window", kind(first), kind(row)));
        }
    }
    Ok(())
}

/// Confirms that the arguments of this plan would fit into `arguments`.
fn check_arguments(arguments: &Tensor, plan: &WindowPlan, row: &Tensor) -> Result<(), Error> {
    let least = WindowPlan::num_arguments(plan.num_microbatches(), plan.num_owners());
    if arguments.elem_count() < least {
        return Err(Error::mismatch("arguments of a window", format!("at least {least}"), arguments.elem_count()));
    }
    if arguments.dtype() != DType::F64 || !arguments.device().same_device(row.device()) {
        let expected = format!("F64 on {:?}", row.device().location());
        return Err(Error::mismatch("arguments of a window", expected, kind(arguments)));
    }
    Ok(())
}

fn kind(tensor: &Tensor) -> String {
    format!("{:?} on {:?}", tensor.dtype(), tensor.device().location())
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
