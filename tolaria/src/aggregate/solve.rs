//! What `kernels/pcgrad.cu` computes, step by step over the same flat numbers: a change in one is a change in both.
//!
//! The kernel is a port of [`solve`], with a thread for each turn of the loops over owners, rows and pairs of owners.
//! The tests hold [`solve`] against the host's [`project`](super::pcgrad::project).

use super::pcgrad::{CANCELLED, NEGLIGIBLE_INNER, VANISHING};
use crate::cpu::to_f32;
use crate::graph::kernels::MAX_OWNERS;

/// What the kernel leaves.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Solution {
    /// Row-major (2, rows): of segments that are not isolated, and of those that are.
    pub(super) coefficients: Vec<f32>,
    /// Ordered pairs.
    pub(super) conflicting: f64,
}

struct Owners {
    count: usize,
    inner: Vec<f64>,
    scale: Vec<f64>,
    is_zero: Vec<bool>,
}

/// Rounding can leave a square slightly below 0; NaN stays NaN.
fn norm_of(square: f64) -> f64 {
    if square < 0.0 { 0.0 } else { square.sqrt() }
}

impl Owners {
    /// The coefficient of the projection of a combination of owners onto owner j, when the two conflict.
    fn conflict(&self, combination: &[f64], j: usize) -> Option<f64> {
        let (mut inner, mut scale) = (0.0, 0.0);
        for (i, weight) in combination.iter().enumerate().take(self.count) {
            if self.is_zero[i] {
                continue;
            }
            inner += weight * self.inner[i * self.count + j];
            scale += weight.abs() * self.scale[i];
        }
        let conflicts = inner < -NEGLIGIBLE_INNER * scale * self.scale[j] && !self.is_zero[j];
        conflicts.then(|| inner / self.inner[j * self.count + j])
    }
}

/// The kernel over `gram` (rows, rows) and the arguments of a window.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "exact small integers, as in the kernel")]
pub(super) fn solve(gram: &[f64], arguments: &[f64], rows: usize) -> Solution {
    let first = arguments[0];
    let fits = first >= 1.0 && first <= MAX_OWNERS as f64;
    let count = if fits { first as usize } else { 1 };
    if !fits || 1 + rows + count * rows + count * (count - 1) > arguments.len() {
        return Solution { coefficients: vec![f32::NAN; 2 * rows], conflicting: f64::NAN };
    }
    let fractions = &arguments[1..];
    let shares = &fractions[rows..];
    let orders = &shares[count * rows..];

    let mut product = vec![0.0; count * rows];
    for (at, product) in product.iter_mut().enumerate() {
        let (owner, row) = (at / rows, at % rows);
        for k in 0..rows {
            *product += gram[row * rows + k] * shares[owner * rows + k];
        }
    }
    let mut scale = vec![0.0; count];
    for (owner, scale) in scale.iter_mut().enumerate() {
        for row in 0..rows {
            *scale += shares[owner * rows + row].abs() * gram[row * rows + row].sqrt();
        }
    }

    let mut inner = vec![0.0; count * count];
    let mut combinations = vec![0.0; count * count];
    for (pair, inner) in inner.iter_mut().enumerate() {
        let (i, j) = (pair / count, pair % count);
        for row in 0..rows {
            *inner += shares[i * rows + row] * product[j * rows + row];
        }
        combinations[pair] = if i == j { 1.0 } else { 0.0 };
    }

    let mut is_zero = vec![false; count];
    for (this, is_zero) in is_zero.iter_mut().enumerate() {
        let mut largest = 0.0_f64;
        for owner in 0..count {
            largest = largest.max(norm_of(inner[owner * count + owner]));
        }
        let norm = norm_of(inner[this * count + this]);
        *is_zero = norm <= (CANCELLED * scale[this]).max(VANISHING * largest);
    }

    let owners = Owners { count, inner, scale, is_zero };
    let mut num_conflicts = 0_u32;
    for pair in 0..count * count {
        let (i, j) = (pair / count, pair % count);
        let conflicts = i != j && owners.conflict(&combinations[i * count..][..count], j).is_some();
        num_conflicts += u32::from(conflicts);
    }
    let conflicting = f64::from(num_conflicts);
    if num_conflicts == 0 {
        let coefficients = (0..2 * rows).map(|at| to_f32(fractions[at % rows])).collect();
        return Solution { coefficients, conflicting };
    }

    for owner in 0..count {
        let combination = &mut combinations[owner * count..][..count];
        for visit in 0..count - 1 {
            let visited = orders[owner * (count - 1) + visit];
            if !(visited >= 0.0 && visited < count as f64) {
                continue;
            }
            if let Some(coefficient) = owners.conflict(combination, visited as usize) {
                combination[visited as usize] -= coefficient;
            }
        }
    }

    let mut total = vec![0.0; count];
    for (of, total) in total.iter_mut().enumerate() {
        for owner in 0..count {
            *total += combinations[owner * count + of];
        }
    }

    let mut coefficients = vec![0.0; 2 * rows];
    for row in 0..rows {
        let mut coefficient = 0.0;
        for owner in 0..count {
            coefficient += total[owner] * shares[owner * rows + row];
        }
        coefficients[row] = to_f32(coefficient);
        coefficients[rows + row] = to_f32(fractions[row]);
    }
    Solution { coefficients, conflicting }
}

#[cfg(test)]
mod tests {
    use leyline::id::{SeedId, StepIndex};
    use leyline::seed::{Attribution, AttributionMode};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::aggregate::gram::Gram;
    use crate::aggregate::pcgrad::project;
    use crate::aggregate::{ConflictResolution, ProjectionOrder, WindowPlan};
    use crate::graph::kernels::MAX_ROWS;
    use crate::testing::bits;

    /// A window as numbers: microbatches of samples and weights of seeds, and a vector for each.
    #[derive(Debug, Clone)]
    struct Window {
        microbatches: Vec<(usize, Vec<f64>)>,
        vectors: Vec<Vec<f64>>,
        step: u64,
    }

    impl Window {
        fn plan(&self) -> WindowPlan {
            let microbatches: Vec<(usize, Attribution)> = self
                .microbatches
                .iter()
                .map(|(num_samples, weights)| {
                    let sum: f64 = weights.iter().sum();
                    // Without a remainder for the host in every third window.
                    let room = if self.step.is_multiple_of(3) { sum } else { sum * 1.25 + 0.1 }.max(1e-300);
                    let weights = (1..).map(SeedId).zip(weights.iter().map(|weight| weight / room)).collect();
                    (*num_samples, Attribution::new(AttributionMode::Stage, weights).unwrap())
                })
                .collect();
            let order = ProjectionOrder { seed: 5, step: StepIndex(self.step) };
            WindowPlan::new(&microbatches, ConflictResolution::PcGrad, order).unwrap()
        }

        fn gram(&self) -> Vec<f64> {
            let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            self.vectors.iter().flat_map(|a| self.vectors.iter().map(move |b| dot(a, b))).collect()
        }
    }

    /// Elements of ordinary size, or zeros, copies, tiny and huge ones, and some that are not finite.
    fn vectors(rows: usize, dimension: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
        let wild = prop_oneof![
            40 => -1.0..1.0_f64,
            20 => prop_oneof![Just(0.0), Just(1.0), Just(-1.0)],
            10 => (-1.0..1.0_f64).prop_map(|x| x * 1e-25),
            10 => (-1.0..1.0_f64).prop_map(|x| x * 1e18),
            1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY)],
        ];
        let tame = vec(vec(-1.0..1.0_f64, dimension), rows);
        prop_oneof![tame, vec(vec(wild, dimension), rows)]
    }

    fn window() -> impl Strategy<Value = Window> {
        (2..=MAX_ROWS, 1..MAX_OWNERS, 1..6_usize, any::<u64>()).prop_flat_map(|(rows, seeds, dimension, step)| {
            let weight = prop_oneof![1 => Just(0.0), 1 => 0.0..1.0_f64];
            let microbatch = (1..5_usize, vec(weight, seeds));
            let microbatches = vec(microbatch, rows);
            let window = move |(microbatches, vectors)| Window { microbatches, vectors, step };
            (microbatches, vectors(rows, dimension)).prop_map(window)
        })
    }

    /// What the host finds in the same plan.
    fn by_host(window: &Window, plan: &WindowPlan) -> Solution {
        let gram = Gram::from_values(window.vectors.len(), window.gram());
        let projection = project(&gram, plan.owners().unwrap());
        let resolved = projection.coefficients.as_deref().unwrap_or(plan.fractions());
        Solution {
            coefficients: resolved.iter().chain(plan.fractions()).copied().map(to_f32).collect(),
            conflicting: projection.stats.conflicting_pairs as f64,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(31),
            cases: 3000,
            ..Default::default()
        })]

        #[test]
        fn the_flat_numbers_give_what_the_host_finds_bit_for_bit(window in window(), room in 0..4_usize) {
            let plan = window.plan();
            prop_assume!(plan.resolves_conflicts());
            let arguments = plan.arguments(plan.num_owners() + room).unwrap();
            let found = solve(&window.gram(), &arguments, window.vectors.len());
            let expected = by_host(&window, &plan);
            prop_assert_eq!(bits(&found.coefficients), bits(&expected.coefficients));
            prop_assert_eq!(found.conflicting.to_bits(), expected.conflicting.to_bits());
        }
    }

    #[test]
    fn windows_with_and_without_conflicts_are_among_the_cases() {
        // Three gradients at 120 degrees conflict in every pair, those of one quadrant in none.
        let weights = [vec![1.0, 0.0], vec![0.0, 1.0], vec![0.0, 0.0]];
        let microbatches: Vec<_> = weights.into_iter().map(|weights| (1, weights)).collect();
        let opposed = vec![vec![1.0, 0.0], vec![-0.5, 0.866], vec![-0.5, -0.866]];
        let agreeing = vec![vec![1.0, 0.0], vec![0.5, 0.5], vec![0.0, 1.0]];
        for (vectors, conflicting) in [(opposed, 6.0), (agreeing, 0.0)] {
            let window = Window { microbatches: microbatches.clone(), vectors, step: 1 };
            let plan = window.plan();
            let found = solve(&window.gram(), &plan.arguments(3).unwrap(), 3);
            assert_eq!(found, by_host(&window, &plan));
            assert_eq!(found.conflicting.to_bits(), f64::to_bits(conflicting));
            let plain: Vec<f32> = plan.fractions().iter().copied().map(to_f32).collect();
            assert_eq!(found.coefficients[3..], plain);
            assert_eq!(found.coefficients[..3] == plain, conflicting <= 0.0);
        }
    }

    #[test]
    fn arguments_that_cannot_be_right_give_nan() {
        let gram = [1.0, -1.0, -1.0, 1.0];
        let right = [2.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.5, 1.0, 0.0];
        assert_eq!(solve(&gram, &right, 2), Solution { coefficients: vec![1.0, 1.0, 0.5, 0.5], conflicting: 2.0 });
        for wrong in [0.0, 3.0, 17.0, -1.0, f64::NAN] {
            let arguments = [&[wrong], &right[1..]].concat();
            let found = solve(&gram, &arguments, 2);
            assert!(found.coefficients.iter().all(|x| x.is_nan()) && found.conflicting.is_nan(), "{wrong} owners");
        }
    }
}
