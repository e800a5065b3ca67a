//! The metric handles and events about the gradients of owners.

use std::collections::BTreeMap;
use std::sync::Arc;

use leyline::layout::Owner;
use leyline::telemetry::{Event, Gauge, Recorder};

use crate::aggregate::ConflictResolution;
use crate::telemetry as desc;
use crate::trainer::report::{ConflictRecord, LAYERS_REPORTED, OwnerRecord, owner_name};

/// Change of a seed's share from one epoch to the next, up or down, from which on a warning is emitted.
const SHARE_JUMP: f64 = 0.3;

#[derive(Debug)]
pub(super) struct GradientInstruments {
    recorder: Arc<dyn Recorder>,
    conflicts: Gauge,
    conflict_ratio: Gauge,
    weights_mean: Gauge,
    pcgrad_applied: Gauge,
    teacher_share: Gauge,
    /// Of every owner that was ever reported.
    owners: BTreeMap<Owner, OwnerGauges>,
}

#[derive(Debug)]
struct OwnerGauges {
    weight: Gauge,
    norm: Gauge,
    share: Gauge,
    share_delta: Gauge,
    alpha: Gauge,
    conflicts: Gauge,
    conflict_ratio: Gauge,
    params: Gauge,
    mask_fraction: Gauge,
    teacher_share: Gauge,
    cosine: Gauge,
    /// A recorder keeps a series for the whole run: no more than [`LAYERS_REPORTED`] layers of an owner, those that
    /// were reported first, get one. All are in the record of the epoch.
    layers: BTreeMap<String, Gauge>,
}

impl GradientInstruments {
    pub(super) fn new(recorder: &Arc<dyn Recorder>) -> Self {
        Self {
            recorder: Arc::clone(recorder),
            conflicts: recorder.gauge(&desc::CONFLICTS, &[]),
            conflict_ratio: recorder.gauge(&desc::CONFLICT_RATIO, &[]),
            weights_mean: recorder.gauge(&desc::WEIGHTS_MEAN, &[]),
            pcgrad_applied: recorder.gauge(&desc::PCGRAD_APPLIED, &[]),
            teacher_share: recorder.gauge(&desc::TEACHER_SHARE, &[]),
            owners: BTreeMap::new(),
        }
    }

    /// Takes over what an epoch came to and warns about seeds; what was not measured, and every owner that took no
    /// part, becomes absent.
    pub(super) fn epoch(&mut self, record: Option<&ConflictRecord>, method: ConflictResolution, conflict_warn: f64) {
        self.conflicts.set_or_clear(record.map(|record| record.conflicts as f64));
        self.conflict_ratio.set_or_clear(record.map(|record| record.ratio));
        self.weights_mean.set_or_clear(record.and_then(weights_mean));
        self.pcgrad_applied.set_or_clear(record.map(|record| f64::from(record.conflicts > 0 && resolves(method))));
        self.teacher_share.set_or_clear(record.map(|record| record.host_share));
        for gauges in self.owners.values() {
            gauges.clear();
        }
        let Some(record) = record else { return };
        for owner in &record.owners {
            let gauges =
                self.owners.entry(owner.owner).or_insert_with(|| OwnerGauges::new(&*self.recorder, owner.owner));
            gauges.set(owner, cosine_to_host(record, owner.owner), &*self.recorder);
            for event in warnings(owner, conflict_warn) {
                self.recorder.event(event);
            }
        }
    }
}

impl OwnerGauges {
    fn new(recorder: &dyn Recorder, owner: Owner) -> Self {
        let label = owner_name(owner);
        let gauge = |desc| recorder.gauge(desc, &[&label]);
        Self {
            weight: gauge(&desc::OWNER_WEIGHT),
            norm: gauge(&desc::OWNER_NORM),
            share: gauge(&desc::OWNER_SHARE),
            share_delta: gauge(&desc::OWNER_SHARE_DELTA),
            alpha: gauge(&desc::OWNER_ALPHA),
            conflicts: gauge(&desc::OWNER_CONFLICTS),
            conflict_ratio: gauge(&desc::OWNER_CONFLICT_RATIO),
            params: gauge(&desc::OWNER_PARAMS),
            mask_fraction: gauge(&desc::OWNER_MASK_FRACTION),
            teacher_share: gauge(&desc::OWNER_TEACHER_SHARE),
            cosine: gauge(&desc::OWNER_COSINE),
            layers: BTreeMap::new(),
        }
    }

    fn set(&mut self, record: &OwnerRecord, cosine: Option<f64>, recorder: &dyn Recorder) {
        self.weight.set(record.weight);
        self.norm.set(record.norm);
        self.share.set(record.share);
        self.share_delta.set_or_clear(record.share_delta);
        self.alpha.set_or_clear(record.alpha);
        self.conflicts.set(record.conflicts as f64);
        self.conflict_ratio.set_or_clear((record.pairs > 0).then_some(record.conflict_ratio));
        self.params.set(record.num_parameters as f64);
        self.mask_fraction.set(record.parameter_fraction);
        self.teacher_share.set_or_clear(record.host_split);
        self.cosine.set_or_clear(cosine);
        for layer in &record.layers {
            if self.layers.len() < LAYERS_REPORTED && !self.layers.contains_key(&layer.layer) {
                let gauge = recorder.gauge(&desc::OWNER_LAYER_NORM, &[&owner_name(record.owner), &layer.layer]);
                self.layers.insert(layer.layer.clone(), gauge);
            }
            if let Some(gauge) = self.layers.get(&layer.layer) {
                gauge.set(layer.norm);
            }
        }
    }

    fn clear(&self) {
        let Self { weight, norm, share, share_delta, alpha, conflicts, .. } = self;
        let Self { conflict_ratio, params, mask_fraction, teacher_share, cosine, layers, .. } = self;
        let first = [weight, norm, share, share_delta, alpha, conflicts];
        let rest = [conflict_ratio, params, mask_fraction, teacher_share, cosine];
        for gauge in first.into_iter().chain(rest).chain(layers.values()) {
            gauge.set_or_clear(None);
        }
    }
}

/// Whether a method does anything about conflicts.
fn resolves(method: ConflictResolution) -> bool {
    match method {
        ConflictResolution::Mean => false,
        ConflictResolution::PcGrad
        | ConflictResolution::Mgda
        | ConflictResolution::UpGrad
        | ConflictResolution::CaGrad
        | ConflictResolution::AlignedMtl => true,
    }
}

/// The mean over owners and their windows of the weight that the method gave.
fn weights_mean(record: &ConflictRecord) -> Option<f64> {
    let num_windows: f64 = record.owners.iter().map(|owner| owner.windows as f64).sum();
    let sum: f64 = record.owners.iter().map(|owner| owner.resolved_weight * owner.windows as f64).sum();
    (num_windows > 0.0).then(|| sum / num_windows)
}

/// Absent for the host.
fn cosine_to_host(record: &ConflictRecord, owner: Owner) -> Option<f64> {
    let pair = record.cosines.iter().find(|pair| match owner {
        Owner::Host => false,
        Owner::Seed(_) => (pair.a == Owner::Host && pair.b == owner) || (pair.b == Owner::Host && pair.a == owner),
    });
    pair.map(|pair| pair.cosine)
}

/// What deserves a look about a seed.
fn warnings(record: &OwnerRecord, conflict_warn: f64) -> Vec<Event> {
    let Owner::Seed(seed) = record.owner else { return Vec::new() };
    let jump = record.share_delta.filter(|delta| delta.abs() >= SHARE_JUMP).map(|delta| {
        Event::new(&desc::SEED_SHARE_JUMP).with("seed_id", seed).with("delta", format_args!("{delta:.4}"))
    });
    let conflict = (record.pairs > 0 && record.conflict_ratio >= conflict_warn).then(|| {
        Event::new(&desc::SEED_CONFLICT_HIGH)
            .with("seed_id", seed)
            .with("conflict_ratio", format_args!("{:.3}", record.conflict_ratio))
    });
    jump.into_iter().chain(conflict).collect()
}

#[cfg(test)]
mod tests;
