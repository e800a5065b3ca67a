//! What a captured graph depends on.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use candle_core::cuda::{gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32};
use candle_core::{DType, Device, DeviceLocation, Tensor};
use leyline::id::TopologyRevision;

/// Shape and element type of one input.
///
/// Strides are absent: an input is copied into a static buffer, which is contiguous, before a graph reads it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorKey {
    /// Length of each dimension.
    pub dims: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

impl Ord for TensorKey {
    fn cmp(&self, other: &Self) -> Ordering {
        // candle gives its types no order, but each a name of its own.
        (&self.dims, self.dtype.as_str()).cmp(&(&other.dims, other.dtype.as_str()))
    }
}

impl PartialOrd for TensorKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for TensorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype.as_str(), self.dims)
    }
}

/// A physical device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKey {
    /// The processor.
    Cpu,
    /// The CUDA device of this ordinal.
    Cuda(usize),
    /// The Metal device of this ordinal.
    Metal(usize),
}

impl From<&Device> for DeviceKey {
    fn from(device: &Device) -> Self {
        match device.location() {
            DeviceLocation::Cpu => Self::Cpu,
            DeviceLocation::Cuda { gpu_id } => Self::Cuda(gpu_id),
            DeviceLocation::Metal { gpu_id } => Self::Metal(gpu_id),
        }
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Metal(ordinal) => write!(f, "metal:{ordinal}"),
        }
    }
}

/// What the captured region does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExecutionMode {
    /// Forward, loss, backward, and whatever of the update is captured with them.
    Train,
    /// Forward only.
    Infer,
}

impl fmt::Display for ExecutionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Infer => "infer",
        })
    }
}

/// Arithmetic of the matrix products, which picks the kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// Single precision with products rounded to TensorFloat-32.
    Tf32,
    /// Brain floating point.
    Bf16,
    /// Half precision.
    F16,
}

impl Precision {
    /// That of products of single precision on a device now: a switch of the process, which may move.
    #[must_use]
    pub fn of(device: &Device) -> Self {
        if ProductSwitches::of(device).tf32 { Self::Tf32 } else { Self::F32 }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

/// candle's switches of the process for products on a GPU, each of which picks other kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProductSwitches {
    /// Factors of `f32` are rounded to TensorFloat-32.
    pub tf32: bool,
    /// Products of `bf16` may be added up in `bf16`.
    pub bf16_sums: bool,
    /// Products of `f16` may be added up in `f16`.
    pub f16_sums: bool,
}

impl ProductSwitches {
    /// As they stand now for a device. Off for the processor, which has none.
    ///
    /// # Sync
    /// none
    #[must_use]
    pub fn of(device: &Device) -> Self {
        let is_cuda = device.is_cuda();
        Self {
            tf32: is_cuda && gemm_reduced_precision_f32(),
            bf16_sums: is_cuda && gemm_reduced_precision_bf16(),
            f16_sums: is_cuda && gemm_reduced_precision_f16(),
        }
    }
}

impl fmt::Display for ProductSwitches {
    /// The names of those that are on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [("tf32", self.tf32), ("bf16_sums", self.bf16_sums), ("f16_sums", self.f16_sums)];
        let mut on = all.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name);
        on.next().map_or(Ok(()), |first| f.write_str(first))?;
        on.try_for_each(|name| write!(f, "+{name}"))
    }
}

/// Everything that affects shape or code of a captured region.
///
/// Keys are compared field by field; there is no digest, so no two keys can collide.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device};
/// use leyline::id::TopologyRevision;
/// use esper_graph::{ExecutionMode, GraphKey};
///
/// let key = GraphKey::new(ExecutionMode::Train, &Device::Cpu)
///     .shape([64, 1, 28, 28], DType::F32)
///     .shape([64], DType::U32)
///     .topology(TopologyRevision(3))
///     .tag("optimizer", "adam_w");
/// assert_eq!(
///     key.to_string(),
///     r#"train cpu f32 (f32[64, 1, 28, 28], u32[64]) topology=3 "optimizer"="adam_w""#
/// );
/// assert_ne!(key, key.clone().topology(TopologyRevision(4)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphKey {
    /// The inputs, in the order in which the region takes them.
    pub shapes: Vec<TensorKey>,
    /// Where the region runs.
    pub device: DeviceKey,
    /// What the region does.
    pub mode: ExecutionMode,
    /// Arithmetic of the matrix products.
    pub precision: Precision,
    /// What else picks their kernels, whatever the precision: a model may form products of several types.
    pub switches: ProductSwitches,
    /// Structure of the network.
    pub topology: TopologyRevision,
    /// Whatever else the caller's region depends on.
    pub tags: BTreeMap<String, String>,
}

impl GraphKey {
    /// A region without inputs, in the [precision](Precision::of) that products of the device have now, with the
    /// [switches](ProductSwitches::of) as they stand now, of topology revision 0.
    #[must_use]
    pub fn new(mode: ExecutionMode, device: &Device) -> Self {
        Self {
            shapes: Vec::new(),
            device: device.into(),
            mode,
            precision: Precision::of(device),
            switches: ProductSwitches::of(device),
            topology: TopologyRevision::default(),
            tags: BTreeMap::new(),
        }
    }

    /// Adds an input of the shape and type of `tensor`.
    ///
    /// # Sync
    /// none
    #[must_use]
    pub fn input(self, tensor: &Tensor) -> Self {
        self.shape(tensor.dims(), tensor.dtype())
    }

    /// Adds an input of this shape and type.
    #[must_use]
    pub fn shape(mut self, dims: impl Into<Vec<usize>>, dtype: DType) -> Self {
        self.shapes.push(TensorKey { dims: dims.into(), dtype });
        self
    }

    /// Sets the arithmetic of the matrix products.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Sets what else picks the kernels of the matrix products.
    #[must_use]
    pub fn switches(mut self, switches: ProductSwitches) -> Self {
        self.switches = switches;
        self
    }

    /// Sets the structure of the network.
    #[must_use]
    pub fn topology(mut self, topology: TopologyRevision) -> Self {
        self.topology = topology;
        self
    }

    /// Adds something else the region depends on; the last value of a name counts.
    #[must_use]
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(name.into(), value.into());
        self
    }
}

impl fmt::Display for GraphKey {
    /// Free text is quoted, so that different keys have different texts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} (", self.mode, self.device, self.precision)?;
        for (index, shape) in self.shapes.iter().enumerate() {
            write!(f, "{}{shape}", if index == 0 { "" } else { ", " })?;
        }
        write!(f, ") topology={}", self.topology)?;
        if self.switches != ProductSwitches::default() {
            write!(f, " switches={}", self.switches)?;
        }
        self.tags.iter().try_for_each(|(name, value)| write!(f, " {name:?}={value:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_input_is_keyed_by_its_shape_and_type() {
        let tensor = Tensor::zeros((2, 3), DType::U32, &Device::Cpu).unwrap();
        let key = GraphKey::new(ExecutionMode::Infer, &Device::Cpu);
        assert_eq!(key.clone().input(&tensor), key.clone().shape([2, 3], DType::U32));
        assert_eq!(key.device, DeviceKey::Cpu);
    }

    #[test]
    fn element_types_are_ordered_as_they_are_equal() {
        let types = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64, DType::BF16, DType::F16, DType::F32];
        let more = [DType::F64, DType::F8E4M3, DType::F6E2M3, DType::F6E3M2, DType::F4, DType::F8E8M0];
        let keys = types.into_iter().chain(more).map(|dtype| TensorKey { dims: vec![2], dtype });
        let distinct: BTreeSet<TensorKey> = keys.collect();
        assert_eq!(distinct.len(), 14);
    }

    #[test]
    fn each_switch_tells_keys_apart_in_any_precision() {
        let key = GraphKey::new(ExecutionMode::Train, &Device::Cpu).precision(Precision::Bf16);
        let with = |tf32, bf16_sums, f16_sums| {
            let switches = ProductSwitches { tf32, bf16_sums, f16_sums };
            key.clone().switches(switches).to_string()
        };
        assert_eq!(with(false, false, false), key.to_string());
        assert_eq!(with(true, false, true), format!("{key} switches=tf32+f16_sums"));
        let all =
            [with(false, false, false), with(true, false, false), with(false, true, false), with(false, false, true)];
        assert_eq!(BTreeSet::from(all).len(), 4);
    }

    #[test]
    fn free_text_cannot_imitate_another_field() {
        let key = GraphKey::new(ExecutionMode::Train, &Device::Cpu);
        let plain = key.clone().tag("a", "1").tag("b", "2");
        let forged = key.tag("a", "1\" \"b\"=\"2");
        assert_ne!(plain.to_string(), forged.to_string());
    }
}
