//! The kernels in a build without the feature `cuda`: a type without values, so that no call of it can happen.

use candle_core::{CudaStorage, Device, Error, Layout, Result, Shape, Tensor};

use super::args::{FoldKind, MaskArgs, ParameterUpdate, ScaleRule, SolveArgs, UpdateArgs};
use crate::aggregate::Clipping;
use crate::grad::{Geometry, Weight};

/// The kernels on one device; there is none.
#[derive(Debug, Clone)]
pub(crate) enum DeviceKernels {}

/// What the gradient engine keeps on a GPU; nothing does.
#[derive(Debug)]
pub(crate) enum Workspace {}

impl Workspace {
    pub(crate) fn new(
        _geometry: &Geometry,
        _num_rows: usize,
        _solver: Option<usize>,
        _device: &Device,
    ) -> Result<Self> {
        Err(Error::NotCompiledWithCudaSupport)
    }

    pub(crate) fn coefficients(&self, _num_rows: usize) -> Result<Tensor> {
        match *self {}
    }

    pub(crate) fn one(&self) -> &Tensor {
        match *self {}
    }

    pub(crate) fn factors(&self) -> &Tensor {
        match *self {}
    }

    pub(crate) fn tensors(&self) -> std::iter::Empty<(&'static str, &Tensor)> {
        match *self {}
    }
}

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

    pub(crate) fn weigh(&self, _flat: &Tensor, _sources: &[(usize, &Tensor)], _weight: &Weight<'_>) -> Result<()> {
        match *self {}
    }

    pub(crate) fn move_scales(
        &self,
        _state: &Tensor,
        _factors: &Tensor,
        _probes: &Tensor,
        _rule: ScaleRule,
    ) -> Result<()> {
        match *self {}
    }

    pub(crate) fn resolve(&self, _workspace: &Workspace, _rows: &[&Tensor], _args: &SolveArgs<'_>) -> Result<()> {
        match *self {}
    }

    pub(crate) fn average(
        &self,
        _workspace: &Workspace,
        _rows: &[&Tensor],
        _coefficients: &Tensor,
        _clipping: Clipping,
        _sums: Option<&Tensor>,
    ) -> Result<()> {
        match *self {}
    }

    pub(crate) fn combine_rows(
        &self,
        _workspace: &Workspace,
        _rows: &[&Tensor],
        _coefficients: &Tensor,
        _factors: Option<&Tensor>,
    ) -> Result<()> {
        match *self {}
    }

    pub(crate) fn update(
        &self,
        _workspace: &Workspace,
        _updates: &[ParameterUpdate<'_>],
        _args: &UpdateArgs<'_>,
    ) -> Result<()> {
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
    _loss: &Tensor,
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
