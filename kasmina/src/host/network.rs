//! A host network built from its configuration.

use std::fmt;

use candle_core::{Device, Tensor};
use esper_layers::Activation;
use leyline::id::SlotId;

use crate::error::Error;
use crate::host::{HostConfig, Pool, conv1d, from_rows, linear};
use crate::weight::{Init, View, WeightSet, WeightSource, WeightSpec};

/// Shape of one sample at a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotShape {
    /// (B, features).
    Vector {
        /// Features (C).
        features: usize,
    },
    /// (B, channels, length).
    Signal {
        /// Channels (C).
        channels: usize,
        /// Positions (L).
        length: usize,
    },
}

impl SlotShape {
    /// The shape of a batch of `num_samples`.
    #[must_use]
    pub fn batch(self, num_samples: usize) -> Vec<usize> {
        match self {
            Self::Vector { features } => vec![num_samples, features],
            Self::Signal { channels, length } => vec![num_samples, channels, length],
        }
    }

    /// Features of a vector, channels of a signal.
    #[must_use]
    pub fn channels(self) -> usize {
        match self {
            Self::Vector { features: channels } | Self::Signal { channels, length: _ } => channels,
        }
    }
}

impl fmt::Display for SlotShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vector { features } => write!(f, "({features})"),
            Self::Signal { channels, length } => write!(f, "({channels}, {length})"),
        }
    }
}

/// A place for seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSlot {
    /// Its name.
    pub id: SlotId,
    /// Shape of one sample there.
    pub shape: SlotShape,
}

#[derive(Debug, Clone)]
enum Layer {
    Linear(WeightSet, Activation),
    /// Convolution and `ReLU`, which is applied while the channels lie together in memory.
    ConvRelu {
        weights: WeightSet,
        padding: usize,
        stride: usize,
    },
    MeanPool,
    Flatten,
}

/// A host network without seeds.
#[derive(Debug, Clone)]
pub struct Host {
    config: HostConfig,
    slots: Vec<HostSlot>,
    /// Segment i leads from slot i to slot i + 1, the last one to the logits.
    segments: Vec<Vec<Layer>>,
}

impl Host {
    /// Builds the network; `config` must have been validated.
    pub(crate) fn build(config: &HostConfig, source: &mut WeightSource<'_>, device: &Device) -> Result<Self, Error> {
        let mut builder = Builder { source, device, slots: Vec::new(), segments: Vec::new() };
        match config {
            HostConfig::Mlp { inputs, hidden, classes } => builder.mlp(*inputs, hidden, *classes)?,
            HostConfig::Cnn1d { length, channels, kernel, stride, classes, pool } => {
                builder.cnn1d(*length, channels, (*kernel, *stride), *classes, *pool)?;
            }
        }
        Ok(Self { config: config.clone(), slots: builder.slots, segments: builder.segments })
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

    /// The weights of every layer, in network order.
    pub fn weights(&self) -> impl Iterator<Item = &WeightSet> {
        self.segments.iter().flatten().filter_map(|layer| match layer {
            Layer::Linear(weights, _) | Layer::ConvRelu { weights, .. } => Some(weights),
            Layer::MeanPool | Layer::Flatten => None,
        })
    }

    /// Checks the inputs and gives them the shape of the first slot.
    pub(crate) fn lift(&self, inputs: &Tensor) -> Result<Tensor, Error> {
        let refuse = |expected| Error::InputShape { expected, actual: inputs.dims().to_vec() };
        match (&self.config, inputs.dims()) {
            (HostConfig::Mlp { inputs: features, .. }, &[_, found]) if found == *features => Ok(inputs.clone()),
            (HostConfig::Mlp { inputs: features, .. }, _) => Err(refuse(format!("(B, {features})"))),
            (HostConfig::Cnn1d { length, .. }, &[_, 1, found]) if found == *length => Ok(inputs.clone()),
            (HostConfig::Cnn1d { length, .. }, &[_, found]) if found == *length => Ok(inputs.unsqueeze(1)?),
            (HostConfig::Cnn1d { length, .. }, _) => Err(refuse(format!("(B, {length}) or (B, 1, {length})"))),
        }
    }

    /// Runs segment `index` from the output of its slot to the input of the next slot, or to the logits (B, classes).
    pub(crate) fn segment(&self, index: usize, mut h: Tensor, view: View) -> Result<Tensor, Error> {
        for layer in &self.segments[index] {
            h = layer.forward(&h, view)?;
        }
        Ok(h)
    }
}

impl Layer {
    fn forward(&self, h: &Tensor, view: View) -> candle_core::Result<Tensor> {
        match self {
            Self::Linear(weights, activation) => {
                let weights = weights.view(view);
                linear(h, &weights[0], &weights[1], *activation)
            }
            Self::ConvRelu { weights, padding, stride } => {
                let weights = weights.view(view);
                let rows = conv1d(h, &weights[0], &weights[1], (*padding, *stride), Activation::Relu)?;
                from_rows(&rows, h.dim(0)?)
            }
            Self::MeanPool => h.mean(2),
            Self::Flatten => h.flatten_from(1),
        }
    }
}

struct Builder<'a, 'b> {
    source: &'a mut WeightSource<'b>,
    device: &'a Device,
    slots: Vec<HostSlot>,
    segments: Vec<Vec<Layer>>,
}

impl Builder<'_, '_> {
    fn mlp(&mut self, inputs: usize, hidden: &[usize], classes: usize) -> Result<(), Error> {
        let mut features = inputs;
        self.slot("input".into(), SlotShape::Vector { features })?;
        for (index, &width) in hidden.iter().enumerate() {
            let layer = self.linear(&format!("host.layer{index}"), features, width, Activation::Relu)?;
            self.segments.push(vec![layer]);
            features = width;
            self.slot(format!("hidden{index}"), SlotShape::Vector { features })?;
        }
        let head = self.linear("host.head", features, classes, Activation::None)?;
        self.segments.push(vec![head]);
        Ok(())
    }

    fn cnn1d(
        &mut self,
        length: usize,
        blocks: &[usize],
        (kernel, stride): (usize, usize),
        classes: usize,
        pool: Pool,
    ) -> Result<(), Error> {
        let padding = kernel / 2;
        let (mut channels, mut length) = (1, length);
        self.slot("input".into(), SlotShape::Signal { channels, length })?;
        for (index, &width) in blocks.iter().enumerate() {
            let init = Init::kaiming(channels * kernel);
            let shape = [kernel * channels, width];
            let specs = [WeightSpec::new("weight", shape, init), WeightSpec::new("bias", [width], init)];
            let weights = self.source.build(&format!("host.block{index}"), &specs, self.device)?;
            self.segments.push(vec![Layer::ConvRelu { weights, padding, stride }]);
            // Later blocks see shorter signals; with padding at least one window always fits, see the test.
            length = (length + 2 * padding).saturating_sub(kernel) / stride + 1;
            channels = width;
            self.slot(format!("block{index}"), SlotShape::Signal { channels, length })?;
        }
        let (pooling, features) = match pool {
            Pool::Mean => (Layer::MeanPool, channels),
            Pool::Flatten => (Layer::Flatten, channels * length),
        };
        let head = self.linear("host.head", features, classes, Activation::None)?;
        self.segments.push(vec![pooling, head]);
        Ok(())
    }

    fn linear(&mut self, prefix: &str, inputs: usize, outputs: usize, activation: Activation) -> Result<Layer, Error> {
        let init = Init::kaiming(inputs);
        let specs = [WeightSpec::new("weight", [inputs, outputs], init), WeightSpec::new("bias", [outputs], init)];
        Ok(Layer::Linear(self.source.build(prefix, &specs, self.device)?, activation))
    }

    fn slot(&mut self, id: String, shape: SlotShape) -> Result<(), Error> {
        self.slots.push(HostSlot { id: SlotId::new(id)?, shape });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
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
    }
}
