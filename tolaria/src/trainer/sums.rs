//! Sums of one epoch: those that grow on the device, and what the host knows without asking it.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use leyline::layout::Owner;
use serde::{Deserialize, Serialize};

use crate::aggregate::{EPOCH_SUMS, OwnerSums, SeedMetricsAccumulator, SumsLayout};
use crate::cpu::to_f32;
use crate::error::Error;
use crate::grad::Geometry;
use crate::host_read::{HostReads, read_vec_f64};
use crate::trainer::gradients::{GradientTotals, count};
use crate::trainer::loss_scale::{LossScale, LossScaleConfig, Scale, Scales};

/// Sums while the epoch runs.
#[derive(Debug)]
pub(super) struct EpochSums {
    device: SeedMetricsAccumulator,
    host: HostSums,
    /// Where the loss is scaled: read and saved with the sums, but it outlives the epoch.
    scale: Option<LossScale>,
}

/// What the host knows without asking the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostSums {
    pub(super) num_samples: u64,
    pub(super) num_steps: u64,
    pub(super) num_microbatches: u64,
    /// Sum over measured windows of the host share, and their count.
    pub(super) host_share: f64,
    pub(super) num_windows: u64,
}

/// An unfinished epoch, for a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedSums {
    host: HostSums,
    /// Bits of the numbers: JSON has no infinity, and a gradient may be infinite.
    device: Vec<u64>,
    /// Scales of the loss, good steps in a row, and the scales with which the epoch began, where it is scaled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    loss_scale: Vec<f32>,
}

/// A finished epoch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EpochTotals {
    pub(super) loss_sum: f64,
    pub(super) num_hits: f64,
    /// Of the windows that count: whose loss and gradient were finite.
    pub(super) num_samples: u64,
    pub(super) num_steps: u64,
    /// Steps that left the host's parameters as they were.
    pub(super) num_skipped: u64,
    pub(super) num_microbatches: u64,
    /// About the owners' gradients.
    pub(super) gradients: GradientTotals,
    /// Root mean square over the steps that count of the main gradient's norm; absent where none does.
    pub(super) gradient_norm: Option<f64>,
    /// Per owner: root mean square of the gradient norm of its parameters over the steps that updated them, and the
    /// fraction of healthy steps.
    pub(super) owners: Vec<(Owner, f64, f64)>,
    /// Scales of the loss after the last step; absent where it is not scaled.
    pub(super) scales: Option<Scales>,
}

impl EpochTotals {
    /// The scale of an owner's loss, where it is scaled.
    pub(super) fn scale(&self, owner: Owner) -> Option<Scale> {
        self.scales.as_ref().map(|scales| scales.of(owner))
    }

    /// Whether the scale of an owner's loss fell: then steps may have been skipped for no other reason, and the next may not be.
    pub(super) fn scale_fell(&self, owner: Owner) -> bool {
        self.scale(owner).is_some_and(|scale| scale.now < scale.begun)
    }

    /// Whether every step of an owner was skipped while the scale of the loss fell: nothing is known of it yet.
    pub(super) fn only_searched(&self, owner: Owner) -> bool {
        let skipped = self.skipped_of_owners().find(|(of, _)| *of == owner).map_or(0, |(_, skipped)| skipped);
        skipped == self.num_steps && self.scale_fell(owner)
    }

    /// Steps that left the parameters of each owner as they were.
    pub(super) fn skipped_of_owners(&self) -> impl Iterator<Item = (Owner, u64)> {
        self.gradients.owners.iter().map(|owner| (owner.owner, count(owner.skipped)))
    }
}

impl SavedSums {
    /// Reads the numbers that [`EpochSums::copy`] left where they were.
    pub(super) fn read(&mut self, numbers: &Tensor, reads: &mut HostReads) -> Result<(), Error> {
        let mut numbers = read_vec_f64(numbers, EPOCH_SUMS, reads)?;
        let scales = numbers.split_off(numbers.len() - self.loss_scale.len());
        self.loss_scale = scales.into_iter().map(to_f32).collect();
        self.device = numbers.into_iter().map(f64::to_bits).collect();
        Ok(())
    }
}

impl EpochSums {
    /// Of nothing; with a scale of the loss where `scaling` says how it moves.
    pub(super) fn new(
        geometry: Arc<Geometry>,
        scaling: Option<&LossScaleConfig>,
        device: &Device,
    ) -> Result<Self, Error> {
        let scale = scaling.map(|config| LossScale::new(config, Arc::clone(&geometry), device)).transpose()?;
        Ok(Self { device: SeedMetricsAccumulator::new(geometry, device)?, host: HostSums::default(), scale })
    }

    /// Of nothing, for another structure of the network. The scale goes on.
    pub(super) fn refitted(&self, geometry: Arc<Geometry>, device: &Device) -> Result<Self, Error> {
        let scale = self.scale.as_ref().map(|scale| scale.refitted(Arc::clone(&geometry))).transpose()?;
        Ok(Self { scale, ..Self::new(geometry, None, device)? })
    }

    /// What the loss is multiplied with on the way back.
    pub(super) fn scale(&self) -> Option<&LossScale> {
        self.scale.as_ref()
    }

    /// Starts over, in place: graphs point at what is on the device.
    pub(super) fn reset(&mut self) -> Result<(), Error> {
        self.host = HostSums::default();
        self.scale.as_mut().map_or(Ok(()), LossScale::begin)?;
        self.device.reset()
    }

    pub(super) fn restore(
        geometry: Arc<Geometry>,
        saved: &SavedSums,
        scaling: Option<&LossScaleConfig>,
        device: &Device,
    ) -> Result<Self, Error> {
        let scale = |config| LossScale::with(config, Arc::clone(&geometry), &saved.loss_scale, device);
        let scale = scaling.map(scale).transpose()?;
        let values: Vec<f64> = saved.device.iter().copied().map(f64::from_bits).collect();
        Ok(Self { device: SeedMetricsAccumulator::restore(geometry, &values, device)?, host: saved.host, scale })
    }

    /// Steps that left the host's parameters as they were, in what was saved of a network with this geometry.
    pub(super) fn num_skipped(geometry: &Geometry, saved: &SavedSums) -> u64 {
        let values: Vec<f64> = saved.device.iter().copied().map(f64::from_bits).collect();
        count(SeedMetricsAccumulator::num_skipped(geometry, &values))
    }

    /// What an unfinished epoch came to, with a copy of its numbers where they are: later steps do not change it.
    pub(super) fn copy(&self) -> Result<(SavedSums, Tensor), Error> {
        let loss_scale = vec![0.0; self.scale.as_ref().map_or(0, LossScale::num_numbers)];
        Ok((SavedSums { host: self.host, device: Vec::new(), loss_scale }, self.numbers()?))
    }

    /// The sums, and behind them what there is about the scale of the loss.
    fn numbers(&self) -> Result<Tensor, Error> {
        let sums = self.device.copy()?;
        let Some(scale) = &self.scale else { return Ok(sums) };
        Ok(Tensor::cat(&[sums, scale.numbers()?], 0)?)
    }

    pub(super) fn host(&mut self) -> &mut HostSums {
        &mut self.host
    }

    /// As [`SeedMetricsAccumulator::add_microbatch`].
    pub(super) fn add_microbatch(
        &self,
        mean_loss: &Tensor,
        num_hits: Option<&Tensor>,
        num_samples: usize,
    ) -> Result<(), Error> {
        self.device.add_microbatch(mean_loss, num_hits, num_samples)
    }

    /// As they were before the window that is under way.
    pub(super) fn take_back(&self) -> candle_core::Result<()> {
        self.device.take_back()
    }

    /// Whether the loss of the window that is under way is finite, (1,) of `u8`. Once it is combined nobody knows.
    pub(super) fn has_loss(&self) -> Result<Tensor, Error> {
        let loss = self.as_tensor().narrow(0, SumsLayout::LOSS, 1)?;
        // 0 or no number, which does not equal itself.
        let nothing = loss.sub(&loss)?;
        Ok(nothing.eq(&nothing)?)
    }

    /// The sums on the device.
    pub(super) fn as_tensor(&self) -> &Tensor {
        self.device.as_tensor()
    }

    /// The one read of the epoch.
    pub(super) fn read(&self, reads: &mut HostReads) -> Result<EpochTotals, Error> {
        let (metrics, scales) = match &self.scale {
            None => (self.device.read(reads)?, None),
            Some(scale) => {
                let numbers = read_vec_f64(&self.numbers()?, EPOCH_SUMS, reads)?;
                let (sums, scales) = numbers.split_at(numbers.len() - scale.num_numbers());
                (self.device.metrics(sums), Some(scale.read(scales)))
            }
        };
        let steps = (self.host.num_steps as f64).max(1.0);
        let rms = |sum: f64, skipped: f64| (sum / (steps - skipped).max(1.0)).sqrt();
        // The host comes first.
        let skipped = metrics.owners.first().map_or(0.0, |host| host.skipped);
        let of_owner = |of: &OwnerSums| (of.owner, rms(of.parameter_sq, of.skipped), of.healthy / steps);
        Ok(EpochTotals {
            loss_sum: metrics.loss_sum,
            num_hits: metrics.num_hits,
            num_samples: self.host.num_samples.saturating_sub(count(metrics.skipped_samples)),
            num_steps: self.host.num_steps,
            num_skipped: count(skipped),
            num_microbatches: self.host.num_microbatches,
            gradient_norm: (skipped < steps).then(|| rms(metrics.main_norm_sq, skipped)),
            scales,
            owners: metrics.owners.iter().map(of_owner).collect(),
            gradients: GradientTotals {
                windows: self.host.num_windows,
                conflicts: metrics.conflicts,
                pairs: metrics.owners.iter().map(|owner| owner.pairs).sum(),
                host_share: self.host.host_share,
                owners: metrics.owners,
                cosines: metrics.cosines,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HOST, layout, seed};

    fn saved_of(sums: &EpochSums) -> SavedSums {
        let (mut saved, numbers) = sums.copy().unwrap();
        saved.read(&numbers, &mut HostReads::default()).unwrap();
        saved
    }

    #[test]
    fn an_unfinished_epoch_is_saved_whatever_its_numbers_are() {
        let geometry = Arc::new(Geometry::of(&layout(&[("a", 2, HOST, false)])).unwrap());
        let sums = EpochSums::new(Arc::clone(&geometry), None, &Device::Cpu).unwrap();
        let wild = Tensor::new(&[f64::NAN, f64::INFINITY, -0.0, 0.1], &Device::Cpu).unwrap();
        sums.as_tensor().slice_set(&wild, 0, 0).unwrap();
        let saved = saved_of(&sums);
        // Later steps do not change a copy.
        let (mut before, numbers) = sums.copy().unwrap();
        sums.as_tensor().slice_set(&Tensor::new(&[7.0], &Device::Cpu).unwrap(), 0, 0).unwrap();
        before.read(&numbers, &mut HostReads::default()).unwrap();
        assert_eq!(before, saved);
        let read: SavedSums = serde_json::from_str(&serde_json::to_string(&saved).unwrap()).unwrap();
        assert_eq!(read, saved);
        let again = EpochSums::restore(geometry, &read, None, &Device::Cpu).unwrap();
        assert_eq!(saved_of(&again), saved);
    }

    #[test]
    fn norms_are_averaged_over_steps() {
        let geometry = Geometry::of(&layout(&[("a", 2, HOST, false), ("b", 3, seed(1), false)])).unwrap();
        let device = SeedMetricsAccumulator::new(Arc::new(geometry), &Device::Cpu).unwrap();
        let mut sums = EpochSums { device, host: HostSums::default(), scale: None };
        // The squared main norm, then those on the owners' parameters, then their healthy steps.
        for (place, value) in [(2, 25.0), (5, 18.0), (6, 8.0), (7, 2.0), (8, 1.0)] {
            sums.as_tensor().slice_set(&Tensor::new(&[value], &Device::Cpu).unwrap(), 0, place).unwrap();
        }
        *sums.host() = HostSums { num_samples: 6, num_steps: 2, ..HostSums::default() };
        let totals = sums.read(&mut HostReads::default()).unwrap();
        assert!((totals.gradient_norm.unwrap() - 12.5_f64.sqrt()).abs() < 1e-12);
        let expected = [(HOST, 3.0, 1.0), (seed(1), 2.0, 0.5)];
        for ((owner, norm, healthy), expected) in totals.owners.into_iter().zip(expected) {
            assert_eq!(owner, expected.0);
            assert!((norm - expected.1).abs() < 1e-12 && (healthy - expected.2).abs() < 1e-12, "{owner:?}");
        }
    }
}
