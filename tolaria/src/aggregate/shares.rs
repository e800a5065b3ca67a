//! The owners of a window, and how much of each microbatch is whose.

use leyline::layout::Owner;
use leyline::seed::Attribution;

/// What [`Attribution`] allows its weights to exceed 1 by is no share of the host either.
const ROUNDING: f64 = 1e-9;

/// `C[s,k] = A[k,s] n_k/N` for every owner with a positive share.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shares {
    num_microbatches: usize,
    /// The host first, then seeds by id.
    owners: Vec<Owner>,
    /// Row-major (owners, microbatches).
    coefficients: Vec<f64>,
}

impl Shares {
    /// From the attribution of each microbatch with its fraction `n_k/N` of the samples.
    pub(super) fn new<'a>(microbatches: impl ExactSizeIterator<Item = (&'a Attribution, f64)> + Clone) -> Self {
        let mut owners: Vec<Owner> = Vec::new();
        for (attribution, _) in microbatches.clone() {
            if host_share(attribution) > 0.0 {
                owners.push(Owner::Host);
            }
            let named = attribution.weights().iter().filter(|(_, weight)| *weight > 0.0);
            owners.extend(named.map(|(seed, _)| Owner::Seed(*seed)));
        }
        owners.sort_unstable();
        owners.dedup();
        let mut coefficients = Vec::with_capacity(owners.len() * microbatches.len());
        for owner in &owners {
            coefficients
                .extend(microbatches.clone().map(|(attribution, fraction)| weight(attribution, *owner) * fraction));
        }
        Self { num_microbatches: microbatches.len(), owners, coefficients }
    }

    pub(super) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// `C[owner, ·]`, one per microbatch.
    pub(super) fn row(&self, owner: usize) -> &[f64] {
        &self.coefficients[owner * self.num_microbatches..(owner + 1) * self.num_microbatches]
    }

    pub(super) fn weight(&self, owner: usize) -> f64 {
        self.row(owner).iter().sum()
    }
}

/// The share of the host; what only rounding leaves is none.
pub(super) fn host_share(attribution: &Attribution) -> f64 {
    let share = attribution.host_share();
    if share > ROUNDING { share } else { 0.0 }
}

fn weight(attribution: &Attribution, owner: Owner) -> f64 {
    match owner {
        Owner::Host => host_share(attribution),
        Owner::Seed(seed) => {
            attribution.weights().iter().find(|(named, _)| *named == seed).map_or(0.0, |(_, weight)| *weight)
        }
    }
}

#[cfg(test)]
mod tests {
    use leyline::id::SeedId;
    use leyline::seed::AttributionMode;

    use super::*;
    use crate::testing::{HOST, seed};

    #[track_caller]
    fn check(attributions: &[&[(u32, f64)]], owners: &[Owner], rows: &[&[f64]]) {
        let attributions: Vec<Attribution> = attributions
            .iter()
            .map(|weights| weights.iter().map(|&(id, weight)| (SeedId(id), weight)).collect())
            .map(|weights| Attribution::new(AttributionMode::Stage, weights).unwrap())
            .collect();
        let fraction = 1.0 / attributions.len() as f64;
        let shares = Shares::new(attributions.iter().map(|attribution| (attribution, fraction)));
        assert_eq!(shares.owners(), owners);
        for (index, row) in rows.iter().enumerate() {
            let close = shares.row(index).iter().zip(*row).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(close, "owner {index} has {:?}, not {row:?}", shares.row(index));
        }
        let sum: f64 = (0..owners.len()).map(|owner| shares.weight(owner)).sum();
        assert!((sum - 1.0).abs() < 1e-9);
    }

    #[test]
    fn owners_are_whoever_has_a_positive_share() {
        check(&[&[], &[]], &[HOST], &[&[0.5, 0.5]]);
        check(&[&[(2, 1.0)], &[(2, 1.0)]], &[seed(2)], &[&[0.5, 0.5]]);
        check(&[&[(2, 0.0)], &[(1, 0.25)]], &[HOST, seed(1)], &[&[0.5, 0.375], &[0.0, 0.125]]);
        let all = [&[(1, 1.0)][..], &[(2, 0.5)]];
        check(&all, &[HOST, seed(1), seed(2)], &[&[0.0, 0.25], &[0.5, 0.0], &[0.0, 0.25]]);
    }

    #[test]
    fn what_rounding_leaves_of_one_does_not_make_the_host_an_owner() {
        check(&[&[(1, 0.1), (2, 0.2), (3, 0.7)]], &[seed(1), seed(2), seed(3)], &[&[0.1], &[0.2], &[0.7]]);
    }
}
