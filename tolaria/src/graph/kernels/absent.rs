//! The kernels in a build without the feature `cuda`: a type without values, so that no call of it can happen.

use std::ops::Range;

use candle_core::{CudaStorage, Device, Error, Layout, Result, Shape, Tensor};

use super::args::{FoldKind, MaskArgs, NormRun, ParameterUpdate};

/// The kernels on one device; there is none.
#[derive(Debug, Clone)]
pub(crate) enum DeviceKernels {}

impl DeviceKernels {
    pub(crate) fn of(_tensor: &Tensor) -> Option<Self> {
        None
    }

    pub(crate) fn for_device(_device: &Device) -> Option<Self> {
        None
    }

    pub(crate) fn gather(&self, _flat: &Tensor, _sources: &[(usize, &Tensor)]) -> Result<()> {
        match *self {}
    }

    pub(crate) fn sgd(
        &self,
        _updates: &[ParameterUpdate<'_>],
        _gradient: &Tensor,
        _constants: &Tensor,
        _momentum_and_decay: [f32; 2],
        _nesterov: bool,
    ) -> Result<()> {
        match *self {}
    }

    pub(crate) fn adam_w(
        &self,
        _updates: &[ParameterUpdate<'_>],
        _gradient: &Tensor,
        _constants: &Tensor,
        _settings: [f32; 5],
    ) -> Result<()> {
        match *self {}
    }

    pub(crate) fn combine(&self, _rows: &[&Tensor], _coefficients: &Tensor, _range: &Range<usize>) -> Result<()> {
        match *self {}
    }

    pub(crate) fn gram(&self, _rows: &[&Tensor], _ranges: &[Range<usize>]) -> Result<Tensor> {
        match *self {}
    }

    pub(crate) fn pcgrad_solve(&self, _gram: &Tensor, _arguments: &Tensor) -> Result<(Tensor, Tensor)> {
        match *self {}
    }

    pub(crate) fn measure_and_clip(
        &self,
        _gradient: &Tensor,
        _runs: &[NormRun],
        _num_owners: usize,
        _max_norm: Option<f64>,
    ) -> Result<Tensor> {
        match *self {}
    }

    pub(crate) fn fold(&self, _sums: &Tensor, _addend: &Tensor, _kind: FoldKind) -> Result<()> {
        match *self {}
    }

    pub(crate) fn per_sample(&self, _logits: &Tensor, _targets: &Tensor) -> Result<Tensor> {
        match *self {}
    }

    pub(crate) fn hits(&self, _logits: &Tensor, _targets: &Tensor) -> Result<Tensor> {
        match *self {}
    }

    pub(crate) fn sum(&self, _values: &Tensor) -> Result<Tensor> {
        match *self {}
    }

    pub(crate) fn advance_counter(&self, _state: &Tensor) -> Result<()> {
        match *self {}
    }
}

pub(crate) fn cross_entropy(
    _logits: (&CudaStorage, &Layout),
    _targets: (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    Err(Error::NotCompiledWithCudaSupport)
}

pub(crate) fn cross_entropy_backward(
    _logits: (&CudaStorage, &Layout),
    _targets: (&CudaStorage, &Layout),
    _upstream: (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    Err(Error::NotCompiledWithCudaSupport)
}

pub(crate) fn dropout_mask(
    _state: (&CudaStorage, &Layout),
    _args: MaskArgs,
    _shape: &Shape,
) -> Result<(CudaStorage, Shape)> {
    Err(Error::NotCompiledWithCudaSupport)
}
