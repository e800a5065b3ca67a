//! From inner products to coefficients, norms and factors: the tiny part between the two passes over the gradients.
//!
//! `kernels/solve.cu` does the same on the GPU; only the parts of the matrix are added in another order there. A change in
//! one is a change in both.

use super::plan::WindowPlan;
use super::sums::{Field, SumsLayout};
use super::weighting::{self, Owners, Weighting};
use crate::cpu::to_f32;
use crate::grad::{Geometry, Part};

/// Weights that make the owners' gradients longer than this, relative to the norms of their terms, leave a sum in which
/// these cancel: what is left is the rounding of gradients to `f32`.
const LARGEST_GROWTH: f64 = 1e5;

/// Working memory of the kernel in numbers of `f64`, as `Work` in `kernels/solve.cu` lays it out for a block of so many
/// threads, with what the weighting needs at its end.
#[cfg(feature = "cuda")]
pub(crate) fn solver_memory(rows: usize, slots: usize, threads: usize, scratch: usize) -> usize {
    let arguments = WindowPlan::num_arguments(rows, slots);
    arguments + rows * rows + slots * rows + slots * slots + 4 * slots + threads + scratch
}

/// What a window is solved from.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a> {
    pub(super) geometry: &'a Geometry,
    /// Of every part, (parts, K, K).
    pub(super) grams: &'a [f64],
    /// [`WindowPlan::arguments`], with owners told apart.
    pub(super) arguments: &'a [f64],
    pub(super) num_rows: usize,
    pub(super) weighting: &'a dyn Weighting,
    pub(super) clipping: Clipping,
    /// Whether only the owners are measured: norms and factors come from elsewhere.
    pub(super) only_measures: bool,
}

/// What a window is clipped by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clipping {
    pub(crate) max_norm: Option<f64>,
    /// Samples of the window.
    pub(crate) num_samples: usize,
}

/// What follows from it. The same one is used for every window, so that nothing is allocated anew.
#[derive(Debug, Default)]
pub(super) struct Solution {
    /// `wide`, rounded as rows of `f32` need it.
    coefficients: Vec<f32>,
    /// Row-major (2, K): of parts that are not isolated, and of those that are.
    pub(super) wide: Vec<f64>,
    /// One per part.
    pub(super) factors: Vec<f64>,
    /// Weight of each owner.
    weights: Vec<f64>,
    /// Squared norm of the combination in each part.
    pub(super) squares: Vec<f64>,
    domains: Vec<f64>,
    gram: Vec<f64>,
    product: Vec<f64>,
    inner: Vec<f64>,
    scales: Vec<f64>,
    norms: Vec<f64>,
    is_idle: Vec<bool>,
    scratch: Vec<f64>,
}

/// Places of the arguments.
struct Window<'a> {
    num_rows: usize,
    num_slots: usize,
    fractions: &'a [f64],
    shares: &'a [f64],
    orders: &'a [f64],
    alphas: &'a [f64],
}

impl<'a> Window<'a> {
    fn new(problem: &Problem<'a>) -> Self {
        let (num_rows, num_slots) = (problem.num_rows, problem.geometry.owners().len());
        assert_eq!(problem.arguments.len(), WindowPlan::num_arguments(num_rows, num_slots));
        let (fractions, rest) = problem.arguments.split_at(num_rows);
        let (shares, rest) = rest.split_at(num_slots * num_rows);
        let (orders, alphas) = rest.split_at(num_slots * (num_slots - 1));
        Self { num_rows, num_slots, fractions, shares, orders, alphas }
    }

    /// `C[slot, ·]`.
    fn shares_of(&self, slot: usize) -> &[f64] {
        &self.shares[slot * self.num_rows..][..self.num_rows]
    }

    fn weight(&self, slot: usize) -> f64 {
        self.shares_of(slot).iter().fold(0.0, |sum, share| sum + share)
    }

    fn takes_part(&self, slot: usize) -> bool {
        self.shares_of(slot).iter().any(|share| *share > 0.0)
    }
}

impl Solution {
    /// Solves a window; `sums` grow by what is known of its owners.
    pub(super) fn solve(&mut self, problem: &Problem<'_>, mut sums: Option<&mut [f64]>) {
        let window = Window::new(problem);
        self.add_grams(problem);
        self.compare_owners(&window);
        fill(&mut self.weights, window.num_slots, 1.0);
        let Self { inner, scales, is_idle, scratch, weights, .. } = self;
        let owners = Owners { count: window.num_slots, inner, scales, is_idle };
        problem.weighting.weigh(&owners, window.orders, scratch, weights);
        self.keep_accurate();
        self.combine_weights(&window);
        if let Some(sums) = sums.as_deref_mut() {
            self.add_owners(&window, SumsLayout::new(window.num_slots, problem.geometry.parts().len()), sums);
        }
        self.measure_parts(problem, &window, sums.as_deref_mut());
        if !problem.only_measures {
            let Self { squares, domains, factors, .. } = self;
            clip_factors(problem.geometry, squares, problem.clipping, domains, factors, sums);
        }
    }

    /// The matrix over all parts that do not stand apart.
    fn add_grams(&mut self, problem: &Problem<'_>) {
        let size = problem.num_rows * problem.num_rows;
        fill(&mut self.gram, size, 0.0);
        for (part, gram) in problem.geometry.parts().iter().zip(problem.grams.chunks_exact(size)) {
            if !part.is_apart() {
                self.gram.iter_mut().zip(gram).for_each(|(sum, value)| *sum += value);
            }
        }
    }

    /// Inner products, scales and norms of the owners.
    fn compare_owners(&mut self, window: &Window<'_>) {
        let (rows, slots) = (window.num_rows, window.num_slots);
        fill(&mut self.product, slots * rows, 0.0);
        fill(&mut self.scales, slots, 0.0);
        for slot in 0..slots {
            let shares = window.shares_of(slot);
            for row in 0..rows {
                let of_row = &self.gram[row * rows..][..rows];
                self.product[slot * rows + row] = dot(of_row, shares);
                self.scales[slot] += shares[row].abs() * of_row[row].sqrt();
            }
        }
        self.inner.clear();
        for i in 0..slots {
            for j in 0..slots {
                self.inner.push(dot(window.shares_of(i), &self.product[j * rows..][..rows]));
            }
        }
        self.norms.clear();
        self.norms.extend((0..slots).map(|slot| norm_of(self.inner[slot * slots + slot])));
        fill(&mut self.is_idle, slots, false);
        weighting::idle(&self.inner, &self.scales, |slot| window.takes_part(slot), &mut self.is_idle);
    }

    fn owners(&self) -> Owners<'_> {
        Owners { count: self.norms.len(), inner: &self.inner, scales: &self.scales, is_idle: &self.is_idle }
    }

    /// All weights are 1 again when the sum that they give would be nothing but rounding.
    fn keep_accurate(&mut self) {
        let (mut before, mut after) = (0.0, 0.0);
        for (weight, scale) in self.weights.iter().zip(&self.scales) {
            before += scale;
            after += weight.abs() * scale;
        }
        if after > LARGEST_GROWTH * before {
            self.weights.fill(1.0);
        }
    }

    /// The fractions, bit for bit, when no owner has another weight than 1.
    fn combine_weights(&mut self, window: &Window<'_>) {
        let (rows, slots) = (window.num_rows, window.num_slots);
        #[expect(clippy::float_cmp, reason = "a weight that nothing changed is exactly 1")]
        let plain = self.weights.iter().all(|weight| *weight == 1.0);
        self.wide.clear();
        for row in 0..rows {
            let coefficient = (0..slots).fold(0.0, |sum, slot| sum + self.weights[slot] * window.shares_of(slot)[row]);
            self.wide.push(if plain { window.fractions[row] } else { coefficient });
        }
        self.wide.extend_from_slice(window.fractions);
        self.coefficients.clear();
        self.coefficients.extend(self.wide.iter().copied().map(to_f32));
    }

    fn add_owners(&self, window: &Window<'_>, layout: SumsLayout, sums: &mut [f64]) {
        let slots = window.num_slots;
        let owners = self.owners();
        let participants = (0..slots).filter(|slot| window.takes_part(*slot)).count();
        let norms = self.norms.iter().fold(0.0, |sum, norm| sum + norm);
        let of_seeds = (1..slots).fold(0.0, |sum, slot| sum + window.weight(slot));
        for slot in (0..slots).filter(|slot| window.takes_part(*slot)) {
            let conflicts = (0..slots).filter(|other| owners.opposed(slot, *other)).count();
            let weight = window.weight(slot);
            let comparable = norms > 0.0 && norms.is_finite();
            let share = if comparable { self.norms[slot] / norms } else { 1.0 / participants as f64 };
            let mut add = |field, value: f64| sums[layout.of_slot(field, slot)] += value;
            add(Field::Windows, 1.0);
            add(Field::Weight, weight);
            add(Field::NormSquare, self.norms[slot] * self.norms[slot]);
            add(Field::Share, share);
            add(Field::Conflicts, conflicts as f64);
            add(Field::Pairs, (participants - 1) as f64);
            add(Field::Resolved, self.weights[slot]);
            if slot > 0 {
                add(Field::Alpha, window.alphas[slot]);
                add(Field::Split, weight / of_seeds);
            }
            sums[SumsLayout::CONFLICTS] += conflicts as f64;
        }
        for i in 0..slots {
            for j in i + 1..slots {
                let cosine = self.inner[i * slots + j] / (self.norms[i] * self.norms[j]);
                if !self.is_idle[i] && !self.is_idle[j] && cosine.is_finite() {
                    sums[layout.cosine(i, j)] += cosine.clamp(-1.0, 1.0);
                    sums[layout.cosine(j, i)] += 1.0;
                }
            }
        }
    }

    /// Squared norm of the combination in each part, and of the owners' gradients there.
    fn measure_parts(&mut self, problem: &Problem<'_>, window: &Window<'_>, mut sums: Option<&mut [f64]>) {
        let rows = window.num_rows;
        let parts = problem.geometry.parts();
        let layout = SumsLayout::new(window.num_slots, parts.len());
        let square = |gram: &[f64], of: &dyn Fn(usize) -> f64| {
            let product = |row: usize| (0..rows).fold(0.0, |sum, k| sum + gram[row * rows + k] * of(k));
            let square = (0..rows).fold(0.0, |sum, row| sum + of(row) * product(row));
            if square < 0.0 { 0.0 } else { square }
        };
        self.squares.clear();
        for (index, (part, gram)) in parts.iter().zip(problem.grams.chunks_exact(rows * rows)).enumerate() {
            let coefficients = &self.coefficients[if part.is_apart() { rows } else { 0 }..][..rows];
            // Elements beyond what `f32` holds, though their inner products in `f64` are finite.
            let largest = f64::from(f32::MAX) / rows as f64;
            let fits = |row: usize| f64::from(coefficients[row]).powi(2) * gram[row * (rows + 1)] <= largest * largest;
            let combined = square(gram, &|row| f64::from(coefficients[row]));
            self.squares.push(if (0..rows).all(fits) { combined } else { f64::INFINITY });
            let Some(sums) = sums.as_deref_mut().filter(|_| !part.is_apart()) else { continue };
            for slot in (0..window.num_slots).filter(|slot| window.takes_part(*slot)) {
                let shares = window.shares_of(slot);
                sums[layout.layer(slot, index)] += square(gram, &|row| shares[row]);
            }
        }
    }
}

/// One factor per part from the squared norms of the parts: each domain is scaled down to the largest norm.
///
/// The factor of a domain whose norm is not finite is no number, which leaves its parameters as they are, and nobody
/// else's. Where that is the main domain, or the loss is not finite, the window is taken out of `sums` again.
pub(super) fn clip_factors(
    geometry: &Geometry,
    squares: &[f64],
    clipping: Clipping,
    domains: &mut Vec<f64>,
    factors: &mut Vec<f64>,
    sums: Option<&mut [f64]>,
) {
    let (parts, slots) = (geometry.parts(), geometry.owners().len());
    fill(domains, 1 + slots, 0.0);
    for (part, square) in parts.iter().zip(squares) {
        domains[part.domain()] += square;
    }
    let loss = sums.as_deref().map_or(0.0, |sums| sums[SumsLayout::LOSS]);
    let is_finite = |domain: usize| domains[domain].is_finite() && (domain > 0 || loss.is_finite());
    if let Some(sums) = sums {
        let layout = SumsLayout::new(slots, parts.len());
        let (sums, before) = sums.split_at_mut(layout.len());
        if is_finite(0) {
            sums[SumsLayout::MAIN_SQUARE] += domains[0];
        } else {
            sums.copy_from_slice(before);
            sums[SumsLayout::SKIPPED_SAMPLES] += clipping.num_samples as f64;
        }
        for slot in 0..slots {
            let own = || parts.iter().zip(squares).filter(|(part, _)| part.slot == slot);
            let in_main = slot == 0 || own().any(|(part, _)| !part.is_apart());
            // What the host has apart is frozen: no step is left out for it.
            if in_main && !is_finite(0) || slot > 0 && !is_finite(1 + slot) {
                sums[layout.of_slot(Field::Skipped, slot)] += 1.0;
            } else if is_finite(1 + slot) {
                let square = own().fold(0.0, |sum, (_, square)| sum + square);
                sums[layout.of_slot(Field::ParameterSquare, slot)] += square;
                sums[layout.of_slot(Field::Healthy, slot)] += f64::from(square > 0.0);
            }
        }
        before.copy_from_slice(sums);
    }
    let max_norm = clipping.max_norm.unwrap_or(f64::INFINITY);
    let factor = |part: &Part| {
        let scale = max_norm / domains[part.domain()].sqrt();
        let factor = if scale < 1.0 { scale } else { 1.0 };
        if is_finite(part.domain()) { factor } else { f64::NAN }
    };
    factors.clear();
    factors.extend(parts.iter().map(factor));
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// Rounding can leave a square slightly below 0; NaN stays NaN.
fn norm_of(square: f64) -> f64 {
    if square < 0.0 { 0.0 } else { square.sqrt() }
}

/// `count` times `value`, in the memory that is there.
fn fill<T: Clone>(values: &mut Vec<T>, count: usize, value: T) {
    values.clear();
    values.resize(count, value);
}
