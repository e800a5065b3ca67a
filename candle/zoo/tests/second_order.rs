//! Gradients of gradients, which candle computes where a variable of the environment says so: what is provided has none, and is not asked for.

use std::env;
use std::process::Command;

use candle_core::provided::{Provided, set};
use candle_core::{DType, Device, Result, Tensor, Var};

/// Read by candle once in a process.
const VARIABLE: &str = "CANDLE_GRAD_DO_NOT_DETACH";

fn product(left: &Tensor, right: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
    if dtype != DType::F32 {
        return Ok(None);
    }
    let wide = |factor: &Tensor| factor.detach().to_dtype(DType::F64);
    wide(left)?.matmul(&wide(right)?)?.to_dtype(dtype).map(Some)
}

#[test]
fn gradients_of_gradients_are_candles() -> Result<()> {
    if env::var_os(VARIABLE).is_none() {
        let mut again = Command::new(env::current_exe()?);
        let output = again.args(["--exact", "gradients_of_gradients_are_candles"]).env(VARIABLE, "1").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return Ok(());
    }
    assert!(set(Provided { product, rounded: |_, _| None }));
    let x = Var::from_tensor(&Tensor::new(&[[1_f32, 2.0], [3.0, 4.0]], &Device::Cpu)?.to_dtype(DType::F16)?)?;
    let weight = Var::ones((2, 1), DType::F32, &Device::Cpu)?;
    let loss = x.matmul(&weight.to_dtype(DType::F16)?)?.to_dtype(DType::F32)?.sum_all()?;
    let first = loss.backward()?.remove(&weight).expect("the weight has a gradient");
    assert_eq!(first.to_vec2::<f32>()?, [[4.0], [6.0]]);
    // Of Σ g², g a sum of x: twice g.
    let second = first.sqr()?.sum_all()?.backward()?;
    let of_x = second.get(&x).expect("the gradient depends on x").to_dtype(DType::F32)?;
    assert_eq!(of_x.to_vec2::<f32>()?, [[8.0, 12.0], [8.0, 12.0]]);
    Ok(())
}
