//! Aggregation on both paths, against the direct algorithm.

use candle_core::{DType, Device, Tensor};
use leyline::id::{SeedId, StepIndex};
use leyline::layout::{Owner, ParameterLayout};
use leyline::seed::{Attribution, AttributionMode};

use super::pcgrad::visiting_orders;
use super::reference::{Reference, pcgrad};
use super::window::aggregate_on;
use super::*;
use crate::error::Error;
use crate::grad::{GradientBufferPool, GradientLease};
use crate::host_read::HostReads;
use crate::path::Path;
use crate::rng::{self, Purpose};
use crate::testing::{HOST, bits, layout, random, seed, values, vector};

const ORDER: ProjectionOrder = ProjectionOrder { seed: 11, step: StepIndex(3) };
const PATHS: [Path; 2] = [Path::Kernel, Path::Composed];

/// One microbatch: its gradient, samples and attribution.
type Row<'a> = (&'a [f32], usize, &'a [(u32, f64)]);

fn attribution(weights: &[(u32, f64)]) -> Attribution {
    let weights = weights.iter().map(|&(id, weight)| (SeedId(id), weight)).collect();
    Attribution::new(AttributionMode::Stage, weights).unwrap()
}

fn host_layout(count: usize) -> ParameterLayout {
    layout(&[("a", count, HOST, false)])
}

fn window(rows: &[Row<'_>], pool: &GradientBufferPool) -> Vec<MicrobatchGradient> {
    rows.iter()
        .map(|&(elements, num_samples, weights)| {
            let gradient = pool.lease(elements.len(), DType::F32, &Device::Cpu).unwrap();
            if !elements.is_empty() {
                gradient.as_tensor().slice_set(&vector(elements), 0, 0).unwrap();
            }
            MicrobatchGradient { gradient, num_samples, attribution: attribution(weights) }
        })
        .collect()
}

struct Run {
    gradient: Vec<f32>,
    conflicts: Option<ConflictReport>,
    host_share: f64,
    reads: u64,
}

fn run_with(
    path: &Path,
    layout: &ParameterLayout,
    rows: &[Row<'_>],
    how: ConflictResolution,
    order: ProjectionOrder,
) -> Run {
    let (pool, mut reads) = (GradientBufferPool::new(), HostReads::default());
    let result = aggregate_on(path, window(rows, &pool), layout, how, order, &mut reads).unwrap();
    assert_eq!(pool.stats().outstanding, 1, "only the result is still leased");
    let run = Run {
        gradient: values(result.gradient.as_tensor()),
        conflicts: result.conflicts,
        host_share: result.host_share,
        reads: reads.total(),
    };
    drop(result.gradient);
    assert_eq!(pool.stats().outstanding, 0);
    run
}

fn run(path: &Path, layout: &ParameterLayout, rows: &[Row<'_>], how: ConflictResolution) -> Run {
    run_with(path, layout, rows, how, ORDER)
}

/// Both paths give exactly `expected`, with `conflicting` ordered pairs; `None` when they are not looked for.
#[track_caller]
fn check(rows: &[Row<'_>], conflicting: Option<u64>, expected: &[f32]) {
    let layout = host_layout(expected.len());
    for path in &PATHS {
        let run = run(path, &layout, rows, ConflictResolution::PcGrad);
        assert_eq!(run.gradient, expected, "{path:?}");
        assert_eq!(run.conflicts.map(|report| report.stats.conflicting_pairs), conflicting, "{path:?}");
    }
}

/// Both paths against the direct algorithm: the same conflicts, and elements within the stated bound.
#[track_caller]
fn check_reference(layout: &ParameterLayout, rows: &[Row<'_>]) -> Reference {
    let total: usize = rows.iter().map(|row| row.1).sum();
    let fractions: Vec<f64> = rows.iter().map(|row| row.1 as f64 / total as f64).collect();
    let attributions: Vec<Attribution> = rows.iter().map(|row| attribution(row.2)).collect();
    let shares = shares::Shares::new(attributions.iter().zip(fractions.iter().copied()));
    let isolated: Vec<bool> =
        layout.segments().iter().flat_map(|s| std::iter::repeat_n(s.spec.isolated, s.len)).collect();
    let combination = |coefficients: &[f64], element: usize| -> f64 {
        rows.iter().zip(coefficients).map(|(row, c)| c * f64::from(row.0[element])).sum()
    };
    let owners: Vec<Vec<f64>> = (0..shares.owners().len())
        .map(|owner| {
            let element = |at: usize| if isolated[at] { 0.0 } else { combination(shares.row(owner), at) };
            (0..isolated.len()).map(element).collect()
        })
        .collect();
    let mut rng = rng::stream(ORDER.seed, Purpose::ProjectionOrder, ORDER.step.0);
    let reference = pcgrad(&owners, &visiting_orders(owners.len(), &mut rng));
    let projected: Vec<f64> = (0..rows.len())
        .map(|k| (0..owners.len()).map(|owner| reference.weights[owner] * shares.row(owner)[k]).sum())
        .collect();

    for path in &PATHS {
        let run = run(path, layout, rows, ConflictResolution::PcGrad);
        let stats = run.conflicts.expect("conflicts are looked for").stats;
        assert_eq!(stats.conflicting_pairs, reference.conflicting_pairs, "{path:?}");
        assert_eq!(stats.all_pairs, (owners.len() * (owners.len() - 1)) as u64);
        for (at, found) in run.gradient.iter().enumerate() {
            let coefficients = if isolated[at] { &fractions } else { &projected };
            let expected = if isolated[at] { combination(&fractions, at) } else { reference.gradient[at] };
            let terms: f64 = rows.iter().zip(coefficients).map(|(row, c)| (c * f64::from(row.0[at])).abs()).sum();
            // The bound of `aggregate`, and the smallest subnormal number for each term that underflows.
            let bound = (rows.len() + 1) as f64 * (f64::from(f32::EPSILON) / 2.0 * terms * 1.000_001 + 1e-45);
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= bound, "{path:?}, element {at}: {found} is {error:e} from {expected}, bound {bound:e}");
        }
    }
    reference
}

#[test]
fn one_microbatch_is_its_own_gradient_bit_for_bit() {
    check(&[(&[0.1, -0.0, 3e38], 5, &[(1, 0.5)])], None, &[0.1, -0.0, 3e38]);
    let run = run(&Path::Kernel, &host_layout(1), &[(&[-0.0], 5, &[])], ConflictResolution::PcGrad);
    assert_eq!(bits(&run.gradient), bits(&[-0.0]));
}

#[test]
fn the_plain_gradient_is_the_mean_over_samples() {
    let rows: [Row<'_>; 3] = [(&[4.0, 0.0], 1, &[]), (&[0.0, 8.0], 2, &[(1, 1.0)]), (&[4.0, -4.0], 1, &[])];
    for path in &PATHS {
        let run = run(path, &host_layout(2), &rows, ConflictResolution::Mean);
        assert_eq!(run.gradient, [2.0, 3.0]);
        assert_eq!((run.conflicts, run.reads), (None, 0));
        assert!((run.host_share - 0.5).abs() < 1e-12);
    }
}

#[test]
fn one_owner_needs_no_gram_matrix() {
    for weights in [&[][..], &[(7, 1.0)]] {
        let rows: [Row<'_>; 2] = [(&[1.0, 0.0], 1, weights), (&[-3.0, 1.0], 1, weights)];
        check(&rows, None, &[-1.0, 0.5]);
        assert_eq!(run(&Path::Composed, &host_layout(2), &rows, ConflictResolution::PcGrad).reads, 0);
    }
}

#[test]
fn only_the_composed_path_reads_and_only_the_gram_matrix() {
    let rows: [Row<'_>; 2] = [(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 1.0], 1, &[])];
    assert_eq!(run(&Path::Kernel, &host_layout(2), &rows, ConflictResolution::PcGrad).reads, 0);
    let (pool, mut reads) = (GradientBufferPool::new(), HostReads::default());
    let how = ConflictResolution::PcGrad;
    aggregate_on(&Path::Composed, window(&rows, &pool), &host_layout(2), how, ORDER, &mut reads).unwrap();
    assert_eq!(reads.counts().iter().collect::<Vec<_>>(), [(&"pcgrad gram", &1)]);
}

#[test]
fn opposed_gradients_cancel() {
    check(&[(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 0.0], 1, &[])], Some(2), &[0.0, 0.0]);
    check(&[(&[4.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 0.0], 1, &[])], Some(2), &[0.0, 0.0]);
}

#[test]
fn a_conflict_is_projected_onto_the_originals() {
    // Halves (1, 0) and (-1, 1): the first loses (1/2, -1/2), the second (-1, 0); (1/2, 1/2) + (0, 1).
    check(&[(&[2.0, 0.0], 1, &[(1, 1.0)]), (&[-2.0, 2.0], 1, &[])], Some(2), &[0.5, 1.5]);
}

#[test]
fn copies_of_one_gradient_never_conflict() {
    let row = [0.3_f32, -0.7, 1e-3];
    let rows: [Row<'_>; 4] =
        [(&row, 1, &[(1, 1.0)]), (&row, 1, &[(2, 0.5)]), (&row, 1, &[(3, 1.0)]), (&row, 1, &[(1, 0.2), (2, 0.3)])];
    check(&rows, Some(0), &row);
}

#[test]
fn zero_gradients_conflict_with_nothing() {
    check(&[(&[0.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 2.0], 1, &[])], Some(0), &[-0.5, 1.0]);
    check(&[(&[0.0, 0.0], 1, &[(1, 1.0)]), (&[0.0, 0.0], 1, &[])], Some(0), &[0.0, 0.0]);
}

/// Both paths find no conflict and give the plain gradient.
#[track_caller]
fn check_plain(rows: &[Row<'_>]) {
    for path in &PATHS {
        let layout = host_layout(rows[0].0.len());
        let plain = run(path, &layout, rows, ConflictResolution::Mean);
        let resolved = run(path, &layout, rows, ConflictResolution::PcGrad);
        assert_eq!(resolved.conflicts.unwrap().stats.conflicting_pairs, 0, "{path:?}");
        assert_eq!(bits(&plain.gradient), bits(&resolved.gradient), "{path:?}");
        assert!(resolved.gradient.iter().all(|value| value.is_finite()));
    }
}

#[test]
fn what_rounding_leaves_of_a_cancelled_gradient_conflicts_with_nothing() {
    // Thrice 0.1 and 0.7, rounded, against three times their opposites.
    let third = [0.1_f32, 0.7];
    let thrice = third.map(|x| x * 3.0);
    check_plain(&[(&thrice, 1, &[(1, 1.0)]), (&third.map(|x| -x), 3, &[(1, 1.0)]), (&[0.3, -0.6], 1, &[])]);
    check_plain(&[(&thrice, 1, &[(1, 1.0)]), (&third.map(|x| -x), 3, &[(1, 1.0)]), (&[-0.3, 0.6], 1, &[])]);
}

#[test]
fn a_vanishing_gradient_conflicts_with_nothing() {
    let tiny = [-1e-38_f32, 1e-38];
    check_plain(&[(&[1e38, 0.0], 1, &[(1, 1.0)]), (&tiny, 2, &[])]);
    check_plain(&[(&[1e-3, 0.0], 1, &[(1, 1.0)]), (&tiny, 2, &[])]);
}

#[test]
fn without_a_conflict_the_result_is_the_plain_gradient_bit_for_bit() {
    for case in 0..30 {
        // Disjoint supports and positive elements: no inner product is negative.
        let count = 5000;
        let rows: Vec<Vec<f32>> =
            (0..3).map(|k| random(count, case * 3 + k).iter().map(|x| x.abs()).collect()).collect();
        let weights: [&[(u32, f64)]; 3] = [&[(1, 0.9)], &[(2, 0.4)], &[(1, 0.3), (2, 0.1)]];
        let rows: Vec<Row<'_>> =
            rows.iter().zip(weights).zip([4, 4, 1]).map(|((row, w), n)| (row.as_slice(), n, w)).collect();
        for path in &PATHS {
            let plain = run(path, &host_layout(count), &rows, ConflictResolution::Mean);
            let resolved = run(path, &host_layout(count), &rows, ConflictResolution::PcGrad);
            assert_eq!(resolved.conflicts.unwrap().stats, ConflictStats { conflicting_pairs: 0, all_pairs: 6 });
            assert_eq!(bits(&plain.gradient), bits(&resolved.gradient), "{path:?}");
        }
    }
}

#[test]
fn random_windows_equal_the_direct_algorithm() {
    let mut conflicts = 0;
    for case in 0..120_usize {
        let scale = [1.0, 1e-30, 1e30][case % 3];
        let microbatches = 2 + case % 5;
        // Small dimensions conflict often and strongly; the large one spans several blocks.
        let count = [3, 8, 40, 2500][case % 4];
        let layout = layout(&[
            ("a", count, HOST, false),
            ("b", 3, seed(1), true),
            ("c", 5, seed(2), false),
            ("d", 2, seed(3), true),
        ]);
        let rows: Vec<Vec<f32>> = (0..microbatches as u64)
            .map(|k| random(count + 10, 100 * case as u64 + k).iter().map(|x| x * scale).collect())
            .collect();
        // Each microbatch belongs mostly to one owner, the host among them.
        let weights: Vec<Vec<(u32, f64)>> = (0..microbatches)
            .map(|k| (1..4).map(|id| (id, if (k + case) % 4 == id as usize { 0.8 } else { 0.04 })).collect())
            .collect();
        let rows: Vec<Row<'_>> = rows
            .iter()
            .zip(&weights)
            .enumerate()
            .map(|(k, (row, weights))| (row.as_slice(), 1 + (k + case) % 4, weights.as_slice()))
            .collect();
        conflicts += u64::from(check_reference(&layout, &rows).conflicting_pairs > 0);
    }
    assert!((20..120).contains(&conflicts), "{conflicts} of 120 windows conflict: too few or too many to tell");
}

#[test]
fn owners_of_very_different_size_equal_the_direct_algorithm() {
    for (small, large) in [(1e-20_f32, 1.0_f32), (1e-14, 1e14), (1e-3, 1e3)] {
        let rows: [Row<'_>; 3] = [
            (&[large, 0.0, large], 1, &[(1, 1.0)]),
            (&[-small, small, 0.0], 2, &[]),
            (&[small, -small, small], 1, &[(2, 1.0)]),
        ];
        assert!(check_reference(&host_layout(3), &rows).conflicting_pairs > 0);
    }
}

#[test]
fn isolated_segments_get_the_plain_gradient_and_do_not_conflict() {
    let layout = layout(&[("a", 1, HOST, false), ("b", 2, seed(1), true)]);
    // The isolated elements point against each other, the others do not.
    let peaceful: [Row<'_>; 2] = [(&[1.0, 5.0, 2.0], 1, &[(1, 1.0)]), (&[1.0, -5.0, -4.0], 1, &[])];
    // The other way round.
    let opposed: [Row<'_>; 2] = [(&[1.0, 5.0, 2.0], 1, &[(1, 1.0)]), (&[-1.0, 5.0, -4.0], 1, &[])];
    for path in &PATHS {
        let run = |rows| run(path, &layout, rows, ConflictResolution::PcGrad);
        let (first, second) = (run(&peaceful), run(&opposed));
        assert_eq!((first.gradient, first.conflicts.unwrap().stats.conflicting_pairs), (vec![1.0, 0.0, -1.0], 0));
        assert_eq!((second.gradient, second.conflicts.unwrap().stats.conflicting_pairs), (vec![0.0, 5.0, -1.0], 2));
    }
}

#[test]
fn owners_are_reported_with_weight_norm_and_share() {
    let rows: [Row<'_>; 2] = [(&[6.0, 0.0], 1, &[(4, 1.0)]), (&[0.0, 4.0], 3, &[])];
    for path in &PATHS {
        let run = run(path, &host_layout(2), &rows, ConflictResolution::PcGrad);
        let report = run.conflicts.unwrap();
        let expected = [(HOST, 0.75, 3.0, 2.0 / 3.0), (seed(4), 0.25, 1.5, 1.0 / 3.0)];
        for (found, (owner, weight, norm, share)) in report.owners.iter().zip(expected) {
            assert_eq!(found.owner, owner);
            let errors = [found.weight - weight, found.norm - norm, found.norm_share - share];
            assert!(errors.iter().all(|error| error.abs() < 1e-12), "{found:?}");
        }
        assert_eq!(report.stats.ratio(), Some(0.0));
        assert!((run.host_share - 0.75).abs() < 1e-12);
    }
    assert_eq!(ConflictStats::default().ratio(), None);
    assert_eq!(ConflictStats { conflicting_pairs: 6, all_pairs: 6 }.ratio(), Some(1.0));
}

#[test]
fn the_order_of_projections_follows_from_seed_and_step() {
    let rows: Vec<Vec<f32>> = (0..4).map(|k| random(3, 40 + k)).collect();
    let weights: [&[(u32, f64)]; 4] = [&[(1, 1.0)], &[(2, 1.0)], &[(3, 1.0)], &[]];
    let rows: Vec<Row<'_>> = rows.iter().zip(weights).map(|(row, w)| (row.as_slice(), 1, w)).collect();
    let of = |seed, step| {
        let order = ProjectionOrder { seed, step: StepIndex(step) };
        bits(&run_with(&Path::Kernel, &host_layout(3), &rows, ConflictResolution::PcGrad, order).gradient)
    };
    let results: Vec<_> = (0..8).map(|step| of(1, step)).collect();
    assert_eq!(results, (0..8).map(|step| of(1, step)).collect::<Vec<_>>());
    assert!(results.iter().any(|result| *result != results[0]), "the order has no effect on this window");
}

#[test]
fn a_number_that_is_not_finite_stays_visible() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let rows: [Row<'_>; 3] =
            [(&[bad, 1.0], 1, &[(1, 1.0)]), (&[-1.0, -1.0], 1, &[(2, 0.5)]), (&[1.0, -9.0], 1, &[])];
        for path in &PATHS {
            let run = run(path, &host_layout(2), &rows, ConflictResolution::PcGrad);
            assert!(!run.gradient[0].is_finite(), "{path:?}");
            assert!(run.conflicts.unwrap().owners.iter().any(|owner| !owner.norm.is_finite()));
        }
    }
}

#[track_caller]
fn refused(rows: &[Row<'_>], message: &str) {
    let pool = GradientBufferPool::new();
    let (mut reads, how) = (HostReads::default(), ConflictResolution::PcGrad);
    let error = aggregate(window(rows, &pool), &host_layout(2), how, ORDER, &mut reads).unwrap_err();
    assert!(matches!(error, Error::LayoutMismatch { .. }) && error.to_string().contains(message), "{error}");
    assert_eq!(pool.stats().outstanding, 0);
}

#[test]
fn a_window_that_does_not_fit_is_refused() {
    refused(&[], "at least one sample");
    refused(&[(&[1.0, 2.0], 0, &[])], "at least one sample");
    refused(&[(&[1.0, 2.0], 1, &[]), (&[1.0], 1, &[])], "expected 2, found 1");
    let pool = GradientBufferPool::new();
    let mut rows = window(&[(&[1.0, 2.0], 1, &[]), (&[1.0, 2.0], 1, &[])], &pool);
    rows[1].gradient = pool.lease(2, DType::F64, &Device::Cpu).unwrap();
    let mut reads = HostReads::default();
    let error = aggregate(rows, &host_layout(2), ConflictResolution::Mean, ORDER, &mut reads).unwrap_err();
    assert!(error.to_string().contains("expected F32 on Cpu, found F64 on Cpu"), "{error}");
}

fn leases(rows: &[&[f32]], pool: &GradientBufferPool) -> Vec<GradientLease> {
    let rows: Vec<Row<'_>> = rows.iter().map(|row| (*row, 1, &[][..])).collect();
    window(&rows, pool).into_iter().map(|microbatch| microbatch.gradient).collect()
}

#[test]
fn a_planned_window_is_combined_with_or_without_arguments() {
    let conflicting: &[(u32, f64)] = &[(1, 1.0)];
    for (weights, conflicting, expected) in [(conflicting, Some(2.0), [0.5_f32, 1.5]), (&[], None, [0.0, 1.0])] {
        let microbatches = [(1, attribution(weights)), (1, attribution(&[]))];
        let plan = WindowPlan::new(&microbatches, ConflictResolution::PcGrad, ORDER).unwrap();
        let numbers = plan.arguments(4).unwrap();
        let given = Tensor::new(numbers.as_slice(), &Device::Cpu).unwrap();
        for arguments in [None, Some(&given)] {
            let (pool, mut reads) = (GradientBufferPool::new(), HostReads::default());
            let rows = leases(&[&[2.0, 0.0], &[-2.0, 2.0]], &pool);
            let combined = combine_window(rows, &host_layout(2), &plan, arguments, &mut reads).unwrap();
            assert_eq!(values(combined.gradient.as_tensor()), expected);
            let pairs = combined.conflicting_pairs.map(|pairs| crate::testing::values_f64(&pairs));
            assert_eq!(pairs, conflicting.map(|pairs| vec![pairs]));
            assert_eq!(combined.report.is_some(), plan.resolves_conflicts());
            assert_eq!((reads.total(), pool.stats().outstanding), (0, 1));
        }
    }
}

#[test]
fn rows_and_arguments_that_do_not_fit_the_plan_are_refused() {
    let microbatches = [(1, attribution(&[(1, 1.0)])), (1, attribution(&[]))];
    let plan = WindowPlan::new(&microbatches, ConflictResolution::PcGrad, ORDER).unwrap();
    let refusal = |rows: &[&[f32]], arguments: Option<Tensor>| {
        let (pool, mut reads) = (GradientBufferPool::new(), HostReads::default());
        let rows = leases(rows, &pool);
        combine_window(rows, &host_layout(2), &plan, arguments.as_ref(), &mut reads).unwrap_err().to_string()
    };
    let zeros = |count: usize, dtype| Some(Tensor::zeros(count, dtype, &Device::Cpu).unwrap());
    let (row, what) = (&[1.0, 2.0][..], "arguments of a window");
    assert_eq!(refusal(&[row], None), "microbatches of a window: expected 2, found 1");
    assert_eq!(refusal(&[], None), "microbatches of a window: expected 2, found 0");
    assert_eq!(refusal(&[row, row], zeros(8, DType::F64)), format!("{what}: expected at least 9, found 8"));
    let wrong_type = format!("{what}: expected F64 on Cpu, found F32 on Cpu");
    assert_eq!(refusal(&[row, row], zeros(9, DType::F32)), wrong_type);
}

#[test]
fn a_window_over_isolated_segments_only_has_no_conflicts() {
    let layout = layout(&[("a", 2, seed(1), true)]);
    let rows: [Row<'_>; 2] = [(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-3.0, 0.0], 1, &[])];
    for path in &PATHS {
        let run = run(path, &layout, &rows, ConflictResolution::PcGrad);
        assert_eq!(run.gradient, [-1.0, 0.0]);
        assert!(run.conflicts.unwrap().owners.iter().all(|owner| owner.norm_share <= 0.0));
    }
}

#[test]
fn other_float_types_take_the_composed_path() {
    let pool = GradientBufferPool::new();
    let mut rows = window(&[(&[1.0, 0.0], 1, &[(1, 1.0)]), (&[-1.0, 0.0], 1, &[])], &pool);
    for row in &mut rows {
        let wide = pool.lease(2, DType::F64, &Device::Cpu).unwrap();
        wide.as_tensor().slice_set(&row.gradient.as_tensor().to_dtype(DType::F64).unwrap(), 0, 0).unwrap();
        row.gradient = wide;
    }
    let mut reads = HostReads::default();
    let result = aggregate(rows, &host_layout(2), ConflictResolution::PcGrad, ORDER, &mut reads).unwrap();
    let tensor: &Tensor = result.gradient.as_tensor();
    assert!(crate::testing::values_f64(tensor).iter().all(|x| x.abs() < 1e-15));
    assert_eq!(result.conflicts.unwrap().stats.ratio(), Some(1.0));
    assert!(matches!(HOST, Owner::Host));
}
