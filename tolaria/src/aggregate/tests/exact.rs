//! What the numbers of a window are in `f64`, from whole vectors.

use super::window::Window;
use crate::aggregate::reference::{Reference, pcgrad};
use crate::aggregate::{AggregationConfig, WindowPlan};

/// Owners' gradients as vectors.
#[derive(Debug)]
pub(super) struct Exact {
    pub(super) fractions: Vec<f64>,
    /// (S, K).
    pub(super) shares: Vec<Vec<f64>>,
    pub(super) orders: Vec<Vec<usize>>,
    /// (S, P); 0 in isolated parts.
    pub(super) owners: Vec<Vec<f64>>,
    /// (S), `Σ_k C[s,k] |g_k|`.
    pub(super) scales: Vec<f64>,
    /// (S), of owners that take no part or whose gradient is nothing but rounding.
    pub(super) is_idle: Vec<bool>,
    /// The rows in the same parts, and in isolated ones.
    rows: Vec<Vec<f64>>,
    isolated: Vec<bool>,
}

impl Exact {
    /// `None` for a window that does not tell owners apart, and for one so near to a limit that rounding decides.
    pub(super) fn of(window: &Window, config: &AggregationConfig) -> Option<Self> {
        let plan = window.plan(config);
        if !plan.tells_owners_apart() {
            return None;
        }
        let (rows, slots) = (window.rows.len(), window.geometry().owners().len());
        let arguments = plan.arguments();
        assert_eq!(arguments.len(), WindowPlan::num_arguments(rows, slots));
        let shares: Vec<Vec<f64>> = arguments[rows..][..slots * rows].chunks(rows).map(<[f64]>::to_vec).collect();
        let orders = &arguments[rows + slots * rows..][..slots * (slots - 1)];
        let number = |order: &f64| (0..slots).find(|slot| (*slot as f64 - order).abs() < 0.5).unwrap();
        let orders = orders.chunks(slots - 1).map(|order| order.iter().map(number).collect()).collect();
        let wide: Vec<Vec<f64>> = window.rows.iter().map(|row| row.iter().copied().map(f64::from).collect()).collect();
        let mut exact = Self {
            fractions: arguments[..rows].to_vec(),
            orders,
            owners: Vec::new(),
            scales: Vec::new(),
            is_idle: vec![false; slots],
            rows: wide,
            isolated: window.is_isolated(),
            shares,
        };
        let norms: Vec<f64> = exact.rows.iter().map(|row| exact.dot(row, row).sqrt()).collect();
        for slot in 0..slots {
            let owner = (0..exact.isolated.len())
                .map(|at| if exact.isolated[at] { 0.0 } else { exact.element(&exact.shares[slot], at) })
                .collect();
            exact.owners.push(owner);
            exact.scales.push(exact.shares[slot].iter().zip(&norms).map(|(share, norm)| share * norm).sum());
        }
        exact.find_idle().then_some(exact)
    }

    /// Whether it is clear who is idle, and which pairs conflict.
    fn find_idle(&mut self) -> bool {
        let slots = self.owners.len();
        let largest = (0..slots).map(|slot| self.norm(slot)).fold(0.0, f64::max);
        for slot in 0..slots {
            let limit = (1e-5 * self.scales[slot]).max(1e-30 * largest);
            let norm = self.norm(slot);
            if norm > 0.9 * limit && norm < 1.1 * limit {
                return false;
            }
            self.is_idle[slot] = !self.takes_part(slot) || norm <= limit;
        }
        let unclear = |i: usize, j: usize| {
            let scale = self.scales[i] * self.scales[j];
            (self.inner(i, j) + 1e-12 * scale).abs() < 2e-13 * scale
        };
        !self.pairs().any(|(i, j)| unclear(i, j))
    }

    /// Ordered pairs of owners that are not idle.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let slots = self.owners.len();
        let pairs = (0..slots).flat_map(move |i| (0..slots).map(move |j| (i, j)));
        pairs.filter(|(i, j)| i != j && !self.is_idle[*i] && !self.is_idle[*j])
    }

    pub(super) fn takes_part(&self, slot: usize) -> bool {
        self.shares[slot].iter().any(|share| *share > 0.0)
    }

    pub(super) fn num_participants(&self) -> usize {
        (0..self.owners.len()).filter(|slot| self.takes_part(*slot)).count()
    }

    pub(super) fn norm(&self, slot: usize) -> f64 {
        self.inner(slot, slot).sqrt()
    }

    pub(super) fn inner(&self, i: usize, j: usize) -> f64 {
        self.owners[i].iter().zip(&self.owners[j]).map(|(a, b)| a * b).sum()
    }

    /// Negative, and not just by rounding.
    pub(super) fn conflicts(&self, i: usize, j: usize) -> bool {
        self.inner(i, j) < -1e-12 * self.scales[i] * self.scales[j]
    }

    /// How many owners conflict with each one.
    pub(super) fn conflicts_of(&self) -> Vec<usize> {
        let of = |slot: usize| self.pairs().filter(|(i, j)| *i == slot && self.conflicts(*i, *j)).count();
        (0..self.owners.len()).map(of).collect()
    }

    /// `Σ_s w_s C[s,k]`.
    pub(super) fn coefficients(&self, weights: &[f64]) -> Vec<f64> {
        let coefficient = |k: usize| self.shares.iter().zip(weights).map(|(shares, weight)| weight * shares[k]).sum();
        (0..self.fractions.len()).map(coefficient).collect()
    }

    /// `Σ_k c_k g_k` at an element, and how far the engine's may be from it with these coefficients: K + 1 roundings,
    /// and what underflows.
    pub(super) fn combination(&self, weights: &[f64], at: usize) -> (f64, f64) {
        let coefficients = if self.isolated[at] { self.fractions.clone() } else { self.coefficients(weights) };
        let products = || self.rows.iter().zip(&coefficients).map(|(row, coefficient)| coefficient * row[at]);
        let (terms, elements): (f64, f64) =
            (products().map(f64::abs).sum(), self.rows.iter().map(|row| row[at].abs()).sum());
        let roundings = (self.rows.len() + 1) as f64;
        let underflow = 1e-45 * (roundings + elements);
        (products().sum(), roundings * (f64::from(f32::EPSILON) / 2.0) * terms * 1.000_001 + underflow)
    }

    /// The paper's `PCGrad` of the owners that are not idle, with the weights of all, and how far limits of what counts
    /// as a conflict and the rounding of inner products may move an element.
    pub(super) fn pcgrad(&self) -> (Reference, f64) {
        let members: Vec<usize> = (0..self.owners.len()).filter(|slot| !self.is_idle[*slot]).collect();
        let owners: Vec<Vec<f64>> = members.iter().map(|slot| self.owners[*slot].clone()).collect();
        let place = |slot: &usize| members.iter().position(|member| member == slot);
        let orders: Vec<Vec<usize>> =
            members.iter().map(|slot| self.orders[*slot].iter().filter_map(place).collect()).collect();
        if members.is_empty() {
            let gradient = vec![0.0; self.isolated.len()];
            return (Reference { gradient, weights: vec![1.0; self.owners.len()], conflicting_pairs: 0 }, 0.0);
        }
        let mut reference = pcgrad(&owners, &orders);
        let mut weights = vec![1.0; self.owners.len()];
        members.iter().zip(&reference.weights).for_each(|(slot, weight)| weights[*slot] = *weight);
        for (slot, idle) in self.owners.iter().enumerate().filter(|(slot, _)| self.is_idle[*slot]) {
            assert!(weights[slot] >= 1.0);
            reference.gradient.iter_mut().zip(idle).for_each(|(sum, value)| *sum += value);
        }
        reference.weights = weights;
        let scale: f64 = members.iter().map(|slot| reference.weights[*slot] * self.scales[*slot]).sum();
        let condition = members.iter().map(|slot| self.scales[*slot] / self.norm(*slot)).fold(1.0, f64::max);
        (reference, 2e-12 * self.owners.len() as f64 * scale * condition)
    }

    fn element(&self, coefficients: &[f64], at: usize) -> f64 {
        self.rows.iter().zip(coefficients).map(|(row, coefficient)| coefficient * row[at]).sum()
    }

    /// Over parts that are not isolated.
    pub(super) fn dot(&self, a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).zip(&self.isolated).filter(|(_, isolated)| !**isolated).map(|((a, b), _)| a * b).sum()
    }
}
