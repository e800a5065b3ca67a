//! What the run says about the gradients of host and seeds: the last measurement of every owner and of every pair.

use std::collections::BTreeMap;

use leyline::layout::Owner;
use tolaria::trainer::report::{ConflictRecord, CosineRecord, EpochReport, OwnerRecord, owner_name};

use super::format::{count, decimal, percent};
use super::printable::printable;

/// The last measurements.
#[derive(Debug)]
pub(super) struct Gradients {
    /// What the last measured epoch came to, in a sentence.
    pub(super) sentence: String,
    /// Each owner in the last epoch in which it took part.
    pub(super) owners: Vec<OwnerRow>,
    /// Epoch of the cosines, and the pairs; absent when no two owners were ever compared.
    pub(super) cosines: Option<(u64, Vec<CosineRow>)>,
    /// The largest layers of each owner.
    pub(super) layers: Vec<LayerRow>,
}

/// One owner; absent cells were not measured.
#[derive(Debug)]
pub(super) struct OwnerRow {
    pub(super) owner: String,
    /// The other cells, in the order of the table's head.
    pub(super) cells: Vec<Option<String>>,
}

/// Two owners.
#[derive(Debug)]
pub(super) struct CosineRow {
    pub(super) pair: String,
    pub(super) cosine: String,
    pub(super) windows: String,
}

/// One parameter tensor in the gradient of one owner.
#[derive(Debug)]
pub(super) struct LayerRow {
    pub(super) owner: String,
    pub(super) layer: String,
    pub(super) norm: String,
}

impl Gradients {
    /// Absent when no epoch told owners apart.
    pub(super) fn of(epochs: &[EpochReport]) -> Option<Self> {
        let sentence = summary(epochs)?;
        let latest = latest(epochs);
        let cosines = measured(epochs).rev().find(|(_, conflict)| !conflict.cosines.is_empty());
        Some(Self {
            sentence,
            owners: latest.values().map(|(epoch, owner)| OwnerRow::of(*epoch, owner)).collect(),
            cosines: cosines.map(|(epoch, conflict)| (epoch, cosine_rows(conflict))),
            layers: latest.values().flat_map(|(_, owner)| layer_rows(owner)).collect(),
        })
    }
}

/// Every owner of the run: the host first, then seeds by id.
pub(super) fn owners(epochs: &[EpochReport]) -> Vec<Owner> {
    latest(epochs).into_keys().collect()
}

/// Each owner in the last epoch in which it took part.
pub(super) fn latest(epochs: &[EpochReport]) -> BTreeMap<Owner, (u64, &OwnerRecord)> {
    let all = measured(epochs).flat_map(|(epoch, c)| c.owners.iter().map(move |owner| (owner.owner, (epoch, owner))));
    all.collect()
}

/// Conflicts and host share of the last measured epoch, in a sentence; absent when no epoch was measured.
pub(super) fn summary(epochs: &[EpochReport]) -> Option<String> {
    let (epoch, conflict) = measured(epochs).next_back()?;
    let ConflictRecord { ratio, conflicts, pairs, windows, host_share, .. } = conflict;
    Some(format!(
        "epoch {epoch}: {} of {} ordered pairs of owners conflict ({}), host share {}, over {} windows",
        count(*conflicts),
        count(*pairs),
        percent(*ratio),
        percent(*host_share),
        count(*windows)
    ))
}

fn measured(epochs: &[EpochReport]) -> impl DoubleEndedIterator<Item = (u64, &ConflictRecord)> {
    epochs.iter().filter_map(|report| Some((report.epoch.0, report.conflict.as_ref()?)))
}

impl OwnerRow {
    fn of(epoch: u64, owner: &OwnerRecord) -> Self {
        let conflicts =
            || format!("{} of {} ({})", count(owner.conflicts), count(owner.pairs), percent(owner.conflict_ratio));
        Self {
            owner: owner_name(owner.owner),
            cells: vec![
                Some(epoch.to_string()),
                Some(percent(owner.weight)),
                Some(decimal(owner.norm)),
                Some(percent(owner.share)),
                owner.share_delta.map(|delta| format!("{:+.2} pp", delta * 100.0)),
                (owner.pairs > 0).then(conflicts),
                Some(decimal(owner.resolved_weight)),
                owner.alpha.map(|alpha| format!("{alpha:.2}")),
                owner.host_split.map(percent),
                Some(format!("{} ({})", count(owner.num_parameters), percent(owner.parameter_fraction))),
            ],
        }
    }
}

fn cosine_rows(conflict: &ConflictRecord) -> Vec<CosineRow> {
    let pair = |cosine: &CosineRecord| CosineRow {
        pair: format!("{} and {}", owner_name(cosine.a), owner_name(cosine.b)),
        cosine: format!("{:+.4}", cosine.cosine),
        windows: count(cosine.windows),
    };
    conflict.cosines.iter().map(pair).collect()
}

fn layer_rows(owner: &OwnerRecord) -> impl Iterator<Item = LayerRow> {
    owner.layers.iter().map(|layer| LayerRow {
        owner: owner_name(owner.owner),
        layer: printable(&layer.layer),
        norm: decimal(layer.norm),
    })
}

#[cfg(test)]
mod tests;
