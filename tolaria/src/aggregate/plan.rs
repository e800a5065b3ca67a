//! What the aggregation of a window needs from the host, made before any device work.

use leyline::id::StepIndex;
use leyline::seed::Attribution;

use super::config::ConflictResolution;
use super::pcgrad::visiting_orders;
use super::shares::{Shares, host_share};
use crate::error::Error;
use crate::rng::{self, Purpose};

/// What the random order of projections follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectionOrder {
    /// Seed of the run.
    pub seed: u64,
    /// The optimizer step.
    pub step: StepIndex,
}

/// How the microbatches of one accumulation window are combined.
///
/// A plan consists of numbers on the host. The part that changes from step to step while the shapes stay the same is
/// [`arguments`](Self::arguments); the numbers of samples n_k count as shapes.
#[derive(Debug, Clone)]
pub struct WindowPlan {
    /// `n_k/N`, one per microbatch.
    fractions: Vec<f64>,
    host_share: f64,
    /// Absent when no two gradients can conflict, or conflicts are not looked for.
    owners: Option<OwnersPlan>,
}

/// Two or more owners whose gradients can conflict.
#[derive(Debug, Clone)]
pub(super) struct OwnersPlan {
    pub(super) shares: Shares,
    /// For each owner the others, in the order in which its gradient is projected onto theirs.
    pub(super) orders: Vec<Vec<usize>>,
}

impl WindowPlan {
    /// From the number of samples (n_k) and the attribution of each microbatch.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] for a window without microbatches or without samples.
    /// # Sync
    /// none
    pub fn new(
        microbatches: &[(usize, Attribution)],
        resolution: ConflictResolution,
        order: ProjectionOrder,
    ) -> Result<Self, Error> {
        let total: usize = microbatches.iter().map(|(num_samples, _)| num_samples).sum();
        if total == 0 {
            return Err(Error::mismatch("accumulation window", "at least one sample", "none"));
        }
        let fractions: Vec<f64> =
            microbatches.iter().map(|(num_samples, _)| *num_samples as f64 / total as f64).collect();
        let weighted = microbatches.iter().map(|(_, attribution)| attribution).zip(fractions.iter().copied());
        let host_share = weighted.clone().map(|(attribution, fraction)| host_share(attribution) * fraction).sum();
        let owners = (resolution == ConflictResolution::PcGrad && microbatches.len() > 1)
            .then(|| Shares::new(weighted))
            .filter(|shares| shares.owners().len() > 1)
            .map(|shares| {
                let mut rng = rng::stream(order.seed, Purpose::ProjectionOrder, order.step.0);
                OwnersPlan { orders: visiting_orders(shares.owners().len(), &mut rng), shares }
            });
        Ok(Self { fractions, host_share, owners })
    }

    /// What no seed is responsible for, averaged over samples, in `[0, 1]`.
    #[must_use]
    pub fn host_share(&self) -> f64 {
        self.host_share
    }

    /// Whether conflicts are looked for: with [`ConflictResolution::PcGrad`], several microbatches and several owners.
    ///
    /// Windows of the same shapes that differ in this are combined by different device work.
    #[must_use]
    pub fn resolves_conflicts(&self) -> bool {
        self.owners.is_some()
    }

    /// All ordered pairs of different owners; 0 when conflicts are not looked for.
    #[must_use]
    pub fn num_pairs(&self) -> u64 {
        let owners = self.num_owners() as u64;
        owners * owners.saturating_sub(1)
    }

    /// Length of [`arguments`](Self::arguments).
    #[must_use]
    pub fn num_arguments(num_microbatches: usize, max_owners: usize) -> usize {
        1 + num_microbatches + max_owners * num_microbatches + max_owners * max_owners.saturating_sub(1)
    }

    /// The plan as numbers: the count of owners S, the fractions `n_k/N` (K), the shares `C[s,k]` (S, K), the visiting
    /// orders (S, S − 1) as indices of owners, then zeros up to the length that `max_owners` gives.
    ///
    /// `max_owners` bounds S for all windows of one shape: the owners of the layout, the host among them. When
    /// conflicts are not looked for, S is 0.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] when the window has more than `max_owners` owners.
    pub fn arguments(&self, max_owners: usize) -> Result<Vec<f64>, Error> {
        let num_owners = self.num_owners();
        if num_owners > max_owners {
            return Err(Error::mismatch("owners of a window", format!("at most {max_owners}"), num_owners));
        }
        let length = Self::num_arguments(self.num_microbatches(), max_owners);
        let mut arguments = Vec::with_capacity(length);
        arguments.push(num_owners as f64);
        arguments.extend(&self.fractions);
        if let Some(owners) = &self.owners {
            arguments.extend((0..num_owners).flat_map(|owner| owners.shares.row(owner)));
            arguments.extend(owners.orders.iter().flatten().map(|&owner| owner as f64));
        }
        arguments.resize(length, 0.0);
        Ok(arguments)
    }

    pub(super) fn num_microbatches(&self) -> usize {
        self.fractions.len()
    }

    /// 0 when conflicts are not looked for.
    pub(super) fn num_owners(&self) -> usize {
        self.owners.as_ref().map_or(0, |owners| owners.shares.owners().len())
    }

    pub(super) fn fractions(&self) -> &[f64] {
        &self.fractions
    }

    pub(super) fn owners(&self) -> Option<&OwnersPlan> {
        self.owners.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use leyline::id::SeedId;
    use leyline::seed::AttributionMode;

    use super::*;

    const ORDER: ProjectionOrder = ProjectionOrder { seed: 11, step: StepIndex(3) };

    fn plan(rows: &[(usize, &[(u32, f64)])], resolution: ConflictResolution) -> WindowPlan {
        let row = |&(num_samples, weights): &(usize, &[(u32, f64)])| {
            let weights = weights.iter().map(|&(id, weight)| (SeedId(id), weight)).collect();
            (num_samples, Attribution::new(AttributionMode::Stage, weights).unwrap())
        };
        WindowPlan::new(&rows.iter().map(row).collect::<Vec<_>>(), resolution, ORDER).unwrap()
    }

    #[test]
    fn conflicts_are_looked_for_among_several_owners_of_several_microbatches() {
        use ConflictResolution::{Mean, PcGrad};
        let two: &[(usize, &[(u32, f64)])] = &[(1, &[(1, 1.0)]), (1, &[])];
        let three: &[(usize, &[(u32, f64)])] = &[(1, &[(1, 0.5)]), (1, &[(2, 0.5)])];
        for (rows, resolution, num_pairs) in [
            (two, PcGrad, 2),
            (three, PcGrad, 6),
            (two, Mean, 0),
            (&[(2, &[(1, 0.5)])], PcGrad, 0),
            (&[(1, &[]), (1, &[])], PcGrad, 0),
        ] {
            let plan = plan(rows, resolution);
            assert_eq!((plan.num_pairs(), plan.resolves_conflicts()), (num_pairs, num_pairs > 0), "{rows:?}");
        }
    }

    #[test]
    fn the_arguments_are_count_fractions_shares_and_orders_padded_with_zeros() {
        let plan = plan(&[(1, &[(1, 1.0)]), (3, &[(2, 0.5)])], ConflictResolution::PcGrad);
        let [fractions, shares] = [vec![0.25, 0.75], vec![0.0, 0.375, 0.25, 0.0, 0.0, 0.375]];
        for max_owners in [3, 5] {
            let arguments = plan.arguments(max_owners).unwrap();
            assert_eq!(arguments.len(), WindowPlan::num_arguments(2, max_owners));
            assert_eq!(arguments[..9], [vec![3.0], fractions.clone(), shares.clone()].concat());
            for (owner, order) in arguments[9..15].chunks(2).enumerate() {
                let mut all = [order, &[owner as f64]].concat();
                all.sort_unstable_by(f64::total_cmp);
                assert_eq!(all, [0.0, 1.0, 2.0], "owner {owner} visits {order:?}");
            }
            assert!(arguments[15..].iter().all(|number| number.to_bits() == 0));
        }
        let error = plan.arguments(2).unwrap_err();
        assert_eq!(error.to_string(), "owners of a window: expected at most 2, found 3");
    }

    #[test]
    fn a_plan_that_resolves_nothing_has_no_owners_in_its_arguments() {
        let plan = plan(&[(1, &[(1, 1.0)]), (1, &[])], ConflictResolution::Mean);
        assert_eq!(plan.arguments(1).unwrap(), [0.0, 0.5, 0.5, 0.0, 0.0]);
        assert!((plan.host_share() - 0.5).abs() < 1e-12);
    }
}
