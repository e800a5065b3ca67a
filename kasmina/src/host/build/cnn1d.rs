//! Blocks of 1-D convolution and `ReLU`, then a linear layer.

use std::sync::Arc;

use candle_core::{Result as TensorResult, Tensor};
use esper_layers::Activation;

use crate::error::Error;
use crate::host::build::Builder;
use crate::host::build::head::pooled_head;
use crate::host::network::HostLayer;
use crate::host::{Pool, SlotShape, Window, conv1d, from_rows};
use crate::weight::{Init, View, WeightSet, WeightSpec};

pub(in crate::host) fn cnn1d(
    builder: &mut Builder<'_, '_>,
    length: usize,
    blocks: &[usize],
    (kernel, stride): (usize, usize),
    classes: usize,
    pool: Pool,
) -> Result<(), Error> {
    let padding = kernel / 2;
    let (mut channels, mut length) = (1, length);
    builder.slot("input", SlotShape::Signal { channels, length })?;
    for (index, &width) in blocks.iter().enumerate() {
        let init = Init::kaiming(channels * kernel);
        let shape = [kernel * channels, width];
        let specs = [WeightSpec::new("weight", shape, init), WeightSpec::new("bias", [width], init)];
        let weights = builder.weights(&format!("host.block{index}"), &specs)?;
        let window = Window { kernel, padding, stride };
        builder.segment(vec![Arc::new(ConvRelu { weights, window })]);
        // Later blocks see shorter signals; with padding at least one window always fits, see the test of hosts.
        length = window.num_outputs(length);
        channels = width;
        builder.slot(format!("block{index}"), SlotShape::Signal { channels, length })?;
    }
    pooled_head(builder, SlotShape::Signal { channels, length }, pool, classes)
}

/// Convolution and `ReLU`, which is applied while the channels lie together in memory.
#[derive(Debug)]
struct ConvRelu {
    weights: WeightSet,
    window: Window,
}

impl HostLayer for ConvRelu {
    fn forward(&self, h: &Tensor, view: View) -> TensorResult<Tensor> {
        let weights = self.weights.view(view);
        let window = self.window;
        let rows = conv1d(h, &weights[0], &weights[1], (window.padding, window.stride), Activation::Relu)?;
        from_rows(&rows, window.num_outputs(h.dim(2)?))
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}
