//! The sum of what flows back to a tensor. The first term is the sum: nothing is filled with zeros, and nothing added to them.

use crate::{Device, Result, Tensor};

/// What a gradient is so far. It has the methods of a tensor that backward passes call.
#[derive(Debug)]
pub(crate) enum Sum {
    /// No term yet; the tensor is what it is the gradient of.
    Empty(Tensor),
    /// One term or more, contiguous.
    Of(Tensor),
}

impl Sum {
    /// The gradient, if it has a term.
    pub(crate) fn found(&self) -> Option<&Tensor> {
        match self {
            Self::Empty(_) => None,
            Self::Of(sum) => Some(sum),
        }
    }

    pub(crate) fn into_found(self) -> Option<Tensor> {
        match self {
            Self::Empty(_) => None,
            Self::Of(sum) => Some(sum),
        }
    }

    pub(crate) fn add(&self, term: &Tensor) -> Result<Self> {
        match self {
            Self::Empty(like) => fits(like, term)?.contiguous(),
            Self::Of(sum) => sum.add(term),
        }
        .map(Self::Of)
    }

    pub(crate) fn sub(&self, term: &Tensor) -> Result<Self> {
        match self {
            Self::Empty(like) => fits(like, term)?.neg()?.contiguous(),
            Self::Of(sum) => sum.sub(term),
        }
        .map(Self::Of)
    }

    pub(crate) fn index_add(&self, indexes: &Tensor, term: &Tensor, dim: usize) -> Result<Self> {
        self.or_zeros()?.index_add(indexes, term, dim).map(Self::Of)
    }

    pub(crate) fn scatter_add(&self, indexes: &Tensor, term: &Tensor, dim: usize) -> Result<Self> {
        self.or_zeros()?.scatter_add(indexes, term, dim).map(Self::Of)
    }

    pub(crate) fn dims(&self) -> &[usize] {
        self.like().dims()
    }

    pub(crate) fn device(&self) -> &Device {
        self.like().device()
    }

    /// A tensor of its shape, type and device.
    fn like(&self) -> &Tensor {
        let (Self::Empty(tensor) | Self::Of(tensor)) = self;
        tensor
    }

    fn or_zeros(&self) -> Result<Tensor> {
        match self {
            Self::Empty(like) => like.zeros_like(),
            Self::Of(sum) => Ok(sum.clone()),
        }
    }
}

impl From<Tensor> for Sum {
    fn from(sum: Tensor) -> Self {
        Self::Of(sum)
    }
}

/// What adding it to zeros would have refused.
fn fits<'a>(like: &Tensor, term: &'a Tensor) -> Result<&'a Tensor> {
    if like.shape() != term.shape() || like.dtype() != term.dtype() {
        let (expected, found) = ((like.dtype(), like.shape()), (term.dtype(), term.shape()));
        crate::bail!("a gradient is {found:?}, and what it is of {expected:?}")
    }
    Ok(term)
}
