//! What the combination of a window needs from the host, made before any device work.

use leyline::id::{SeedId, StepIndex};
use leyline::layout::Owner;
use leyline::seed::Attribution;
use rand::Rng;

use super::config::AggregationConfig;
use crate::error::Error;
use crate::rng::{self, Purpose};

/// What [`Attribution`] allows its weights to exceed 1 by is no share of the host either.
const ROUNDING: f64 = 1e-9;

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
/// A plan consists of numbers on the host. Of windows of one shape, those that tell owners apart differ only in their
/// [`arguments`](Self::arguments); the numbers of samples n_k count as shapes.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowPlan {
    /// `n_k/N`, one per microbatch (K).
    fractions: Vec<f64>,
    num_samples: usize,
    host_share: f64,
    /// Absent when owners are not told apart.
    owners: Option<OwnersPlan>,
}

/// Two or more owners whose gradients can conflict.
#[derive(Debug, Clone, PartialEq)]
struct OwnersPlan {
    num_slots: usize,
    num_participants: usize,
    /// `C[s,k] = A[k,s] n_k/N`, (S, K); zeros for owners that take no part.
    shares: Vec<f64>,
    /// For each owner the others, in the order in which its gradient is projected onto theirs, (S, S − 1).
    orders: Vec<f64>,
    /// Alpha of each owner, (S); 0 where it is not known.
    alphas: Vec<f64>,
}

impl WindowPlan {
    /// From the number of samples (n_k) and the attribution of each microbatch. `slots`: the owners that are told apart,
    /// the host first; what is attributed to a seed that is not among them stays with the host.
    ///
    /// Owners are told apart when `config` asks for it and several of them take part in several microbatches.
    ///
    /// # Errors
    /// [`Error::LayoutMismatch`] for a window without microbatches or without samples, or when the host is not the first
    /// of `slots`.
    /// # Sync
    /// none
    pub fn new(
        microbatches: &[(usize, Attribution)],
        slots: &[Owner],
        config: &AggregationConfig,
        order: ProjectionOrder,
    ) -> Result<Self, Error> {
        if slots.first() != Some(&Owner::Host) {
            return Err(Error::mismatch("owners of a window", "the host first", format!("{slots:?}")));
        }
        let total: usize = microbatches.iter().map(|(num_samples, _)| num_samples).sum();
        if total == 0 {
            return Err(Error::mismatch("accumulation window", "at least one sample", "none"));
        }
        let fractions: Vec<f64> =
            microbatches.iter().map(|(num_samples, _)| *num_samples as f64 / total as f64).collect();
        let shares: Vec<f64> = slots
            .iter()
            .flat_map(|slot| microbatches.iter().map(|(_, attribution)| share(attribution, *slot, slots)))
            .zip(fractions.iter().cycle())
            .map(|(share, fraction)| share * fraction)
            .collect();
        let rows = microbatches.len();
        let host_share = shares[..rows].iter().sum();
        let num_participants = shares.chunks(rows).filter(|shares| shares.iter().any(|share| *share > 0.0)).count();
        let owners = (config.tells_owners_apart() && rows > 1 && num_participants > 1).then(|| {
            let mut rng = rng::stream(order.seed, Purpose::ProjectionOrder, order.step.0);
            let orders = visiting_orders(slots.len(), &mut rng);
            OwnersPlan { num_slots: slots.len(), num_participants, shares, orders, alphas: vec![0.0; slots.len()] }
        });
        Ok(Self { fractions, num_samples: total, host_share, owners })
    }

    /// Notes the alpha of each seed, which is averaged for the report and decides nothing.
    #[must_use]
    pub fn with_alphas(mut self, slots: &[Owner], alpha: impl Fn(SeedId) -> Option<f64>) -> Self {
        if let Some(owners) = &mut self.owners {
            for (noted, slot) in owners.alphas.iter_mut().zip(slots) {
                if let Owner::Seed(seed) = slot {
                    *noted = alpha(*seed).unwrap_or(0.0);
                }
            }
        }
        self
    }

    /// The window when its gradients have been added up to one row.
    pub(crate) fn summed(&self) -> Self {
        Self { fractions: vec![1.0], owners: None, ..*self }
    }

    /// Samples of the window.
    #[must_use]
    pub fn num_samples(&self) -> usize {
        self.num_samples
    }

    /// What stays with the host, averaged over samples, in `[0, 1]`.
    #[must_use]
    pub fn host_share(&self) -> f64 {
        self.host_share
    }

    /// Whether owners are told apart: then inner products are formed. Windows of the same shapes that differ in this
    /// are combined by different device work.
    #[must_use]
    pub fn tells_owners_apart(&self) -> bool {
        self.owners.is_some()
    }

    /// All ordered pairs of different owners that take part; 0 when owners are not told apart.
    #[must_use]
    pub fn num_pairs(&self) -> u64 {
        let participants = self.owners.as_ref().map_or(0, |owners| owners.num_participants as u64);
        participants * participants.saturating_sub(1)
    }

    /// Length of [`arguments`](Self::arguments) that tell `num_slots` owners apart.
    #[must_use]
    pub fn num_arguments(num_microbatches: usize, num_slots: usize) -> usize {
        num_microbatches + num_slots * (num_microbatches + num_slots)
    }

    /// The plan as flat numbers: the fractions `n_k/N` (K), and where owners are told apart the shares `C[s,k]` (S, K), the
    /// visiting orders (S, S − 1) as slots, and the alphas (S).
    #[must_use]
    pub fn arguments(&self) -> Vec<f64> {
        let mut arguments = self.fractions.clone();
        if let Some(owners) = &self.owners {
            arguments.extend(owners.shares.iter().chain(&owners.orders).chain(&owners.alphas));
        }
        arguments
    }

    pub(super) fn num_microbatches(&self) -> usize {
        self.fractions.len()
    }

    pub(crate) fn fractions(&self) -> &[f64] {
        &self.fractions
    }

    /// Slots for which there are shares; `None` when owners are not told apart.
    pub(super) fn num_slots(&self) -> Option<usize> {
        self.owners.as_ref().map(|owners| owners.num_slots)
    }
}

/// How much of a microbatch is the owner's; what only rounding leaves to the host is nothing.
fn share(attribution: &Attribution, owner: Owner, slots: &[Owner]) -> f64 {
    let weights = attribution.weights().iter();
    match owner {
        Owner::Seed(seed) => weights.filter(|(named, _)| *named == seed).map(|(_, weight)| *weight).sum(),
        Owner::Host => {
            let strangers = weights.filter(|(named, _)| !slots.contains(&Owner::Seed(*named)));
            let share = attribution.host_share() + strangers.map(|(_, weight)| weight).sum::<f64>();
            if share > ROUNDING { share } else { 0.0 }
        }
    }
}

/// For each owner the others, in random order.
fn visiting_orders(count: usize, rng: &mut impl Rng) -> Vec<f64> {
    let mut orders = Vec::with_capacity(count * count.saturating_sub(1));
    for owner in 0..count {
        let mut others: Vec<usize> = (0..count).filter(|other| *other != owner).collect();
        rng::shuffle(&mut others, rng);
        orders.extend(others.into_iter().map(|other| other as f64));
    }
    orders
}

#[cfg(test)]
mod tests {
    use leyline::seed::AttributionMode;

    use super::*;
    use crate::aggregate::ConflictResolution;
    use crate::testing::{HOST, seed};

    const ORDER: ProjectionOrder = ProjectionOrder { seed: 11, step: StepIndex(3) };

    fn plan(rows: &[(usize, &[(u32, f64)])], slots: &[Owner], config: &AggregationConfig) -> WindowPlan {
        let row = |&(num_samples, weights): &(usize, &[(u32, f64)])| {
            let weights = weights.iter().map(|&(id, weight)| (SeedId(id), weight)).collect();
            (num_samples, Attribution::new(AttributionMode::Stage, weights).unwrap())
        };
        WindowPlan::new(&rows.iter().map(row).collect::<Vec<_>>(), slots, config, ORDER).unwrap()
    }

    fn config(method: ConflictResolution) -> AggregationConfig {
        AggregationConfig { method, ..AggregationConfig::default() }
    }

    #[test]
    fn owners_are_told_apart_where_several_take_part_in_several_microbatches() {
        use ConflictResolution::{Mean, PcGrad};
        let slots = [HOST, seed(1), seed(2), seed(3)];
        let two: &[(usize, &[(u32, f64)])] = &[(1, &[(1, 1.0)]), (1, &[])];
        let three: &[(usize, &[(u32, f64)])] = &[(1, &[(1, 0.5)]), (1, &[(2, 0.5)])];
        for (rows, method, num_pairs) in [
            (two, PcGrad, 2),
            (three, PcGrad, 6),
            (two, Mean, 0),
            (&[(2, &[(1, 0.5)])], PcGrad, 0),
            (&[(1, &[]), (1, &[])], PcGrad, 0),
            (&[(1, &[(1, 1.0)]), (1, &[(1, 1.0)])], PcGrad, 0),
        ] {
            let plan = plan(rows, &slots, &config(method));
            assert_eq!((plan.num_pairs(), plan.tells_owners_apart()), (num_pairs, num_pairs > 0), "{rows:?}");
        }
        let measured = AggregationConfig { measure_conflicts: true, ..config(Mean) };
        assert_eq!(plan(two, &slots, &measured).num_pairs(), 2);
    }

    #[test]
    fn the_arguments_are_fractions_shares_orders_and_alphas() {
        let slots = [HOST, seed(1), seed(2)];
        let plan = plan(&[(1, &[(1, 1.0)]), (3, &[(2, 0.5)])], &slots, &config(ConflictResolution::PcGrad));
        let plan = plan.with_alphas(&slots, |seed| (seed == SeedId(2)).then_some(0.25));
        let arguments = plan.arguments();
        assert_eq!(arguments.len(), WindowPlan::num_arguments(2, 3));
        assert_eq!(arguments[..8], [0.25, 0.75, 0.0, 0.375, 0.25, 0.0, 0.0, 0.375]);
        for (owner, order) in arguments[8..14].chunks(2).enumerate() {
            let mut all = [order, &[owner as f64]].concat();
            all.sort_unstable_by(f64::total_cmp);
            assert_eq!(all, [0.0, 1.0, 2.0], "owner {owner} visits {order:?}");
        }
        assert_eq!(arguments[14..], [0.0, 0.0, 0.25]);
    }

    #[test]
    fn the_same_seed_and_step_give_the_same_orders_and_others_give_others() {
        let slots: Vec<Owner> = std::iter::once(HOST).chain((1..8).map(seed)).collect();
        let rows: &[(usize, &[(u32, f64)])] = &[(1, &[(1, 1.0)]), (1, &[])];
        let orders = |order| {
            let attribution = |rows: &[(u32, f64)]| {
                let weights = rows.iter().map(|&(id, weight)| (SeedId(id), weight)).collect();
                Attribution::new(AttributionMode::Stage, weights).unwrap()
            };
            let rows: Vec<_> = rows.iter().map(|(num_samples, row)| (*num_samples, attribution(row))).collect();
            WindowPlan::new(&rows, &slots, &config(ConflictResolution::PcGrad), order).unwrap().arguments()
        };
        let other_step = ProjectionOrder { step: StepIndex(4), ..ORDER };
        let other_seed = ProjectionOrder { seed: 12, ..ORDER };
        assert_eq!(orders(ORDER), orders(ORDER));
        assert_ne!(orders(ORDER), orders(other_step));
        assert_ne!(orders(ORDER), orders(other_seed));
    }

    #[test]
    fn what_is_attributed_to_a_seed_without_parameters_stays_with_the_host() {
        let rows: &[(usize, &[(u32, f64)])] = &[(1, &[(1, 0.25), (9, 0.5)]), (1, &[(9, 1.0)])];
        let plan = plan(rows, &[HOST, seed(1)], &config(ConflictResolution::PcGrad));
        assert_eq!(plan.arguments()[2..6], [0.375, 0.5, 0.125, 0.0]);
        assert!((plan.host_share() - 0.875).abs() < 1e-12);
    }

    #[test]
    fn what_rounding_leaves_of_one_does_not_make_the_host_take_part() {
        // Ten times 0.1 is a little less than 1.
        let weights: Vec<(u32, f64)> = (1..=10).map(|id| (id, 0.1)).collect();
        assert!(weights.iter().map(|(_, weight)| weight).sum::<f64>() < 1.0);
        let slots: Vec<Owner> = std::iter::once(HOST).chain((1..=10).map(seed)).collect();
        let plan = plan(&[(1, &weights), (1, &weights)], &slots, &config(ConflictResolution::PcGrad));
        assert_eq!(plan.num_pairs(), 90);
        assert!(plan.host_share().to_bits() == 0);
    }

    #[test]
    fn the_shares_of_all_owners_are_the_fractions() {
        let rows: &[(usize, &[(u32, f64)])] = &[(3, &[(1, 0.3), (2, 0.2)]), (5, &[]), (1, &[(2, 1.0)])];
        let plan = plan(rows, &[HOST, seed(1), seed(2)], &config(ConflictResolution::PcGrad));
        let arguments = plan.arguments();
        for k in 0..3 {
            let sum: f64 = (0..3).map(|slot| arguments[3 + slot * 3 + k]).sum();
            assert!((sum - arguments[k]).abs() < 1e-15, "microbatch {k}");
        }
    }
}
