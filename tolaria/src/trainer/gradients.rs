//! What is reported about the gradients of an epoch's owners, from sums over its windows.

use std::collections::BTreeMap;

use leyline::layout::{Owner, ParameterLayout};

use crate::aggregate::OwnerSums;
use crate::trainer::report::{ConflictRecord, CosineRecord, LAYERS_REPORTED, LayerRecord, OwnerRecord};

/// Sums over the measured windows of an epoch: those in which several owners took part.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct GradientTotals {
    /// Measured windows (count).
    pub(super) windows: u64,
    /// Ordered pairs of owners with a negative inner product, and all ordered pairs (count).
    pub(super) conflicts: f64,
    pub(super) pairs: f64,
    /// Sum of the shares of attribution that stay with the host.
    pub(super) host_share: f64,
    /// The host first, then seeds by id.
    pub(super) owners: Vec<OwnerSums>,
    /// Two indices into `owners`, the sum of their cosines, and the windows in which both took part.
    pub(super) cosines: Vec<(usize, usize, f64, f64)>,
}

/// The record of an epoch; absent when no window was measured. `layout` is the one of the epoch's windows, `previous`
/// holds the shares of the epoch before.
pub(super) fn conflict_record(
    totals: &GradientTotals,
    layout: &ParameterLayout,
    previous: &BTreeMap<Owner, f64>,
) -> Option<ConflictRecord> {
    Some(ConflictRecord {
        ratio: fraction(totals.conflicts, totals.pairs)?,
        conflicts: count(totals.conflicts),
        pairs: count(totals.pairs),
        windows: totals.windows,
        host_share: fraction(totals.host_share, totals.windows as f64)?,
        owners: totals.owners.iter().filter_map(|owner| owner_record(owner, layout, previous)).collect(),
        cosines: totals.cosines.iter().filter_map(|pair| cosine_record(pair, &totals.owners)).collect(),
    })
}

/// The shares of an epoch, for the changes that the next one reports.
pub(super) fn shares(record: Option<&ConflictRecord>) -> BTreeMap<Owner, f64> {
    record.into_iter().flat_map(|record| &record.owners).map(|owner| (owner.owner, owner.share)).collect()
}

fn owner_record(totals: &OwnerSums, layout: &ParameterLayout, previous: &BTreeMap<Owner, f64>) -> Option<OwnerRecord> {
    let OwnerSums { owner, windows, .. } = *totals;
    let share = fraction(totals.share, windows)?;
    let num_parameters = layout.num_elements_of(owner);
    let of_seed = |mean: Option<f64>| mean.filter(|_| owner != Owner::Host);
    Some(OwnerRecord {
        owner,
        windows: count(windows),
        weight: fraction(totals.weight, windows)?,
        norm: root_mean_square(totals.norm_sq, windows)?,
        share,
        share_delta: previous.get(&owner).map(|before| share - before),
        conflicts: count(totals.conflicts),
        pairs: count(totals.pairs),
        conflict_ratio: fraction(totals.conflicts, totals.pairs).unwrap_or(0.0),
        resolved_weight: mean(totals.resolved_weight, windows)?,
        alpha: of_seed(fraction(totals.alpha, windows)),
        host_split: of_seed(fraction(totals.host_split, windows)),
        num_parameters: num_parameters as u64,
        parameter_fraction: fraction(num_parameters as f64, layout.num_elements() as f64).unwrap_or(0.0),
        layers: largest_layers(totals, layout),
    })
}

fn largest_layers(totals: &OwnerSums, layout: &ParameterLayout) -> Vec<LayerRecord> {
    let parts = layout.segments().iter().filter(|segment| segment.len > 0);
    let norms = parts.zip(&totals.layers_sq).filter_map(|(segment, sum_sq)| {
        let norm = root_mean_square(*sum_sq, totals.windows)?;
        Some(LayerRecord { layer: segment.spec.name.clone(), norm })
    });
    let mut layers: Vec<LayerRecord> = norms.collect();
    // Stable: equal norms stay in the order of the flat vector.
    layers.sort_by(|a, b| b.norm.total_cmp(&a.norm));
    layers.truncate(LAYERS_REPORTED);
    layers
}

fn cosine_record(&(a, b, sum, windows): &(usize, usize, f64, f64), owners: &[OwnerSums]) -> Option<CosineRecord> {
    let cosine = mean(sum, windows)?.clamp(-1.0, 1.0);
    Some(CosineRecord { a: owners.get(a)?.owner, b: owners.get(b)?.owner, cosine, windows: count(windows) })
}

/// Absent without anything to average over, and for what is no number.
fn mean(sum: f64, number: f64) -> Option<f64> {
    (number > 0.0).then(|| sum / number).filter(|mean| mean.is_finite())
}

/// A mean of numbers in `[0, 1]`: rounding must not carry it out.
fn fraction(sum: f64, number: f64) -> Option<f64> {
    mean(sum, number).map(|mean| mean.clamp(0.0, 1.0))
}

/// A squared norm that follows from inner products may be rounded below 0.
fn root_mean_square(sum_sq: f64, number: f64) -> Option<f64> {
    mean(sum_sq, number).map(|mean| mean.max(0.0).sqrt())
}

#[expect(clippy::cast_possible_truncation, reason = "the cast saturates, and counts are far below 2^53")]
pub(super) fn count(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOST, layout, seed};

    const WINDOWS: f64 = 4.0;

    fn network() -> ParameterLayout {
        layout(&[("a", 30, HOST, false), ("b", 0, seed(1), false), ("c", 8, seed(1), false), ("d", 2, seed(2), false)])
    }

    fn owner(owner: Owner, norm_sq: f64, share: f64) -> OwnerSums {
        OwnerSums {
            owner,
            parameter_sq: 0.0,
            healthy: 0.0,
            skipped: 0.0,
            windows: WINDOWS,
            weight: 2.0,
            norm_sq,
            share,
            conflicts: 3.0,
            pairs: 8.0,
            resolved_weight: 6.0,
            alpha: 1.0,
            host_split: 3.0,
            layers_sq: vec![4.0, 16.0, 1.0],
        }
    }

    fn totals() -> GradientTotals {
        GradientTotals {
            windows: 4,
            conflicts: 6.0,
            pairs: 24.0,
            host_share: 2.0,
            owners: vec![owner(HOST, 36.0, 3.0), owner(seed(1), 4.0, 1.0)],
            cosines: vec![(0, 1, -1.0, 4.0)],
        }
    }

    fn record(totals: &GradientTotals) -> Option<ConflictRecord> {
        conflict_record(totals, &network(), &BTreeMap::new())
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }

    #[test]
    fn sums_become_means_and_root_mean_squares() {
        let record = record(&totals()).unwrap();
        assert_eq!((record.windows, record.conflicts, record.pairs), (4, 6, 24));
        assert_near(record.ratio, 0.25);
        assert_near(record.host_share, 0.5);
        let [host, first] = record.owners.as_slice() else { panic!("{record:?}") };
        assert_eq!((host.owner, first.owner, first.windows), (HOST, seed(1), 4));
        assert_near(host.norm, 3.0);
        assert_near(first.norm, 1.0);
        assert_near(first.weight, 0.5);
        assert_near(first.resolved_weight, 1.5);
        assert_near(host.share + first.share, 1.0);
        assert_eq!((first.conflicts, first.pairs), (3, 8));
        assert_near(first.conflict_ratio, 0.375);
        assert_eq!((host.alpha, host.host_split), (None, None));
        assert_eq!((first.alpha, first.host_split), (Some(0.25), Some(0.75)));
        assert_eq!((host.num_parameters, first.num_parameters), (30, 8));
        assert_near(first.parameter_fraction, 0.2);
        let cosine = CosineRecord { a: HOST, b: seed(1), cosine: -0.25, windows: 4 };
        assert_eq!(record.cosines, [cosine]);
    }

    #[test]
    fn layers_are_those_with_elements_and_the_largest_come_first() {
        let record = record(&totals()).unwrap();
        let named: Vec<(&str, f64)> = record.owners[1].layers.iter().map(|l| (l.layer.as_str(), l.norm)).collect();
        assert_eq!(named, [("c", 2.0), ("a", 1.0), ("d", 0.5)]);

        let names: Vec<String> = (0..LAYERS_REPORTED + 3).map(|index| format!("layer{index:02}")).collect();
        let wide: Vec<_> = names.iter().map(|name| (name.as_str(), 1, HOST, false)).collect();
        let layers_sq: Vec<f64> = (0..names.len()).map(|index| (index * index) as f64 * WINDOWS).collect();
        let totals = OwnerSums { layers_sq, ..owner(HOST, 1.0, 1.0) };
        let layers = largest_layers(&totals, &layout(&wide));
        assert_eq!((layers.len(), layers[0].layer.as_str()), (LAYERS_REPORTED, "layer10"));
        assert!(layers.iter().all(|layer| layer.norm > 2.5), "{layers:?}");
    }

    #[test]
    fn what_was_not_measured_is_absent() {
        assert_eq!(record(&GradientTotals::default()), None);
        assert_eq!(record(&GradientTotals { windows: 0, ..totals() }), None);
        assert_eq!(record(&GradientTotals { pairs: 0.0, conflicts: 0.0, ..totals() }), None);

        let mut idle = totals();
        idle.owners[1].windows = 0.0;
        idle.cosines[0].3 = 0.0;
        let record = record(&idle).unwrap();
        assert_eq!(record.owners.iter().map(|owner| owner.owner).collect::<Vec<_>>(), [HOST]);
        assert!(record.cosines.is_empty());
    }

    #[test]
    fn gradients_that_are_not_finite_leave_nothing_that_json_cannot_hold() {
        for broken in [f64::NAN, f64::INFINITY] {
            let mut totals = totals();
            totals.owners[1].norm_sq = broken;
            totals.owners[0].layers_sq[1] = broken;
            totals.owners[1].alpha = broken;
            totals.cosines[0].2 = broken;
            let record = record(&totals).unwrap();
            assert_eq!(record.owners.iter().map(|owner| owner.owner).collect::<Vec<_>>(), [HOST]);
            assert_eq!(record.owners[0].layers.iter().map(|l| l.layer.as_str()).collect::<Vec<_>>(), ["a", "d"]);
            assert!(record.cosines.is_empty());
            let again: ConflictRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
            assert_eq!(again, record);
        }
    }

    #[test]
    fn fractions_stay_in_their_range_whatever_rounding_did() {
        let mut totals = totals();
        totals.host_share = WINDOWS * (1.0 + 1e-15);
        totals.cosines[0].2 = -WINDOWS * (1.0 + 1e-15);
        totals.owners[0].share = WINDOWS * (1.0 + 1e-15);
        totals.owners[0].norm_sq = -1e-20;
        let record = record(&totals).unwrap();
        assert!(record.host_share <= 1.0 && record.owners[0].share <= 1.0 && record.cosines[0].cosine >= -1.0);
        assert_near(record.owners[0].norm, 0.0);
    }

    #[test]
    fn a_change_of_share_needs_an_epoch_before() {
        let first = record(&totals()).unwrap();
        assert!(first.owners.iter().all(|owner| owner.share_delta.is_none()));
        let mut before = shares(Some(&first));
        before.remove(&HOST);
        let mut totals = totals();
        totals.owners[1].share = 3.0;
        let second = conflict_record(&totals, &network(), &before).unwrap();
        assert_eq!(second.owners[0].share_delta, None);
        assert_near(second.owners[1].share_delta.unwrap(), 0.5);
        assert!(shares(None).is_empty());
    }
}
