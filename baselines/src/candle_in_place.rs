//! Whether candle-core and candle-nn are those of `candle/`, in place of the published ones.

use std::sync::OnceLock;

use candle_core::{DType, Device, Result, Var};
use esper_graph::Precision;
use esper_graph::precision::{WorkingCopy, with_copies};

use crate::result::BenchResult;

/// By what it does: the published candle cuts the gradient of its own softmax off.
fn is_in_place() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let has_gradient = || -> Result<bool> {
        let x = Var::new(&[[1.0_f32, 2.0]], &Device::Cpu)?;
        Ok(candle_nn::ops::softmax_last_dim(&x)?.sum_all()?.backward()?.get(&x).is_some())
    };
    *FOUND.get_or_init(|| has_gradient().expect("candle computes a softmax of two numbers"))
}

/// Whether candle asks for copies of weights where a model rounds them: where `candle/esper` has it do so.
pub(crate) fn asks_for_copies() -> bool {
    let num_asked = || -> Result<u64> {
        let weight = Var::zeros((1, 1), DType::F32, &Device::Cpu)?;
        let copies = vec![WorkingCopy::new(&weight, &weight.detach().to_dtype(DType::BF16)?)?];
        let (rounded, num_asked) = with_copies(Precision::F32, copies, || weight.to_dtype(DType::BF16));
        rounded.map(|_| num_asked)
    };
    num_asked().expect("candle rounds a number on the CPU") > 0
}

/// A result says which candle it is of, and its command which program: that of `candle/esper` where candle is in place.
pub(crate) fn named(mut result: BenchResult) -> BenchResult {
    if is_in_place() {
        result.command = of_candle(&result.command);
        let name = if asks_for_copies() { ", candle/core with Esper's products" } else { ", candle/core" };
        result.environment.candle.iter_mut().for_each(|version| version.push_str(name));
    }
    result
}

fn of_candle(command: &str) -> String {
    command.replacen("-p esper ", "--manifest-path candle/Cargo.toml -p esper-with-candle ", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_that_of_the_program() {
        assert_eq!(
            of_candle("cargo run --release -p esper --features cuda -- bench cold-start --out DIR"),
            "cargo run --release --manifest-path candle/Cargo.toml -p esper-with-candle --features cuda -- bench cold-start --out DIR"
        );
    }

    #[test]
    fn the_published_candle_rounds_weights_itself() {
        assert!(!asks_for_copies());
    }

    #[test]
    fn a_result_of_the_published_candle_stays_as_it_is() {
        let result = BenchResult::new("tiny", "", &leyline::clock::SystemClock::new());
        assert_eq!(named(result.clone()), result);
    }
}
