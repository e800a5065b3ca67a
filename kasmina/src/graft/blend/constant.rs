//! Numbers of a command as device tensors.

use candle_core::{DType, Device, Result, Tensor};

/// Numbers that a blend was given, on the device from its germination on: a forward pass may run while a graph is captured
/// and then copies nothing from the host.
#[derive(Debug, Clone)]
pub(super) struct Constant {
    single: Tensor,
    // Not made from `single`: a network in f64 computes with the numbers as they were given.
    double: Tensor,
}

impl Constant {
    pub(super) fn new(values: &[f64], shape: &[usize], device: &Device) -> Result<Self> {
        let host = Tensor::from_slice(values, shape, &Device::Cpu)?;
        Ok(Self { single: host.to_dtype(DType::F32)?.to_device(device)?, double: host.to_device(device)? })
    }

    /// The numbers in this type.
    pub(super) fn tensor(&self, dtype: DType) -> Result<Tensor> {
        match dtype {
            DType::F64 => Ok(self.double.clone()),
            _ => self.single.to_dtype(dtype),
        }
    }
}
