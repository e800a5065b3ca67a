//! Caches of keys and values: what a call returns is the result of what the call appended.

use candle::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// Where along a dimension the appended part stands; unknown where a buffer has begun from its start again.
struct Part(Option<(usize, usize)>);

/// `data`, of which `part` was appended along `dim`.
pub(crate) fn with_tail(data: &Tensor, part: &Tensor, dim: usize) -> Tensor {
    let start = data.dims()[dim] - part.dims()[dim];
    data.as_result_of1(part, Part(Some((dim, start))))
}

/// `data`, of which `part` was written somewhere.
pub(crate) fn wrapped(data: &Tensor, part: &Tensor) -> Tensor {
    data.as_result_of1(part, Part(None))
}

impl CustomOp1 for Part {
    fn name(&self) -> &'static str {
        "kv-cache"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle::bail!("{} is recorded only", self.name())
    }

    fn bwd(&self, part: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        match self.0 {
            Some((dim, start)) => grad.narrow(dim, start, part.dim(dim)?)?.contiguous().map(Some),
            None => candle::bail!(
                "the operation `kv-cache` has no backward pass for a buffer that was written from its start again"
            ),
        }
    }
}
