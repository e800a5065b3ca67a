//! A host network built from its configuration.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use leyline::id::SlotId;

use crate::config::ConfigIssue;
use crate::error::Error;
use crate::host::build::{self, Builder, Encoder};
use crate::host::{HostConfig, SlotShape};
use crate::weight::{MAX_ELEMENTS, View, WeightSet, WeightSource};

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
    ///
    /// # Errors
    /// [`Error::Config`] when it would have more than 2^31 elements, before any is allocated; when the tensors cannot be
    /// made.
    pub(crate) fn build(config: &HostConfig, source: &mut WeightSource<'_>, device: &Device) -> Result<Self, Error> {
        Self::preview(config)?;
        Self::assemble(config, source, device)
    }

    /// The network without its tensors, so that there is one description of it, and the elements it would have (count).
    ///
    /// # Errors
    /// [`Error::Config`] when they are more than 2^31.
    pub(crate) fn preview(config: &HostConfig) -> Result<(Self, u64), Error> {
        let mut source = WeightSource::count();
        let host = Self::assemble(config, &mut source, &Device::Cpu)?;
        let num_elements = source.num_counted();
        if num_elements > MAX_ELEMENTS {
            let message = format!("needs {num_elements} parameters: expected at most {MAX_ELEMENTS}");
            return Err(Error::Config { issues: vec![ConfigIssue::new("host", message)] });
        }
        Ok((host, num_elements))
    }

    fn assemble(config: &HostConfig, source: &mut WeightSource<'_>, device: &Device) -> Result<Self, Error> {
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
mod tests;
