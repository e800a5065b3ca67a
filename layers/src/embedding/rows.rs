//! Looks rows up.

use candle_core::{DType, Error, Result, Tensor};

use crate::precision::{compute_type, expect_same_device};

/// The rows `ids` of `table`, with a gradient for the table: the sum over the positions of a row, in their order on a GPU.
/// `u32::MAX` stands for no row: zeros, without a gradient.
///
/// # Shapes
/// `table` (V, D) of a float type, `ids` (N) of `u32`; the result is (N, D)
/// # Errors
/// For other shapes and types, on the CPU for another id that is no row, and when the device fails. On a GPU such an id
/// gives a row of NaN.
/// # Sync
/// none
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use esper_layers::embedding;
///
/// let table = Var::new(&[[1.0_f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let rows = embedding(&table, &Tensor::new(&[1_u32, 0, 1], &Device::Cpu)?)?;
/// assert_eq!(rows.to_vec2::<f32>()?, [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]);
/// let gradients = rows.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&table).expect("a gradient").to_vec2::<f32>()?, [[1.0, 1.0], [2.0, 2.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (&[_, width], &[positions]) = (table.dims(), ids.dims()) else {
        candle_core::bail!(
            "embedding: expected a table (V, D) and ids (N), found {:?} and {:?}",
            table.dims(),
            ids.dims()
        )
    };
    if ids.dtype() != DType::U32 {
        return Err(Error::UnexpectedDType { msg: "ids of embedding", expected: DType::U32, got: ids.dtype() }.bt());
    }
    expect_same_device("embedding", table, ids)?;
    let dtype = compute_type("embedding", table.dtype())?;
    if width == 0 || positions == 0 {
        return Tensor::zeros((positions, width), table.dtype(), table.device());
    }
    run(&table.to_dtype(dtype)?, ids)?.to_dtype(table.dtype())
}

#[cfg(feature = "cuda")]
fn run(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    if table.device().is_cuda() && table.dtype() == DType::F32 {
        return super::cuda::embedding(table, ids);
    }
    composed(table, ids)
}

#[cfg(not(feature = "cuda"))]
fn run(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    composed(table, ids)
}

fn composed(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    table.contiguous()?.index_select(&ids.contiguous()?, 0)
}

#[cfg(test)]
mod tests;
