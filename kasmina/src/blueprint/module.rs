//! A seed's module: a blueprint with its tensors at one slot.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use leyline::id::{BlueprintId, SeedId};

use crate::blueprint::Blueprint;
use crate::error::Error;
use crate::host::SlotShape;
use crate::weight::{View, WeightSet, WeightSource};

/// A blueprint with its tensors.
#[derive(Debug, Clone)]
pub struct SeedModule {
    blueprint: Arc<dyn Blueprint>,
    weights: WeightSet,
}

impl SeedModule {
    /// Makes the tensors and probes the shape of the output on two samples of zeros.
    ///
    /// # Errors
    /// [`Error::ShapeProbe`] when the output has another shape than the slot, or the tensors cannot be made.
    pub(crate) fn build(
        blueprint: &Arc<dyn Blueprint>,
        seed: SeedId,
        slot: SlotShape,
        width: usize,
        source: &mut WeightSource<'_>,
        device: &Device,
    ) -> Result<Self, Error> {
        // Padded, so that the order by name is the order by id.
        let prefix = format!("seed.{:04}", seed.0);
        let weights = source.build(&prefix, &blueprint.weights(slot, width), device)?;
        let module = Self { blueprint: Arc::clone(blueprint), weights };
        let expected = slot.batch(2);
        let probe = Tensor::zeros(expected.as_slice(), DType::F32, device)?;
        let actual = module.delta(&probe, View::Frozen)?.dims().to_vec();
        if actual != expected {
            let blueprint = BlueprintId::new(blueprint.name())?;
            return Err(Error::ShapeProbe { blueprint, expected, actual });
        }
        Ok(module)
    }

    /// f(h), of the shape of `h`.
    ///
    /// # Errors
    /// When the device fails.
    /// # Sync
    /// none
    pub fn delta(&self, h: &Tensor, view: View) -> candle_core::Result<Tensor> {
        self.blueprint.delta(self.weights.view(view), h)
    }

    /// Its tensors.
    #[must_use]
    pub fn weights(&self) -> &WeightSet {
        &self.weights
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::blueprint::Registry;
    use crate::host_read::read_f32;
    use crate::weight::WeightSpec;

    const SLOTS: [SlotShape; 3] = [
        SlotShape::Vector { features: 6 },
        SlotShape::Signal { channels: 3, length: 9 },
        SlotShape::Signal { channels: 1, length: 1 },
    ];

    fn build(blueprint: &Arc<dyn Blueprint>, slot: SlotShape) -> Result<SeedModule, Error> {
        let mut source = WeightSource::draw(ChaCha8Rng::seed_from_u64(5));
        SeedModule::build(blueprint, SeedId(3), slot, 4, &mut source, &Device::Cpu)
    }

    #[test]
    fn a_newborn_seed_does_nothing_wherever_it_fits() {
        let registry = Registry::standard();
        for slot in SLOTS {
            for offer in registry.offers(slot, 4) {
                let module = build(registry.get(&offer.blueprint).unwrap(), slot).unwrap();
                assert_eq!(module.weights().num_elements() as u64, offer.num_parameters);
                let h = Tensor::ones(slot.batch(2), DType::F32, &Device::Cpu).unwrap();
                let delta = read_f32(&module.delta(&h, View::Live).unwrap()).unwrap();
                assert!(delta.iter().all(|&d| d == 0.0), "{} at {slot}: {delta:?}", offer.blueprint);
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
    fn a_blueprint_that_changes_the_shape_fails_its_probe() {
        let blueprint: Arc<dyn Blueprint> = Arc::new(Halving);
        let error = build(&blueprint, SLOTS[0]).unwrap_err();
        assert_eq!(error.to_string(), "a seed of blueprint `halving` turned shape [2, 6] into [2, 3]");
    }
}
