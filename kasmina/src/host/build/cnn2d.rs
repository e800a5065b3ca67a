//! Blocks of 2-D convolution and `ReLU`, then a linear layer.

use std::sync::Arc;

use candle_core::{Result as TensorResult, Tensor};
use esper_layers::Activation;

use crate::error::Error;
use crate::host::build::Builder;
use crate::host::build::head::pooled_head;
use crate::host::network::HostLayer;
use crate::host::{Pool, SlotShape, Window, conv2d};
use crate::weight::{Init, View, WeightSet, WeightSpec};

/// Shape of one sample.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct Image {
    pub(in crate::host) channels: usize,
    pub(in crate::host) height: usize,
    pub(in crate::host) width: usize,
}

impl Image {
    fn slot(self) -> SlotShape {
        let Self { channels, height, width } = self;
        SlotShape::Image { channels, height, width }
    }
}

pub(in crate::host) fn cnn2d(
    builder: &mut Builder<'_, '_>,
    mut image: Image,
    blocks: &[usize],
    (kernel, stride): (usize, usize),
    classes: usize,
    pool: Pool,
) -> Result<(), Error> {
    let window = Window { stride, ..Window::centered(kernel) };
    builder.slot("input", image.slot())?;
    for (index, &channels) in blocks.iter().enumerate() {
        let fan_in = kernel * kernel * image.channels;
        let init = Init::kaiming(fan_in);
        let specs = [WeightSpec::new("weight", [fan_in, channels], init), WeightSpec::new("bias", [channels], init)];
        let weights = builder.weights(&format!("host.block{index}"), &specs)?;
        builder.segment(vec![Arc::new(ConvRelu { weights, window })]);
        // Later blocks see smaller images; with padding at least one window always fits, see the test of hosts.
        let (height, width) = (window.num_outputs(image.height), window.num_outputs(image.width));
        image = Image { channels, height, width };
        builder.slot(format!("block{index}"), image.slot())?;
    }
    pooled_head(builder, image.slot(), pool, classes)
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
        conv2d(h, &weights[0], &weights[1], [self.window; 2], Activation::Relu)
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}
