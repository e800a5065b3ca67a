//! A host network built from its configuration.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use esper_layers::recompute;
use leyline::id::SlotId;

use crate::config::ConfigIssue;
use crate::error::Error;
use crate::host::build::{self, Builder, Parts};
use crate::host::{HostConfig, Past, SlotShape};
use crate::weight::{Forms, MAX_ELEMENTS, View, WeightSet, WeightSource, num_in_shapes};

/// A place for seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSlot {
    /// Its name.
    pub id: SlotId,
    /// Shape of one sample there.
    pub shape: SlotShape,
    /// The slot whose value, behind its seeds, the seeds here see, by its place in the network; they see their own where there is none.
    pub sees: Option<usize>,
}

/// One layer of a host: tensor code that may run while a graph is captured.
pub(super) trait HostLayer: fmt::Debug + Send + Sync {
    /// `h` as the layer before it made it.
    fn forward(&self, h: &Tensor, view: View) -> candle_core::Result<Tensor>;

    /// The same for tokens that follow those of `past`: values at n positions, of one sample.
    fn next(&self, h: &Tensor, _past: &mut Past) -> candle_core::Result<Tensor> {
        self.forward(h, View::Frozen)
    }

    /// Its tensors; none for a layer without, or where they belong to another.
    fn weights(&self) -> Option<&WeightSet> {
        None
    }
}

/// A host network without seeds.
#[derive(Debug, Clone)]
pub struct Host {
    config: HostConfig,
    /// Of a host that takes tokens, what leads to the first slot.
    stem: Option<Arc<dyn HostLayer>>,
    slots: Vec<HostSlot>,
    /// Segment i leads from slot i to slot i + 1, the last one to the logits.
    segments: Vec<Vec<Arc<dyn HostLayer>>>,
    dtype: DType,
    /// Slots whose value a later slot sees.
    seen: BTreeSet<usize>,
}

impl Host {
    /// Builds the network; `config` must have been validated. With `around`, an MLP has slots around its hidden layers, too.
    ///
    /// # Errors
    /// [`Error::Config`] when it would have more than 2^31 elements, before any is allocated; when the tensors cannot be
    /// made.
    pub(crate) fn build(
        config: &HostConfig,
        around: bool,
        source: &mut WeightSource<'_>,
        device: &Device,
    ) -> Result<Self, Error> {
        Self::preview(config, around)?;
        Self::assemble(config, around, source, device)
    }

    /// The network without its tensors, so that there is one description of it, and the names and shapes of those.
    ///
    /// # Errors
    /// [`Error::Config`] with every value that is none of a host, and when they would have more than 2^31 elements.
    pub(crate) fn preview(config: &HostConfig, around: bool) -> Result<(Self, Forms), Error> {
        let issues = config.validate();
        if !issues.is_empty() {
            return Err(Error::Config { issues });
        }
        let mut source = WeightSource::list();
        let host = Self::assemble(config, around, &mut source, &Device::Cpu)?;
        let tensors = source.into_listed();
        let num_elements = num_in_shapes(tensors.iter().map(|(_, shape)| &**shape));
        if num_elements > MAX_ELEMENTS {
            let message = format!("needs {num_elements} parameters: expected at most {MAX_ELEMENTS}");
            return Err(Error::Config { issues: vec![ConfigIssue::new("host", message)] });
        }
        Ok((host, tensors))
    }

    fn assemble(
        config: &HostConfig,
        around: bool,
        source: &mut WeightSource<'_>,
        device: &Device,
    ) -> Result<Self, Error> {
        let dtype = source.dtype();
        let mut builder = Builder::new(source, device);
        build::assemble(config, around, &mut builder)?;
        let Parts { stem, slots, segments } = builder.finish();
        let seen = slots.iter().filter_map(|slot| slot.sees).collect();
        Ok(Self { config: config.clone(), stem, slots, segments, dtype, seen })
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

    /// Whether a later slot sees the value of this one.
    pub(crate) fn is_seen(&self, slot_index: usize) -> bool {
        self.seen.contains(&slot_index)
    }

    /// Type of weights and signals.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The weights of every layer, in network order.
    pub fn weights(&self) -> impl Iterator<Item = &WeightSet> {
        self.stem.iter().chain(self.segments.iter().flatten()).filter_map(|layer| layer.weights())
    }

    /// Checks the inputs and gives them the shape of the first slot and the type of the network; tokens become its first sequence.
    pub(crate) fn lift(&self, inputs: &Tensor, view: View) -> Result<Tensor, Error> {
        if let Some(stem) = &self.stem {
            let shape = self.config.sample_shape();
            return match inputs.dims() {
                [_, sample @ ..] if *sample == shape && inputs.dtype() == DType::U32 => Ok(stem.forward(inputs, view)?),
                dims => {
                    let expected = format!("(B, {}) of U32, and these are {:?}", shape[0], inputs.dtype());
                    Err(Error::InputShape { expected, actual: dims.to_vec() })
                }
            };
        }
        let inputs = &inputs.to_dtype(self.dtype)?;
        let (shape, dims) = (self.config.sample_shape(), inputs.dims());
        let (num_features, first_slot) = (shape.iter().product::<usize>(), self.slots[0].shape);
        match dims {
            [num_samples, sample @ ..] if *sample == shape || *sample == [num_features] => {
                let wanted = first_slot.batch(*num_samples);
                if *dims == wanted { Ok(inputs.clone()) } else { Ok(inputs.reshape(wanted)?) }
            }
            _ => {
                let sizes = shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let vector = format!("(B, {num_features})");
                let expected = if shape.len() == 1 { vector } else { format!("{vector} or (B, {sizes})") };
                Err(Error::InputShape { expected, actual: dims.to_vec() })
            }
        }
    }

    /// Runs segment `index` from the output of its slot to the input of the next slot, or to the logits (B, classes), (B, L, vocabulary) of a language model.
    pub(crate) fn segment(&self, index: usize, mut h: Tensor, view: View) -> Result<Tensor, Error> {
        for layer in &self.segments[index] {
            h = layer.forward(&h, view)?;
        }
        self.wide_logits(index, h)
    }

    /// [`Self::segment`] for training, of one that does not lead to the logits: all but its input is computed again for the backward pass.
    pub(crate) fn segment_kept_small(&self, index: usize, h: &Tensor) -> Result<Tensor, Error> {
        let layers = self.segments[index].clone();
        let sets = self.segments[index].iter().filter_map(|layer| layer.weights());
        let variables = sets.flat_map(WeightSet::parameters).map(|parameter| &parameter.var);
        let run = move |h: &Tensor| layers.iter().try_fold(h.clone(), |h, layer| layer.forward(&h, View::Live));
        Ok(recompute(h, variables, run)?)
    }

    /// What [`Self::lift`] makes of tokens (n,) that follow those of `past`: (1, n, C).
    pub(crate) fn lift_next(&self, tokens: &Tensor, past: &mut Past) -> Result<Tensor, Error> {
        let tokens = tokens.unsqueeze(0)?;
        self.stem.as_ref().map_or_else(|| self.lift(&tokens, View::Frozen), |stem| Ok(stem.next(&tokens, past)?))
    }

    /// [`Self::segment`] for tokens that follow those of `past`.
    pub(crate) fn segment_next(&self, index: usize, mut h: Tensor, past: &mut Past) -> Result<Tensor, Error> {
        for layer in &self.segments[index] {
            h = layer.next(&h, past)?;
        }
        self.wide_logits(index, h)
    }

    /// Behind the last segment are the logits, which are never of half precision.
    fn wide_logits(&self, index: usize, h: Tensor) -> Result<Tensor, Error> {
        if index + 1 == self.segments.len() && self.dtype == DType::BF16 { Ok(h.to_dtype(DType::F32)?) } else { Ok(h) }
    }
}

#[cfg(test)]
mod tests;
