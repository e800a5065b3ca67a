//! A language model that reads one token after the other.

use candle_core::Tensor;

use crate::config::ConfigIssue;
use crate::error::Error;
use crate::graft::GraftedModel;
use crate::host::Past;

/// A language model, with all seeds that act in it, beside what it keeps of the tokens so far: a token costs one pass over
/// itself, and not over the whole sequence.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use candle_core::{Device, Tensor};
/// use kasmina::graft::{Decoder, NetworkSpec};
/// use kasmina::{blueprint::Registry, host::HostConfig, weight::ElementType};
///
/// let host = HostConfig::LanguageModel { context: 4, width: 2, heads: 1, layers: 1, mlp_ratio: 1, tied: true, vocabulary: 3 };
/// let spec = NetworkSpec { host, dtype: ElementType::F32, seeds: vec![] };
/// let ramp = |(name, shape): (String, Vec<usize>)| {
///     let values = Tensor::arange(0_f32, shape.iter().product::<usize>() as f32, &Device::Cpu)?.sin()?;
///     Ok((name, values.reshape(shape)?))
/// };
/// let tensors = spec.tensors(&Registry::all())?.into_iter().map(ramp).collect::<candle_core::Result<BTreeMap<_, _>>>()?;
/// let model = spec.build(tensors, &Registry::all(), &Device::Cpu)?;
/// let mut decoder = Decoder::new(&model)?;
/// let at_once = decoder.read(&[2, 0, 1])?.to_vec2::<f32>()?;
/// decoder.clear()?;
/// decoder.read(&[2])?;
/// let piecewise = decoder.read(&[0, 1])?.to_vec2::<f32>()?;
/// assert_eq!((at_once.len(), piecewise.len(), decoder.room()), (3, 2, 1));
/// assert!(at_once[2].iter().zip(&piecewise[1]).all(|(a, b)| (a - b).abs() < 1e-5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    model: GraftedModel,
    past: Past,
    vocabulary: usize,
    num_read: usize,
}

impl Decoder {
    /// At the beginning of a sequence. The parameters are those of `model`, whose changes it sees; seeds are those that
    /// act now.
    ///
    /// # Errors
    /// [`Error::Config`] for a host that is no language model; when the device has no room.
    pub fn new(model: &GraftedModel) -> Result<Self, Error> {
        let host = model.host().config();
        let Some(context) = host.context() else {
            let message = format!("is {}, which takes no tokens: expected language_model", host.kind());
            return Err(Error::Config { issues: vec![ConfigIssue::new("host", message)] });
        };
        let past = Past::new(context, model.device())?;
        Ok(Self { model: model.clone(), past, vocabulary: host.num_outputs(), num_read: 0 })
    }

    /// Reads tokens behind those that it has read: the logits at each of them, (n, V), for the token that follows it. They are those of
    /// a pass over the whole sequence but for rounding.
    ///
    /// # Errors
    /// [`Error::InputShape`] for no token, more of them than [`Self::room`], or one that is not in the vocabulary: nothing was
    /// read then. When the device fails.
    /// # Sync
    /// none; one copy to the device
    pub fn read(&mut self, tokens: &[u32]) -> Result<Tensor, Error> {
        let wrong = |expected| Err(Error::InputShape { expected, actual: vec![tokens.len()] });
        if let Some(unknown) = tokens.iter().find(|&&token| token as usize >= self.vocabulary) {
            return wrong(format!("tokens below {}, and one is {unknown}", self.vocabulary));
        }
        if tokens.is_empty() || tokens.len() > self.room() {
            let capacity = self.past.capacity();
            return wrong(format!("1 to {} tokens behind {} of {capacity}", self.room(), self.num_read));
        }
        let tokens = Tensor::new(tokens, self.model.device())?;
        let logits = self.model.next(&tokens, &mut self.past)?;
        self.num_read += tokens.dim(0)?;
        Ok(logits)
    }

    /// Tokens that can still be read.
    #[must_use]
    pub fn room(&self) -> usize {
        self.past.capacity() - self.num_read
    }

    /// Back to the beginning of a sequence.
    ///
    /// # Errors
    /// When the device fails.
    pub fn clear(&mut self) -> Result<(), Error> {
        self.num_read = 0;
        Ok(self.past.clear()?)
    }
}
