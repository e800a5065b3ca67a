//! Values of parameters, which follow from their names and shapes alone.

use candle_core::{DType, Result, Tensor, Var};
use candle_nn::VarMap;

/// Numbers in [-1, 1) of a name.
pub fn numbers(name: &str) -> impl FnMut() -> f64 {
    let mut state = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let drawn = (state >> 11) as f64;
        drawn / (1_u64 << 52) as f64 - 1.0
    }
}

/// All parameters with their names, ordered by name.
///
/// # Panics
/// When a thread has panicked with the map in its hands.
pub fn parameters(map: &VarMap) -> Vec<(String, Var)> {
    let data = map.data().lock().expect("nobody has panicked with it");
    let mut all: Vec<(String, Var)> = data.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Gives every parameter its values: scales and variances about 1, shifts about 0, matrices by the size of their rows.
///
/// # Errors
/// When a tensor cannot be made.
pub fn set(map: &VarMap) -> Result<()> {
    for (name, var) in parameters(map) {
        let mut draw = numbers(&name);
        let is_scale = ["weight", "gamma", "running_var", "scale"].iter().any(|end| name.ends_with(end));
        let rows: usize = var.dims().iter().skip(1).product();
        let (center, spread) = match var.rank() {
            0 | 1 if is_scale => (1.0, 0.1),
            0 | 1 => (0.0, 0.1),
            _ => (0.0, (3.0 / rows as f64).sqrt()),
        };
        let values: Vec<f64> = (0..var.elem_count()).map(|_| center + spread * draw()).collect();
        var.set(&Tensor::from_vec(values, var.dims(), var.device())?.to_dtype(var.dtype())?)?;
    }
    Ok(())
}

/// All elements, as `f64`.
///
/// # Errors
/// When they cannot be read.
pub fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}
