//! Slots and segments of a host that is being built.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use esper_layers::Activation;
use leyline::id::SlotId;

use crate::error::Error;
use crate::host::network::HostLayer;
use crate::host::{HostSlot, SlotShape, linear};
use crate::weight::{Init, View, WeightSet, WeightSource, WeightSpec};

/// Collects slots and segments in network order: a slot, then the segment behind it.
pub(in crate::host) struct Builder<'a, 'b> {
    source: &'a mut WeightSource<'b>,
    device: &'a Device,
    parts: Parts,
}

/// What a host is made of.
#[derive(Debug, Default)]
pub(in crate::host) struct Parts {
    /// What leads from the inputs to the first slot, where that is not the inputs themselves.
    pub(in crate::host) stem: Option<Arc<dyn HostLayer>>,
    pub(in crate::host) slots: Vec<HostSlot>,
    pub(in crate::host) segments: Vec<Vec<Arc<dyn HostLayer>>>,
}

impl<'a, 'b> Builder<'a, 'b> {
    pub(in crate::host) fn new(source: &'a mut WeightSource<'b>, device: &'a Device) -> Self {
        Self { source, device, parts: Parts::default() }
    }

    pub(in crate::host) fn finish(self) -> Parts {
        self.parts
    }

    /// The layer before the first slot, for inputs that are tokens.
    pub(super) fn stem(&mut self, layer: Arc<dyn HostLayer>) {
        self.parts.stem = Some(layer);
    }

    pub(super) fn slot(&mut self, id: impl Into<String>, shape: SlotShape) -> Result<(), Error> {
        self.slot_that_sees(id, shape, None)
    }

    /// The same, where seeds see the value of another slot.
    pub(super) fn slot_that_sees(
        &mut self,
        id: impl Into<String>,
        shape: SlotShape,
        sees: Option<usize>,
    ) -> Result<(), Error> {
        self.parts.slots.push(HostSlot { id: SlotId::new(id.into())?, shape, sees });
        Ok(())
    }

    /// Place of the latest slot.
    pub(super) fn latest_slot(&self) -> usize {
        self.parts.slots.len() - 1
    }

    /// The layers from the latest slot to the next one, or to the logits.
    pub(super) fn segment(&mut self, layers: Vec<Arc<dyn HostLayer>>) {
        self.parts.segments.push(layers);
    }

    /// The tensors of one layer, named `prefix.name`.
    pub(super) fn weights(&mut self, prefix: &str, specs: &[WeightSpec]) -> Result<WeightSet, Error> {
        self.source.build(prefix, specs, self.device)
    }

    pub(super) fn linear(
        &mut self,
        prefix: &str,
        inputs: usize,
        outputs: usize,
        activation: Activation,
    ) -> Result<Arc<dyn HostLayer>, Error> {
        let init = Init::kaiming(inputs);
        let specs = [WeightSpec::new("weight", [inputs, outputs], init), WeightSpec::new("bias", [outputs], init)];
        Ok(Arc::new(Linear { weights: self.weights(prefix, &specs)?, activation }))
    }
}

/// activation(h·W + b), for vectors.
#[derive(Debug)]
struct Linear {
    weights: WeightSet,
    activation: Activation,
}

impl HostLayer for Linear {
    fn forward(&self, h: &Tensor, view: View) -> candle_core::Result<Tensor> {
        let weights = self.weights.view(view);
        linear(h, &weights[0], &weights[1], self.activation)
    }

    fn weights(&self) -> Option<&WeightSet> {
        Some(&self.weights)
    }
}
