//! Weightings against independent references.

use super::*;

mod references;
mod properties;
mod torchjd;

/// Owners' gradients with the orders of their projections.
#[derive(Debug, Clone)]
struct Problem {
    vectors: Vec<Vec<f64>>,
    orders: Vec<Vec<usize>>,
}

impl Problem {
    /// Each owner visits the others in order of their indices.
    fn new(vectors: &[&[f64]]) -> Self {
        let count = vectors.len();
        let orders = (0..count).map(|i| (0..count).filter(|j| *j != i).collect()).collect();
        Self { vectors: vectors.iter().map(|vector| vector.to_vec()).collect(), orders }
    }

    fn count(&self) -> usize {
        self.vectors.len()
    }

    fn inner(&self) -> Vec<f64> {
        self.vectors.iter().flat_map(|a| self.vectors.iter().map(|b| dot(a, b))).collect()
    }

    fn weights(&self, weighting: &dyn Weighting) -> Vec<f64> {
        weights_of(&self.inner(), &self.orders, weighting)
    }

    /// `Σ_s w_s G_s`.
    fn combined(&self, weights: &[f64]) -> Vec<f64> {
        let mut sum = vec![0.0; self.vectors[0].len()];
        for (vector, weight) in self.vectors.iter().zip(weights) {
            for (sum, value) in sum.iter_mut().zip(vector) {
                *sum += weight * value;
            }
        }
        sum
    }

    fn largest_norm(&self) -> f64 {
        self.vectors.iter().map(|vector| norm(vector)).fold(0.0, f64::max)
    }
}

/// Every method with its name.
fn all() -> impl Iterator<Item = (&'static str, Box<dyn Weighting>)> {
    ConflictResolution::ALL.into_iter().map(|method| (method.name(), method.weighting(&Parameters::default())))
}

fn weights_of(inner: &[f64], orders: &[Vec<usize>], weighting: &dyn Weighting) -> Vec<f64> {
    let count = orders.len();
    let scales: Vec<f64> = (0..count).map(|i| inner[i * count + i].sqrt()).collect();
    let mut is_idle = vec![false; count];
    idle(inner, &scales, |_| true, &mut is_idle);
    let owners = Owners { count, inner, scales: &scales, is_idle: &is_idle };
    let orders: Vec<f64> = orders.iter().flatten().map(|&owner| owner as f64).collect();
    let mut weights = vec![1.0; count];
    // What an earlier window left in the scratch is never read.
    let mut scratch = vec![f64::NAN; 3];
    weighting.weigh(&owners, &orders, &mut scratch, &mut weights);
    weights
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], bound: f64, what: &str) {
    let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= bound * (1.0 + b.abs()));
    assert!(close && found.len() == expected.len(), "{what}: {found:?}, not {expected:?}");
}

#[test]
fn names_are_those_of_configurations() {
    assert_eq!(
        all().map(|(name, _)| name).collect::<Vec<_>>(),
        ["mean", "pcgrad", "mgda", "upgrad", "cagrad", "aligned_mtl"]
    );
}

#[test]
fn each_method_gives_the_known_weights_of_two_conflicting_gradients() {
    // |G_1|² = 1, |G_2|² = 2 and G_1 · G_2 = −1, so that 3 G_1 + 2 G_2 is orthogonal to G_1 − G_2.
    let problem = Problem::new(&[&[1.0, 0.0], &[-1.0, 1.0]]);
    let close = |weighting: &dyn Weighting, expected: &[f64]| {
        assert_close(&problem.weights(weighting), expected, 1e-12, "two gradients");
    };
    close(&Mean, &[1.0, 1.0]);
    close(&PcGrad, &[2.0, 1.5]);
    close(&UpGrad, &[2.0, 1.5]);
    close(&Mgda, &[1.2, 0.8]);
}

#[test]
fn projections_onto_adjusted_vectors_are_not_those_of_the_paper() {
    // The second owner meets a first that is orthogonal to it already, and keeps its gradient.
    let problem = Problem::new(&[&[1.0, 0.0], &[-1.0, 1.0]]);
    assert_close(&problem.weights(&adjusted::Adjusted), &[1.0, 1.5], 1e-12, "adjusted");
    assert_close(&problem.weights(&PcGrad), &[2.0, 1.5], 1e-12, "paper");
    // What the variant leaves of a gradient depends on its place among the owners.
    let swapped = Problem::new(&[&[-1.0, 1.0], &[1.0, 0.0]]);
    assert_close(&swapped.weights(&adjusted::Adjusted), &[1.0, 2.0], 1e-12, "adjusted, other order");
    assert_close(&swapped.weights(&PcGrad), &[1.5, 2.0], 1e-12, "paper, other order");
}

#[test]
fn idle_owners_keep_the_weight_one_and_change_nothing() {
    let (inner, scales) = ([1.0, -1.0, -1.0, 2.0], [1.0, 2.0_f64.sqrt()]);
    let wide = [1.0, 5.0, -1.0, 5.0, f64::NAN, 5.0, -1.0, 5.0, 2.0];
    let wide_scales = [1.0, 3.0, 2.0_f64.sqrt()];
    for (name, weighting) in all() {
        let (mut expected, mut found, mut scratch) = ([1.0; 2], [1.0; 3], Vec::new());
        let owners = Owners { count: 2, inner: &inner, scales: &scales, is_idle: &[false; 2] };
        weighting.weigh(&owners, &[1.0, 0.0], &mut scratch, &mut expected);
        let owners = Owners { count: 3, inner: &wide, scales: &wide_scales, is_idle: &[false, true, false] };
        weighting.weigh(&owners, &[2.0, 1.0, 0.0, 2.0, 1.0, 0.0], &mut scratch, &mut found);
        assert_eq!([found[0], found[2]].map(f64::to_bits), expected.map(f64::to_bits), "{}", name);
        assert_eq!(found[1].to_bits(), 1.0_f64.to_bits(), "{}", name);
    }
}

#[test]
fn owners_without_a_part_or_with_a_cancelled_or_vanishing_gradient_are_idle() {
    let squares = [1.0, 4.0, 1e-12, 1e-70, -1e-20, f64::NAN];
    let scales = [1.0, 2.0, 1.0, 1e-35, 1.0, 1.0];
    let mut inner = vec![0.0; 36];
    for (owner, square) in squares.into_iter().enumerate() {
        inner[owner * 7] = square;
    }
    let mut found = [false; 6];
    idle(&inner, &scales, |owner| owner != 1, &mut found);
    assert_eq!(found, [false, true, true, true, true, false]);
}

#[test]
fn numbers_that_are_not_finite_leave_the_plain_gradient() {
    for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let inner = [1.0, -1.0, wrong, -1.0, 2.0, -0.5, wrong, -0.5, 3.0];
        for (name, weighting) in all().filter(|(name, _)| *name != "pcgrad") {
            let weights = weights_of(&inner, &[vec![1, 2], vec![0, 2], vec![0, 1]], &*weighting);
            assert_eq!(weights, [1.0; 3], "{} with {wrong}", name);
        }
    }
}

#[test]
fn in_pcgrad_nan_conflicts_with_nothing() {
    // A combination that NaN may be part of is NaN, so each owner's other conflicts are not found either.
    let inner = [1.0, -1.0, f64::NAN, -1.0, 2.0, f64::NAN, f64::NAN, f64::NAN, f64::NAN];
    assert_eq!(weights_of(&inner, &[vec![1, 2], vec![0, 2], vec![0, 1]], &PcGrad), [1.0; 3]);
    // Idle owners are no part of any.
    let scales = [1.0, 2.0_f64.sqrt(), f64::NAN];
    let owners = Owners { count: 3, inner: &inner, scales: &scales, is_idle: &[false, false, true] };
    let mut weights = [1.0; 3];
    PcGrad.weigh(&owners, &[1.0, 2.0, 0.0, 2.0, 0.0, 1.0], &mut Vec::new(), &mut weights);
    assert_close(&weights, &[2.0, 1.5, 1.0], 1e-12, "pcgrad");
}

#[test]
fn a_lone_owner_has_the_weight_one() {
    let problem = Problem::new(&[&[3.0, 4.0]]);
    for (name, weighting) in all() {
        assert_eq!(problem.weights(&*weighting), [1.0], "{}", name);
    }
}
