//! Convolutions in groups and their gradients on a GPU, by one kernel each. `grouped.cu` is compiled when the first of them runs, by the
//! compiler of the CUDA toolkit that candle links.

use std::sync::OnceLock;

use cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{compile_ptx_with_opts, CompileOptions};

use super::conv::Conv;
use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaStorage, CudaStorageSlice, WrapErr};
use crate::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor};

const SOURCE: &str = include_str!("grouped.cu");
/// The same for all GPUs from compute capability 7.5 on, or why there is none. It takes a fraction of a second, once in a process.
static CODE: OnceLock<std::result::Result<String, String>> = OnceLock::new();
const MODULE: &str = "esper-grouped-convolution";
/// Threads of a block, as the kernels have them.
const THREADS: usize = 256;
/// Most channels of a group: products of matrices, which larger ones can be, were not compared.
const MAX_CHANNELS: usize = 32;

/// What a kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// y of x and w.
    Output,
    /// That of x, of w and g.
    InputGradient,
    /// That of w, of x and g.
    WeightGradient,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::InputGradient => "input_gradient",
            Self::WeightGradient => "weight_gradient",
        }
    }
}

/// As in the source, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Sizes {
    samples: u32,
    groups: u32,
    inputs: u32,
    outputs: u32,
    height: u32,
    width: u32,
    tall: u32,
    wide: u32,
    rows: u32,
    columns: u32,
    padding: [i32; 2],
    stride: [i32; 2],
    dilation: [i32; 2],
}

// SAFETY: numbers of 4 bytes each, laid out as the kernels have them.
unsafe impl DeviceRepr for Sizes {}

/// What `kind` computes of a convolution of x (N, groups·I, H, W) with w (groups·O, I, h, w), which gives (N, groups·O, rows, columns);
/// none where kernels do not take it.
pub(super) fn run(
    conv: &Conv,
    kind: Kind,
    (one, other): (&Tensor, &Tensor),
    dims: [&[usize]; 3],
) -> Result<Option<Tensor>> {
    let Some(sizes) = sizes(conv, dims) else { return Ok(None) };
    let types = [DType::F16, DType::BF16, DType::F32, DType::F64];
    if !matches!(one.device(), Device::Cuda(_)) || !types.contains(&one.dtype()) || one.dtype() != other.dtype() {
        return Ok(None);
    }
    let result = match kind {
        Kind::Output => dims[2],
        Kind::InputGradient => dims[0],
        Kind::WeightGradient => dims[1],
    };
    let op = Direct { kind, sizes, result: Shape::from(result) };
    one.detach().contiguous()?.apply_op2_no_bwd(&other.detach().contiguous()?, &op).map(Some)
}

/// None where a size is more than kernels count, or groups are too large or not alike.
fn sizes(conv: &Conv, dims: [&[usize]; 3]) -> Option<Sizes> {
    let [&[samples, channels, height, width], &[outputs, inputs, tall, wide], &[_, _, rows, columns]] = dims else {
        return None;
    };
    let groups = conv.groups;
    let small = |dims: &[usize]| (1..1 << 31).contains(&dims.iter().product::<usize>());
    let channels_of_group = inputs.max(outputs / groups.max(1));
    let divides = groups > 1 && outputs % groups == 0 && channels == groups * inputs;
    if !divides || channels_of_group > MAX_CHANNELS || !dims.into_iter().all(small) {
        return None;
    }
    // Sizes of arrays are far below 2^31; steps need not be.
    let count = |value: usize| u32::try_from(value).ok();
    let step = |value: usize| i32::try_from(value).ok().filter(|value| *value < 1 << 15);
    let steps = |of: fn((usize, usize, usize)) -> usize| Some([step(of(conv.vertical))?, step(of(conv.horizontal))?]);
    (tall.max(wide) < 1 << 15).then_some(())?;
    Some(Sizes {
        samples: count(samples)?,
        groups: count(groups)?,
        inputs: count(inputs)?,
        outputs: count(outputs / groups)?,
        height: count(height)?,
        width: count(width)?,
        tall: count(tall)?,
        wide: count(wide)?,
        rows: count(rows)?,
        columns: count(columns)?,
        padding: steps(|of| of.0)?,
        stride: steps(|of| of.1)?,
        dilation: steps(|of| of.2)?,
    })
}

struct Direct {
    kind: Kind,
    sizes: Sizes,
    result: Shape,
}

impl CustomOp2 for Direct {
    fn name(&self) -> &'static str {
        "direct-grouped-convolution"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        crate::bail!("{} is for GPUs", self.name())
    }

    fn cuda_fwd(
        &self,
        one: &CudaStorage,
        one_layout: &Layout,
        other: &CudaStorage,
        other_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        use CudaStorageSlice as S;
        let device = one.device().clone();
        let count = self.result.elem_count();
        macro_rules! launch {
            ($one:expr, $other:expr, $type:ty, $name:literal) => {{
                // SAFETY: the kernel writes every element.
                let result = unsafe { device.alloc::<$type>(count)? };
                let name = format!("esper_grouped_{}_{}", self.kind.name(), $name);
                let function = device.get_or_load_custom_func(&name, MODULE, code()?)?;
                let one = $one.slice(one_layout.start_offset()..);
                let other = $other.slice(other_layout.start_offset()..);
                let blocks = match self.kind {
                    Kind::WeightGradient => count,
                    Kind::Output | Kind::InputGradient => count.div_ceil(THREADS),
                };
                let (elements, sizes) = (count as u32, self.sizes);
                let mut builder = function.builder();
                builder.arg(&one).arg(&other).arg(&result).arg(&elements).arg(&sizes);
                let config = LaunchConfig {
                    grid_dim: (blocks as u32, 1, 1),
                    block_dim: (THREADS as u32, 1, 1),
                    shared_mem_bytes: 0,
                };
                // SAFETY: sizes are those of the operands, which are contiguous, and of the memory taken above; all are below 2^31.
                unsafe { builder.launch(config) }.w()?;
                CudaStorage::wrap_cuda_slice(result, device.clone())
            }};
        }
        let result = match (&one.slice, &other.slice) {
            (S::F32(one), S::F32(other)) => launch!(one, other, f32, "f32"),
            (S::F64(one), S::F64(other)) => launch!(one, other, f64, "f64"),
            (S::F16(one), S::F16(other)) => launch!(one, other, half::f16, "f16"),
            (S::BF16(one), S::BF16(other)) => launch!(one, other, half::bf16, "bf16"),
            _ => crate::bail!("{} takes two tensors of one float type", self.name()),
        };
        Ok((result, self.result.clone()))
    }
}

/// The kernels as PTX.
fn code() -> Result<&'static str> {
    let code = CODE.get_or_init(|| {
        let options =
            CompileOptions { arch: Some("compute_75"), name: Some("grouped.cu".to_owned()), ..Default::default() };
        compile_ptx_with_opts(SOURCE, options).map(|code| code.to_src()).map_err(|error| format!("{error:?}"))
    });
    match code {
        Ok(code) => Ok(code),
        Err(error) => crate::bail!("kernels of convolutions in groups do not compile: {error}"),
    }
}
