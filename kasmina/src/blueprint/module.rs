//! A seed's module: a blueprint with its tensors at one slot.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use leyline::clock::Clock;
use leyline::id::{BlueprintId, SeedId};

use crate::blueprint::Blueprint;
use crate::error::Error;
use crate::graft::SeedBlend;
use crate::host::{Past, SlotShape};
use crate::weight::{View, WeightSet, WeightSource, WeightSpec};

/// A blueprint with its tensors.
#[derive(Debug, Clone)]
pub struct SeedModule {
    blueprint: Arc<dyn Blueprint>,
    weights: WeightSet,
    /// Values at the slot are (B, L, C), but a blueprint sees (B, C, L).
    is_channels_last: bool,
}

impl SeedModule {
    /// Makes the tensors and probes the shape of the output on two samples of zeros.
    ///
    /// # Errors
    /// [`Error::DuplicateTensor`] or [`Error::ReservedTensor`] for names that cannot be used, [`Error::ShapeProbe`] when the
    /// output has another shape than the slot, or when the tensors cannot be made.
    pub(crate) fn build(
        blueprint: &Arc<dyn Blueprint>,
        seed: SeedId,
        slot: SlotShape,
        width: usize,
        source: &mut WeightSource<'_>,
        device: &Device,
    ) -> Result<Self, Error> {
        let module = Self::without_probe(blueprint, seed, slot, width, source, device)?;
        module.probe(slot, source.dtype(), device)?;
        Ok(module)
    }

    /// As [`Self::build`], but for the probe, which needs memory for two samples.
    ///
    /// # Errors
    /// As [`Self::build`], but for the probe.
    pub(crate) fn without_probe(
        blueprint: &Arc<dyn Blueprint>,
        seed: SeedId,
        slot: SlotShape,
        width: usize,
        source: &mut WeightSource<'_>,
        device: &Device,
    ) -> Result<Self, Error> {
        let weights = Self::weights_at(&**blueprint, seed, slot, width, source, device)?;
        Ok(Self { blueprint: Arc::clone(blueprint), weights, is_channels_last: slot.is_channels_last() })
    }

    /// Confirms on two samples of zeros that the output has the shape of the slot.
    ///
    /// # Errors
    /// [`Error::ShapeProbe`] when it has not; when the device fails.
    pub(crate) fn probe(&self, slot: SlotShape, dtype: DType, device: &Device) -> Result<(), Error> {
        let expected = slot.batch(2);
        let probe = Tensor::zeros(slot.seen_batch(2), dtype, device)?;
        let actual = self.delta(&probe, View::Frozen)?.dims().to_vec();
        if actual != expected {
            let blueprint = BlueprintId::new(self.blueprint.name())?;
            return Err(Error::ShapeProbe { blueprint, expected, actual });
        }
        Ok(())
    }

    /// The tensors of a seed at this slot.
    ///
    /// # Errors
    /// As [`Self::build`], but for the probe.
    pub(crate) fn weights_at(
        blueprint: &dyn Blueprint,
        seed: SeedId,
        slot: SlotShape,
        width: usize,
        source: &mut WeightSource<'_>,
        device: &Device,
    ) -> Result<WeightSet, Error> {
        // Padded, so that up to seed 9999 the order by name is the order by id. Beyond, `seed.10000.` stands before
        // `seed.9999.`: nothing relies on that order but people. Names stay unique, and a seed's stay together, because a
        // dot stands before every digit.
        let prefix = format!("seed.{:04}", seed.0);
        let specs = blueprint.weights(slot, width);
        check_names(blueprint, &specs)?;
        source.build(&prefix, &specs, device)
    }

    /// Its kind.
    pub(crate) fn blueprint(&self) -> &dyn Blueprint {
        &*self.blueprint
    }

    /// Time of a forward pass after the first one, on two samples of zeros, ms.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// the device is waited for twice
    pub(crate) fn prewarm(
        &self,
        slot: SlotShape,
        dtype: DType,
        clock: &dyn Clock,
        device: &Device,
    ) -> candle_core::Result<f64> {
        let probe = Tensor::zeros(slot.seen_batch(2), dtype, device)?;
        device.synchronize()?;
        let started = clock.now();
        self.delta(&probe, View::Frozen)?;
        device.synchronize()?;
        Ok(clock.now().saturating_sub(started).as_secs_f64() * 1e3)
    }

    /// f(h), of the shape of the slot; `h` is what its seeds see.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn delta(&self, h: &Tensor, view: View) -> candle_core::Result<Tensor> {
        let weights = self.weights.view(view);
        if self.is_channels_last {
            return self.blueprint.delta(weights, &h.transpose(1, 2)?)?.transpose(1, 2);
        }
        self.blueprint.delta(weights, h)
    }

    /// f(h) of tokens that follow those of `past`, (1, n, C); values are those of [`Self::delta`].
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub(crate) fn delta_next(&self, h: &Tensor, past: &mut Past) -> candle_core::Result<Tensor> {
        self.blueprint.delta_next(self.weights.view(View::Frozen), &h.transpose(1, 2)?, past)?.transpose(1, 2)
    }

    /// Its tensors.
    #[must_use]
    pub fn weights(&self) -> &WeightSet {
        &self.weights
    }
}

/// Refuses names that occur twice or are those of a blend's tensors.
fn check_names(blueprint: &dyn Blueprint, specs: &[WeightSpec]) -> Result<(), Error> {
    let reserved = format!("{}.", SeedBlend::PREFIX);
    for (index, spec) in specs.iter().enumerate() {
        let (id, name) = (BlueprintId::new(blueprint.name())?, spec.name.to_owned());
        if spec.name.starts_with(&reserved) {
            return Err(Error::ReservedTensor { blueprint: id, name, reserved });
        }
        if specs[..index].iter().any(|other| other.name == spec.name) {
            return Err(Error::DuplicateTensor { blueprint: id, name });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::blueprint::Registry;
    use crate::host_read::read_f32;

    const SLOTS: [SlotShape; 15] = [
        SlotShape::Vector { features: 6 },
        SlotShape::Signal { channels: 3, length: 9 },
        SlotShape::Signal { channels: 1, length: 1 },
        SlotShape::Sequence { length: 5, features: 6 },
        SlotShape::Sequence { length: 6, features: 1 },
        SlotShape::Sequence { length: 1, features: 4 },
        SlotShape::Sequence { length: 1, features: 1 },
        SlotShape::Causal { length: 5, features: 6 },
        SlotShape::Causal { length: 1, features: 1 },
        SlotShape::Image { channels: 3, height: 2, width: 4 },
        SlotShape::Image { channels: 3, height: 5, width: 4 },
        SlotShape::Image { channels: 2, height: 1, width: 2 },
        SlotShape::Image { channels: 2, height: 2, width: 1 },
        SlotShape::Image { channels: 3, height: 1, width: 1 },
        SlotShape::Image { channels: 1, height: 1, width: 1 },
    ];

    /// Names beyond the padding are still unique, and those of one seed together.
    #[test]
    fn the_tensors_of_each_seed_lie_together_whatever_its_id() {
        let registry = Registry::standard();
        let mlp = registry.get(&BlueprintId::new("mlp").unwrap()).unwrap();
        let mut names: Vec<(String, u32)> = Vec::new();
        for seed in [1, 10, 999, 1000, 9999, 10_000, 10_001, 99_999, 100_000, u32::MAX] {
            let mut source = WeightSource::draw(ChaCha8Rng::seed_from_u64(5));
            let module = SeedModule::build(mlp, SeedId(seed), SLOTS[0], 4, &mut source, &Device::Cpu).unwrap();
            names.extend(module.weights().parameters().iter().map(|parameter| (parameter.name.clone(), seed)));
        }
        names.sort();
        let mut owners: Vec<u32> = names.iter().map(|(_, seed)| *seed).collect();
        owners.dedup();
        assert_eq!(owners.len(), 10, "{owners:?}");
        let padded: Vec<u32> = owners.iter().copied().filter(|&seed| seed <= 9999).collect();
        assert_eq!(padded, [1, 10, 999, 1000, 9999]);
        names.dedup_by(|a, b| a.0 == b.0);
        assert_eq!(names.len(), 40);
    }

    fn build(blueprint: &Arc<dyn Blueprint>, slot: SlotShape) -> Result<SeedModule, Error> {
        let mut source = WeightSource::draw(ChaCha8Rng::seed_from_u64(5));
        SeedModule::build(blueprint, SeedId(3), slot, 4, &mut source, &Device::Cpu)
    }

    #[test]
    fn a_newborn_seed_does_nothing_wherever_it_fits() {
        let registry = Registry::extended();
        for slot in SLOTS {
            assert!(!registry.offers(slot, 4, 0).is_empty(), "nothing for {slot}");
            for offer in registry.offers(slot, 4, 0) {
                let module = build(registry.get(&offer.blueprint).unwrap(), slot).unwrap();
                assert_eq!(module.weights().num_elements() as u64, offer.num_parameters);
                let h = Tensor::ones(slot.batch(2), DType::F32, &Device::Cpu).unwrap();
                let delta = read_f32(&module.delta(&h, View::Live).unwrap()).unwrap();
                assert!(delta.iter().all(|&d| d == 0.0), "{} at {slot}: {delta:?}", offer.blueprint);
            }
        }
    }

    /// A batch of two whose values all differ.
    fn ramp(slot: SlotShape) -> Var {
        let shape = slot.batch(2);
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0_u8..).take(count).map(|i| (f32::from(i) * 0.7).sin()).collect();
        Var::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_newborn_seed_learns_from_its_last_layer_on() {
        let registry = Registry::extended();
        for slot in SLOTS {
            for offer in registry.offers(slot, 4, 0) {
                let module = build(registry.get(&offer.blueprint).unwrap(), slot).unwrap();
                let delta = module.delta(&ramp(slot), View::Live).unwrap();
                let gradients = delta.sum_all().unwrap().backward().unwrap();
                for parameter in &module.weights().parameters()[2..] {
                    let gradient = read_f32(gradients.get(&parameter.var).unwrap()).unwrap();
                    assert!(gradient.iter().any(|&g| g != 0.0), "{} of {} at {slot}", parameter.name, offer.blueprint);
                }
            }
        }
    }

    #[test]
    fn gradients_reach_the_input_and_every_weight_of_a_grown_seed() {
        let registry = Registry::extended();
        for slot in SLOTS {
            for offer in registry.offers(slot, 4, 0) {
                let module = build(registry.get(&offer.blueprint).unwrap(), slot).unwrap();
                // What starts at zero, as if it had learned something; all different, or norms would hide it.
                for var in module.weights().parameters().iter().map(|parameter| &parameter.var) {
                    if read_f32(var).unwrap().iter().all(|&value| value == 0.0) {
                        let values = (0_u16..).take(var.elem_count()).map(|i| (f32::from(i) * 1.3).cos());
                        let values = Tensor::from_vec(values.collect::<Vec<_>>(), var.shape(), &Device::Cpu);
                        var.set(&values.unwrap()).unwrap();
                    }
                }
                let h = ramp(slot);
                let delta = module.delta(&h, View::Live).unwrap();
                let gradients = (&delta * &delta).unwrap().sum_all().unwrap().backward().unwrap();
                let all = module.weights().parameters().iter().map(|parameter| (&parameter.name[..], &parameter.var));
                for (name, var) in all.chain([("input", &h)]) {
                    let gradient = read_f32(gradients.get(var).unwrap()).unwrap();
                    assert!(gradient.iter().all(|g| g.is_finite()), "{name} of {} at {slot}", offer.blueprint);
                    assert!(gradient.iter().any(|&g| g != 0.0), "{name} of {} at {slot}", offer.blueprint);
                }
            }
        }
    }

    #[test]
    fn noise_is_a_fixed_output_whatever_the_input() {
        let registry = Registry::with_noise();
        let noise = registry.get(&BlueprintId::new("noise").unwrap()).unwrap();
        for slot in SLOTS {
            let module = build(noise, slot).unwrap();
            let zeros = Tensor::zeros(slot.batch(2), DType::F32, &Device::Cpu).unwrap();
            let (a, b) = (module.delta(&zeros, View::Live), module.delta(&(&zeros + 5.0).unwrap(), View::Live));
            let (a, b) = (read_f32(&a.unwrap()).unwrap(), read_f32(&b.unwrap()).unwrap());
            assert_eq!(a, b);
            assert!(a.iter().any(|&d| d.abs() > 0.05), "{a:?}");
        }
    }

    #[derive(Debug)]
    struct Halving;

    impl Blueprint for Halving {
        fn name(&self) -> &'static str {
            "halving"
        }
        fn fits(&self, _slot: SlotShape) -> bool {
            true
        }
        fn weights(&self, _slot: SlotShape, _width: usize) -> Vec<WeightSpec> {
            Vec::new()
        }
        fn delta(&self, _weights: &[Tensor], h: &Tensor) -> candle_core::Result<Tensor> {
            h.narrow(1, 0, h.dim(1)? / 2)
        }
    }

    #[test]
    fn a_value_is_changed_at_its_own_position_of_a_signal_and_of_a_sequence() {
        let registry = Registry::standard();
        let mlp = registry.get(&BlueprintId::new("mlp").unwrap()).unwrap();
        let signal = build(mlp, SlotShape::Signal { channels: 3, length: 5 }).unwrap();
        let sequence = build(mlp, SlotShape::Sequence { length: 5, features: 3 }).unwrap();
        // Awake: all weights 0.1.
        for parameter in signal.weights().parameters().iter().chain(sequence.weights().parameters()) {
            parameter.var.set(&parameter.var.ones_like().unwrap().affine(0.1, 0.0).unwrap()).unwrap();
        }
        let h = Tensor::arange(0.0_f32, 30.0, &Device::Cpu).unwrap().reshape((2, 5, 3)).unwrap();
        let of_signal = signal.delta(&h.transpose(1, 2).unwrap().contiguous().unwrap(), View::Live).unwrap();
        let of_sequence = sequence.delta(&h, View::Live).unwrap();
        assert_eq!(of_sequence.dims(), [2, 5, 3]);
        assert_eq!(read_f32(&of_signal.transpose(1, 2).unwrap()).unwrap(), read_f32(&of_sequence).unwrap());
    }

    #[test]
    fn a_blueprint_that_changes_the_shape_fails_its_probe() {
        let blueprint: Arc<dyn Blueprint> = Arc::new(Halving);
        let error = build(&blueprint, SLOTS[0]).unwrap_err();
        assert_eq!(error.to_string(), "a seed of blueprint `halving` turned shape [2, 6] into [2, 3]");
    }
}
