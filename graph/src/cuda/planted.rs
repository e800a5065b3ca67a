//! A kernel of a program's own under whatever name: what the compiler must not take for one of a library.

use candle_core::{Result, Tensor};
use cudarc::driver::{LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::compile_ptx;

use super::session::Session;
use crate::launch::{address, tensor_error};

const THREADS: u32 = 256;

impl Session {
    /// c += a·b, element by element, and b += 1, in a kernel called `name`, of which nothing is declared. A check plants it
    /// in a region.
    ///
    /// # Errors
    /// When the tensors are not on the GPU, contiguous and of one length, when `name` is no name, and when the device fails.
    #[doc(hidden)]
    pub fn launch_planted(&self, name: &str, [a, b, c]: [&Tensor; 3]) -> Result<()> {
        let count = c.elem_count();
        if a.elem_count() != count || b.elem_count() != count {
            candle_core::bail!("{:?}, {:?} and {:?} differ in length", a.dims(), b.dims(), c.dims())
        }
        let source = format!(
            "extern \"C\" __global__ void {name}(const float* a, float* b, float* c, unsigned int count) {{
                 unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
                 if (i < count) {{ c[i] += a[i] * b[i]; b[i] += 1.0f; }}
             }}"
        );
        let ptx = compile_ptx(source).map_err(candle_core::Error::wrap)?.to_src();
        let function = self.device().get_or_load_custom_func(name, name, &ptx)?;
        let (a, b, c) = (address(a)?, address(b)?, address(c)?);
        let count = u32::try_from(count).map_err(candle_core::Error::wrap)?;
        let mut launch = function.builder();
        launch.arg(&a).arg(&b).arg(&c).arg(&count);
        let (grid_dim, block_dim) = ((count.div_ceil(THREADS), 1, 1), (THREADS, 1, 1));
        // SAFETY: the kernel stays inside of the three tensors, which are live until it is enqueued.
        tensor_error(unsafe { launch.launch(LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }) }).map(drop)
    }
}
