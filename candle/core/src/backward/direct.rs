//! Convolutions in groups, their gradients and those of pooling on a GPU, by one kernel each, and windows as columns. `grouped.cu`, `pool.cu`,
//! `columns.cu` and `norm.cu` are compiled when the first of them runs, by the compiler of the CUDA toolkit that candle links.

use std::sync::OnceLock;

use cudarc::driver::{CudaFunction, DeviceRepr, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{compile_ptx_with_opts, CompileOptions};

use super::conv::Conv;
use crate::cuda_backend::{CudaDType, WrapErr};
use crate::op::BackpropOp;
use crate::{CudaDevice, DType, Device, Result, Storage, Tensor};

const SOURCE: &str =
    concat!(include_str!("grouped.cu"), include_str!("pool.cu"), include_str!("columns.cu"), include_str!("norm.cu"));
/// The same for all GPUs from compute capability 7.5 on, or why there is none. It takes a fraction of a second, once in a process.
static CODE: OnceLock<std::result::Result<String, String>> = OnceLock::new();
const MODULE: &str = "esper-windows";
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
    /// That of x where y are the largest elements of windows, of x, y and g.
    MaxGradient,
    /// That of x, each of whose elements has what its windows are given, of g.
    MeanGradient,
    /// What windows see of x, as columns.
    Seen,
    /// What columns give to the elements of x that they saw.
    Folded,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Output => "grouped_output",
            Self::InputGradient => "grouped_input_gradient",
            Self::WeightGradient => "grouped_weight_gradient",
            Self::MaxGradient => "pool_gradient_max",
            Self::MeanGradient => "pool_gradient_mean",
            Self::Seen => "windows_seen",
            Self::Folded => "windows_folded",
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
/// none where kernels do not take it. Pooling has windows as if each channel were a group.
pub(super) fn run(conv: &Conv, kind: Kind, operands: &[&Tensor], dims: [&[usize]; 3]) -> Result<Option<Tensor>> {
    let (Some(sizes), [first, ..]) = (sizes(conv, dims), operands) else { return Ok(None) };
    let Device::Cuda(device) = first.device() else { return Ok(None) };
    let is_grouped = matches!(kind, Kind::Output | Kind::InputGradient | Kind::WeightGradient);
    let is_alike = |operand: &&Tensor| operand.dtype() == first.dtype() && operand.device().same_device(first.device());
    if !operands.iter().all(is_alike) || (is_grouped && conv.groups == 1) {
        return Ok(None);
    }
    let columns = [dims[1].iter().product(), dims[2][0] * dims[2][2] * dims[2][3]];
    let result = match kind {
        Kind::Output => dims[2],
        Kind::InputGradient | Kind::MaxGradient | Kind::MeanGradient | Kind::Folded => dims[0],
        Kind::WeightGradient => dims[1],
        Kind::Seen => &columns[..],
    };
    match first.dtype() {
        DType::F32 => launch::<f32>(device, kind, operands, result, sizes, "f32"),
        DType::F64 => launch::<f64>(device, kind, operands, result, sizes, "f64"),
        DType::F16 => launch::<half::f16>(device, kind, operands, result, sizes, "f16"),
        DType::BF16 => launch::<half::bf16>(device, kind, operands, result, sizes, "bf16"),
        _ => return Ok(None),
    }
    .map(Some)
}

/// Whether kernels take these sizes.
pub(super) fn fits(conv: &Conv, dims: [&[usize]; 3]) -> bool {
    sizes(conv, dims).is_some()
}

/// None where a size is more than kernels count, or groups are too large or not alike.
fn sizes(conv: &Conv, dims: [&[usize]; 3]) -> Option<Sizes> {
    let [&[samples, channels, height, width], &[outputs, inputs, tall, wide], &[_, _, rows, columns]] = dims else {
        return None;
    };
    let groups = conv.groups;
    let small = |dims: &[usize]| (1..1 << 31).contains(&dims.iter().product::<usize>());
    let channels_of_group = inputs.max(outputs / groups.max(1));
    let divides = groups > 0 && outputs % groups == 0 && channels == groups * inputs;
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

fn launch<T: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    kind: Kind,
    operands: &[&Tensor],
    dims: &[usize],
    sizes: Sizes,
    type_name: &str,
) -> Result<Tensor> {
    let function = function(device, kind.name(), type_name)?;
    let operands = operands.iter().map(|operand| operand.detach().contiguous()).collect::<Result<Vec<_>>>()?;
    let held: Vec<_> = operands.iter().map(Tensor::storage_and_layout).collect();
    let mut views = Vec::new();
    for (storage, layout) in &held {
        let Storage::Cuda(storage) = &**storage else { crate::bail!("operands of a kernel are on several devices") };
        views.push(T::as_cuda_slice(storage)?.slice(layout.start_offset()..));
    }
    let count: usize = dims.iter().product();
    // SAFETY: the kernel writes every element.
    let result = unsafe { device.alloc::<T>(count)? };
    let blocks = match kind {
        Kind::WeightGradient => count,
        _ => count.div_ceil(THREADS),
    };
    let elements = count as u32;
    let stream = device.cuda_stream();
    let mut builder = stream.launch_builder(&function);
    for view in &views {
        builder.arg(view);
    }
    builder.arg(&result).arg(&elements).arg(&sizes);
    let config =
        LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: sizes are those of the operands, which are contiguous, and of the memory taken above; all are below 2^31.
    unsafe { builder.launch(config) }.w()?;
    let storage = Storage::Cuda(T::wrap_cuda_slice(result, device.clone()));
    Ok(crate::tensor::from_storage(storage, dims, BackpropOp::none(), false))
}

/// A kernel of `SOURCE`.
pub(super) fn function(device: &CudaDevice, name: &str, type_name: &str) -> Result<CudaFunction> {
    let found = device.get_or_load_custom_func(&format!("esper_{name}_{type_name}"), MODULE, code()?)?;
    Ok(found.into_cuda_function())
}

/// The kernels as PTX.
fn code() -> Result<&'static str> {
    let code = CODE.get_or_init(|| {
        let options = CompileOptions {
            arch: Some("compute_75"),
            name: Some("grouped.cu, pool.cu, columns.cu and norm.cu".to_owned()),
            ..Default::default()
        };
        compile_ptx_with_opts(SOURCE, options).map(|code| code.to_src()).map_err(|error| format!("{error:?}"))
    });
    match code {
        Ok(code) => Ok(code),
        Err(error) => crate::bail!("kernels of convolutions, pooling and norms do not compile: {error}"),
    }
}
