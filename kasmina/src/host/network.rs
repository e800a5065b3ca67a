//! A host network built from its configuration.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use leyline::id::SlotId;

use crate::error::Error;
use crate::host::build::{self, Builder, Encoder};
use crate::host::{HostConfig, SlotShape};
use crate::weight::{View, WeightSet, WeightSource};

/// A place for seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSlot {
    /// Its name.
    pub id: SlotId,
    /// Shape of one sample there.
    pub shape: SlotShape,
}

/// One layer of a host: tensor code that may run while a graph is captured.
pub(super) trait HostLayer: fmt::Debug + Send + Sync {
    /// `h` as the layer before it made it.
    fn forward(&self, h: &Tensor, view: View) -> candle_core::Result<Tensor>;

    /// Its tensors; none for a layer without.
    fn weights(&self) -> Option<&WeightSet> {
        None
    }
}

/// A host network without seeds.
#[derive(Debug, Clone)]
pub struct Host {
    config: HostConfig,
    slots: Vec<HostSlot>,
    /// Segment i leads from slot i to slot i + 1, the last one to the logits.
    segments: Vec<Vec<Arc<dyn HostLayer>>>,
    dtype: DType,
}

impl Host {
    /// Builds the network; `config` must have been validated.
    pub(crate) fn build(config: &HostConfig, source: &mut WeightSource<'_>, device: &Device) -> Result<Self, Error> {
        let dtype = source.dtype();
        let mut builder = Builder::new(source, device);
        match config {
            HostConfig::Mlp { inputs, hidden, classes } => build::mlp(&mut builder, *inputs, hidden, *classes)?,
            HostConfig::Cnn1d { length, channels, kernel, stride, classes, pool } => {
                build::cnn1d(&mut builder, *length, channels, (*kernel, *stride), *classes, *pool)?;
            }
            &HostConfig::Transformer { inputs, patch, width, heads, layers, mlp_ratio, classes } => {
                let encoder = Encoder { patch, width, heads, layers, mlp_ratio };
                build::transformer(&mut builder, inputs, encoder, classes)?;
            }
            HostConfig::Cnn2d { height, width, input_channels, channels, kernel, stride, classes, pool } => {
                let image = build::Image { channels: *input_channels, height: *height, width: *width };
                build::cnn2d(&mut builder, image, channels, (*kernel, *stride), *classes, *pool)?;
            }
        }
        let (slots, segments) = builder.finish();
        Ok(Self { config: config.clone(), slots, segments, dtype })
    }

    /// What it was built from.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Places for seeds, in network order.
    #[must_use]
    pub fn slots(&self) -> &[HostSlot] {
        &self.slots
    }

    /// Type of weights and signals.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The weights of every layer, in network order.
    pub fn weights(&self) -> impl Iterator<Item = &WeightSet> {
        self.segments.iter().flatten().filter_map(|layer| layer.weights())
    }

    /// Checks the inputs and gives them the shape of the first slot and the type of the network.
    pub(crate) fn lift(&self, inputs: &Tensor) -> Result<Tensor, Error> {
        let inputs = &inputs.to_dtype(self.dtype)?;
        let refuse = |expected| Error::InputShape { expected, actual: inputs.dims().to_vec() };
        match (&self.config, inputs.dims()) {
            (HostConfig::Mlp { inputs: features, .. }, &[_, found]) if found == *features => Ok(inputs.clone()),
            (HostConfig::Mlp { inputs: features, .. }, _) => Err(refuse(format!("(B, {features})"))),
            (HostConfig::Cnn1d { length, .. }, &[_, 1, found]) if found == *length => Ok(inputs.clone()),
            (HostConfig::Cnn1d { length, .. }, &[_, found]) if found == *length => Ok(inputs.unsqueeze(1)?),
            (HostConfig::Cnn1d { length, .. }, _) => Err(refuse(format!("(B, {length}) or (B, 1, {length})"))),
            (HostConfig::Transformer { inputs: features, .. }, &[_, found]) if found == *features => Ok(inputs.clone()),
            (HostConfig::Transformer { inputs: features, patch, .. }, &[_, length, found])
                if found == *patch && length == features / patch =>
            {
                Ok(inputs.flatten_from(1)?)
            }
            (HostConfig::Transformer { inputs: features, patch, .. }, _) => {
                Err(refuse(format!("(B, {features}) or (B, {}, {patch})", features / patch)))
            }
            (HostConfig::Cnn2d { height, width, input_channels, .. }, dims) => {
                let (image, features) = ([*input_channels, *height, *width], input_channels * height * width);
                match dims {
                    [_, found @ ..] if *found == image => Ok(inputs.clone()),
                    &[num_samples, found] if found == features => {
                        Ok(inputs.reshape((num_samples, *input_channels, *height, *width))?)
                    }
                    _ => {
                        let image = format!("(B, {input_channels}, {height}, {width})");
                        Err(refuse(format!("(B, {features}) or {image}")))
                    }
                }
            }
        }
    }

    /// Runs segment `index` from the output of its slot to the input of the next slot, or to the logits (B, classes).
    pub(crate) fn segment(&self, index: usize, mut h: Tensor, view: View) -> Result<Tensor, Error> {
        for layer in &self.segments[index] {
            h = layer.forward(&h, view)?;
        }
        // Behind the last segment are the logits, which are never of half precision.
        if index + 1 == self.segments.len() && self.dtype == DType::BF16 { Ok(h.to_dtype(DType::F32)?) } else { Ok(h) }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::host::Pool;
    use crate::host_read::read_f32;

    fn host(config: &HostConfig) -> Host {
        assert_eq!(config.validate(), []);
        Host::build(config, &mut WeightSource::draw(ChaCha8Rng::seed_from_u64(3)), &Device::Cpu).unwrap()
    }

    /// Runs the host and compares every slot's shape with its description.
    #[track_caller]
    fn check(config: &HostConfig, inputs: &[usize], slots: &[&str], classes: usize) {
        let host = host(config);
        let ids: Vec<&str> = host.slots().iter().map(|slot| slot.id.as_str()).collect();
        assert_eq!(ids, slots);
        let mut h = host.lift(&Tensor::ones(inputs, DType::F32, &Device::Cpu).unwrap()).unwrap();
        for (index, slot) in host.slots().iter().enumerate() {
            assert_eq!(h.dims(), slot.shape.batch(inputs[0]), "slot {}", slot.id);
            h = host.segment(index, h, View::Frozen).unwrap();
        }
        assert_eq!(h.dims(), [inputs[0], classes]);
        assert!(read_f32(&h).unwrap().iter().any(|&logit| logit != 0.0));
    }

    #[test]
    fn every_slot_has_the_shape_it_announces() {
        let mlp = HostConfig::Mlp { inputs: 6, hidden: vec![4, 3], classes: 2 };
        check(&mlp, &[5, 6], &["input", "hidden0", "hidden1"], 2);
        check(&HostConfig::Mlp { inputs: 6, hidden: vec![], classes: 2 }, &[5, 6], &["input"], 2);
        for pool in [Pool::Mean, Pool::Flatten] {
            for (kernel, stride) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 2), (8, 8)] {
                let channels = vec![4, 3, 2];
                let cnn = HostConfig::Cnn1d { length: 8, channels, kernel, stride, classes: 3, pool };
                check(&cnn, &[2, 8], &["input", "block0", "block1", "block2"], 3);
                check(&cnn, &[2, 1, 8], &["input", "block0", "block1", "block2"], 3);
            }
            for (height, width, input_channels) in [(8, 8, 1), (5, 7, 3), (6, 2, 2), (1, 4, 1), (1, 1, 2)] {
                let shorter = height.min(width);
                for (kernel, stride) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 3), (5, 1), (8, 8)] {
                    let (kernel, stride) = (shorter.min(kernel), shorter.min(stride));
                    let channels = vec![4, 3];
                    let cnn =
                        HostConfig::Cnn2d { height, width, input_channels, channels, kernel, stride, classes: 3, pool };
                    check(&cnn, &[2, input_channels, height, width], &["input", "block0", "block1"], 3);
                    check(&cnn, &[2, input_channels * height * width], &["input", "block0", "block1"], 3);
                }
            }
        }
    }

    #[test]
    fn an_image_and_its_vector_have_the_same_logits() {
        let (channels, pool) = (vec![4], Pool::Flatten);
        let config = HostConfig::Cnn2d {
            height: 3,
            width: 2,
            input_channels: 2,
            channels,
            kernel: 2,
            stride: 1,
            classes: 3,
            pool,
        };
        let host = host(&config);
        let vectors = Tensor::arange(0_f32, 24.0, &Device::Cpu).unwrap().reshape((2, 12)).unwrap();
        let images = vectors.reshape((2, 2, 3, 2)).unwrap();
        let logits = |inputs: &Tensor| {
            let h = host.lift(inputs).unwrap();
            let h = host.segment(0, h, View::Frozen).unwrap();
            read_f32(&host.segment(1, h, View::Frozen).unwrap()).unwrap()
        };
        assert_eq!(logits(&vectors), logits(&images));
    }

    #[test]
    fn every_weight_of_a_host_of_images_has_a_gradient() {
        for pool in [Pool::Mean, Pool::Flatten] {
            let channels = vec![4, 3];
            let host = host(&HostConfig::Cnn2d {
                height: 5,
                width: 4,
                input_channels: 1,
                channels,
                kernel: 3,
                stride: 2,
                classes: 3,
                pool,
            });
            let mut h = host.lift(&Tensor::ones((2, 20), DType::F32, &Device::Cpu).unwrap()).unwrap();
            for index in 0..host.slots().len() {
                h = host.segment(index, h, View::Live).unwrap();
            }
            let gradients = h.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            for parameter in host.weights().flat_map(WeightSet::parameters) {
                let gradient = read_f32(gradients.get(&parameter.var).unwrap()).unwrap();
                assert!(gradient.iter().any(|&g| g != 0.0), "{} with {pool:?}", parameter.name);
            }
        }
        // Several tokens, one token, tokens of one feature.
        for (patch, heads, layers) in [(2, 2, 2), (8, 1, 1), (1, 4, 1)] {
            let encoder =
                HostConfig::Transformer { inputs: 8, patch, width: 4, heads, layers, mlp_ratio: 2, classes: 3 };
            let slots = &["input", "embedded", "block0", "block1"][..2 + layers];
            check(&encoder, &[5, 8], slots, 3);
            check(&encoder, &[5, 8 / patch, patch], slots, 3);
        }
    }

    #[test]
    fn inputs_of_another_shape_are_refused_with_the_accepted_one() {
        let mlp = host(&HostConfig::Mlp { inputs: 6, hidden: vec![4], classes: 2 });
        let error = mlp.lift(&Tensor::zeros((5, 7), DType::F32, &Device::Cpu).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "inputs have shape [5, 7]: expected (B, 6)");
        let (channels, pool) = (vec![4], Pool::Mean);
        let cnn = host(&HostConfig::Cnn1d { length: 8, channels, kernel: 3, stride: 1, classes: 2, pool });
        let error = cnn.lift(&Tensor::zeros((5, 2, 8), DType::F32, &Device::Cpu).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "inputs have shape [5, 2, 8]: expected (B, 8) or (B, 1, 8)");
        let (width, heads, layers) = (4, 2, 1);
        let encoder =
            host(&HostConfig::Transformer { inputs: 8, patch: 2, width, heads, layers, mlp_ratio: 2, classes: 2 });
        let error = encoder.lift(&Tensor::zeros((5, 2, 4), DType::F32, &Device::Cpu).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "inputs have shape [5, 2, 4]: expected (B, 8) or (B, 4, 2)");
        let (channels, pool) = (vec![4], Pool::Mean);
        let cnn = host(&HostConfig::Cnn2d {
            height: 3,
            width: 4,
            input_channels: 2,
            channels,
            kernel: 3,
            stride: 1,
            classes: 2,
            pool,
        });
        for (dims, shown) in [(&[5, 12][..], "[5, 12]"), (&[5, 2, 4, 3], "[5, 2, 4, 3]"), (&[2, 3, 4], "[2, 3, 4]")] {
            let error = cnn.lift(&Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap()).unwrap_err();
            let expected = format!("inputs have shape {shown}: expected (B, 24) or (B, 2, 3, 4)");
            assert_eq!(error.to_string(), expected);
        }
    }
}
