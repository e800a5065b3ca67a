//! Gradients of layer norm of the last dimension on a GPU, by one kernel for the input and one, or two, for the weights.

use cudarc::driver::{CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use super::direct::function;
use crate::cuda_backend::{CudaDType, WrapErr};
use crate::op::BackpropOp;
use crate::{CudaDevice, DType, Device, Layout, Result, Storage, Tensor};

/// Rows of a slice, at least, and slices of all rows, at most: what a block of threads adds up, and what is added up after it.
const ROWS: usize = 512;
const SLICES: usize = 128;
/// Widest rows that as many threads take with as many elements each, as the kernel's name has it. Wider ones have no kernel.
const WIDTHS: [(usize, u32, &str); 5] =
    [(64, 32, "2"), (256, 32, "8"), (512, 256, "2"), (2048, 256, "8"), (8192, 256, "32")];

/// As in the source, field by field.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Norm {
    rows: u32,
    width: u32,
    threads: u32,
    per_slice: u32,
    slices: u32,
    eps: f32,
}

// SAFETY: numbers of 4 bytes each, laid out as the kernels have them.
unsafe impl DeviceRepr for Norm {}

/// Of y = α (x − mean x) r + β with r = 1 / √(var x + ε) and `grad`, that of y: the gradient of x (…, width), and those of α and β, (2, width),
/// where they are wanted; none where there is no such kernel. Nothing is read back.
pub fn gradients(
    x: &Tensor,
    alpha: &Tensor,
    grad: &Tensor,
    eps: f32,
    are_weights_wanted: bool,
) -> Result<Option<(Tensor, Option<Tensor>)>> {
    let Device::Cuda(device) = x.device() else { return Ok(None) };
    let count = x.elem_count();
    let width = alpha.elem_count();
    let is_alike = |other: &Tensor| other.dtype() == x.dtype() && other.device().same_device(x.device());
    let is_small = (1..1 << 31).contains(&count) && width > 0 && x.dims().last() == Some(&width);
    if !is_small || alpha.rank() != 1 || grad.dims() != x.dims() || !is_alike(alpha) || !is_alike(grad) {
        return Ok(None);
    }
    let Some(&(_, threads, each)) = WIDTHS.iter().find(|(widest, ..)| width <= *widest) else { return Ok(None) };
    let rows = count / width;
    let per_slice = rows.div_ceil(SLICES).max(ROWS);
    let sizes = Norm {
        rows: rows as u32,
        width: width as u32,
        threads,
        per_slice: per_slice as u32,
        slices: rows.div_ceil(per_slice) as u32,
        eps,
    };
    let (operands, asked) = ((x, alpha, grad), (each, are_weights_wanted));
    match x.dtype() {
        DType::F32 => launch::<f32, f32>(device, operands, sizes, asked, "f32"),
        DType::F64 => launch::<f64, f64>(device, operands, sizes, asked, "f64"),
        DType::F16 => launch::<half::f16, f32>(device, operands, sizes, asked, "f16"),
        DType::BF16 => launch::<half::bf16, f32>(device, operands, sizes, asked, "bf16"),
        _ => return Ok(None),
    }
    .map(Some)
}

fn view<'a, T: CudaDType>(storage: &'a Storage, layout: &Layout) -> Result<CudaView<'a, T>> {
    let Storage::Cuda(storage) = storage else { crate::bail!("operands of a kernel are on several devices") };
    Ok(T::as_cuda_slice(storage)?.slice(layout.start_offset()..))
}

/// Of elements `T` whose sums are `A`.
fn launch<T: CudaDType + DeviceRepr, A: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    (x, alpha, grad): (&Tensor, &Tensor, &Tensor),
    sizes: Norm,
    (each, are_weights_wanted): (&str, bool),
    type_name: &str,
) -> Result<(Tensor, Option<Tensor>)> {
    let kept = [x.detach().contiguous()?, alpha.detach().contiguous()?, grad.detach().contiguous()?];
    let held = kept.each_ref().map(Tensor::storage_and_layout);
    let view = |of: usize| view::<T>(&held[of].0, held[of].1);
    let (x_view, alpha_view, grad_view) = (view(0)?, view(1)?, view(2)?);
    let (rows, width) = (sizes.rows as usize, sizes.width as usize);
    // SAFETY: the kernel writes every element of both.
    let (result, stats) = unsafe { (device.alloc::<T>(rows * width)?, device.alloc::<A>(2 * rows)?) };
    let blocks = |x: u32, y: u32, block_dim: (u32, u32, u32)| LaunchConfig {
        grid_dim: (x, y, 1),
        block_dim,
        shared_mem_bytes: 0,
    };
    let stream = device.cuda_stream();
    let input = function(device, &format!("norm_input_{each}"), type_name)?;
    let mut builder = stream.launch_builder(&input);
    builder.arg(&x_view).arg(&alpha_view).arg(&grad_view).arg(&result).arg(&stats).arg(&sizes);
    // SAFETY: sizes are those of the operands, which are contiguous, and of the memory taken above.
    unsafe { builder.launch(blocks(sizes.rows.div_ceil(256 / sizes.threads), 1, (256, 1, 1))) }.w()?;
    let columns = sizes.width.div_ceil(32);
    let weights = if are_weights_wanted {
        // SAFETY: a kernel writes every element.
        let sums = unsafe { device.alloc::<T>(2 * width)? };
        if sizes.slices == 1 {
            let weights = function(device, "norm_weights", type_name)?;
            let mut builder = stream.launch_builder(&weights);
            builder.arg(&x_view).arg(&grad_view).arg(&stats).arg(&sums).arg(&sizes);
            // SAFETY: as above.
            unsafe { builder.launch(blocks(columns, 1, (32, 32, 1))) }.w()?;
        } else {
            // SAFETY: the kernel writes every element.
            let slices = unsafe { device.alloc::<A>(sizes.slices as usize * 2 * width)? };
            let each = function(device, "norm_slices", type_name)?;
            let mut builder = stream.launch_builder(&each);
            builder.arg(&x_view).arg(&grad_view).arg(&stats).arg(&slices).arg(&sizes);
            // SAFETY: as above.
            unsafe { builder.launch(blocks(columns, sizes.slices, (32, 32, 1))) }.w()?;
            let sum = function(device, "norm_sum", type_name)?;
            let mut builder = stream.launch_builder(&sum);
            builder.arg(&slices).arg(&sums).arg(&sizes);
            // SAFETY: as above.
            unsafe { builder.launch(blocks((2 * sizes.width).div_ceil(32), 1, (32, 32, 1))) }.w()?;
        }
        let storage = Storage::Cuda(T::wrap_cuda_slice(sums, device.clone()));
        Some(crate::tensor::from_storage(storage, (2, width), BackpropOp::none(), false))
    } else {
        None
    };
    let storage = Storage::Cuda(T::wrap_cuda_slice(result, device.clone()));
    Ok((crate::tensor::from_storage(storage, x.dims(), BackpropOp::none(), false), weights))
}
