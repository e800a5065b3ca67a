//! A network of twice as many blocks, of the blocks of another.

use candle_core::Tensor;
use leyline::model::{Parameter, TrainableModel as _};
use tolaria::plain::PlainModel;

use crate::error::Error;

/// How blocks become twice as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// Each is followed by a copy that adds 0 until it has learned.
    Identity,
    /// All of them, then all of them again (Du et al. 2024, "Stacking your transformers", arXiv 2405.15319).
    Stack,
}

impl Growth {
    pub(super) const ALL: [Self; 2] = [Self::Identity, Self::Stack];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Stack => "stack",
        }
    }

    /// Where the parameter of a network with twice `half` blocks comes from, and whether it is 0 instead.
    fn source(self, name: &str, half: usize) -> (String, bool) {
        let block = name.strip_prefix("blocks.").and_then(|rest| rest.split_once('.'));
        let Some((index, part)) = block.and_then(|(index, part)| Some((index.parse::<usize>().ok()?, part))) else {
            return (name.to_owned(), false);
        };
        let is_output = part.starts_with("projection.") || part.starts_with("contract.");
        match self {
            Self::Identity => (format!("blocks.{}.{part}", index / 2), is_output && !index.is_multiple_of(2)),
            Self::Stack => (format!("blocks.{}.{part}", index % half), false),
        }
    }

    /// Gives all parameters of `whole`, of twice `half` blocks, the values of those of `small`.
    ///
    /// # Errors
    /// When `small` lacks one; when the device fails.
    pub(super) fn copy(self, small: &[Parameter], whole: &PlainModel, half: usize) -> Result<(), Error> {
        for Parameter { name, var } in whole.parameters() {
            let (source, is_zero) = self.source(name, half);
            let Some(found) = small.iter().find(|parameter| parameter.name == source) else {
                return Err(Error::Process { what: format!("growing {name}"), message: format!("no {source}") });
            };
            let value = if is_zero { &Tensor::zeros_like(var.as_tensor())? } else { found.var.as_tensor() };
            var.set(value)?;
        }
        Ok(())
    }
}
