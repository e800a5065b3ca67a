//! A language model of one layer that generates: a step, the choice of the next token included, is one replay.
//!
//! `cargo run -p esper-layers --example decode_loop`, or with `--features cuda -- cuda:0`.
#![expect(clippy::print_stdout, reason = "an example shows what happened")]

use std::error::Error;

use candle_core::{D, DType, Device, Result, Tensor};
use esper_graph::{GraphFunction, GraphFunctionConfig, GraphManager};
use esper_layers::{KvCache, Position};
use leyline::region::Eager;

const TOKENS: usize = 50;
const WIDTH: usize = 16;

/// Weights that need no file: (rows, columns), spread over -1 to 1.
fn weights(rows: usize, columns: usize, device: &Device) -> Result<Tensor> {
    let count = u32::try_from(rows * columns).map_err(candle_core::Error::wrap)?;
    (Tensor::arange(0, count, device)?.to_dtype(DType::F32)? * 2.399)?.sin()?.reshape((rows, columns))
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let device = match std::env::args().nth(1).as_deref() {
        Some("cuda:0") => Device::new_cuda_with_stream(0)?,
        _ => Device::Cpu,
    };
    let (table, qkv) = (weights(TOKENS, WIDTH, &device)?, weights(WIDTH, 3 * WIDTH, &device)?);
    let position = Position::new(64, &device)?;
    let cache = KvCache::new((1, 1, WIDTH), &position, DType::F32)?;
    // What is written in place, the cache and the position, is all that a step leaves for the next one.
    let step = |inputs: &[Tensor]| {
        let x = table.index_select(&inputs[0], 0)?;
        let qkv = x.matmul(&qkv)?.reshape((1, 1, 3, WIDTH))?.transpose(1, 2)?;
        let part = |index| qkv.narrow(1, index, 1);
        let seen = cache.attend(&part(0)?, &part(1)?, &part(2)?, &position)?;
        position.advance(1)?;
        let logits = (x + seen.reshape((1, WIDTH))?)?.matmul(&table.t()?)?;
        Ok(vec![logits.argmax(D::Minus1)?])
    };
    let mut step = GraphFunction::new(step, GraphFunctionConfig::default(), &GraphManager::global());

    let mut eager = Eager::acquire()?;
    let mut sequences = Vec::new();
    for _ in 0..2 {
        position.set(0)?;
        let mut tokens = vec![Tensor::new(&[7_u32], &device)?];
        for index in 0..12 {
            tokens.push(step.call(&mut eager, &[&tokens[index]])?.remove(0));
        }
        #[expect(clippy::disallowed_methods, reason = "the sequence is complete")]
        sequences.push(Tensor::cat(&tokens, 0)?.to_vec1::<u32>()?);
    }
    println!("tokens {:?}", sequences[0]);
    println!("{} of 24 steps were replays", step.stats().total.replays);
    if let Some(refusal) = step.last_refusal(&[&Tensor::new(&[7_u32], &device)?]) {
        println!("not replayed: {refusal}");
    }
    assert_eq!(sequences[0], sequences[1], "the same start, the same tokens");
    Ok(())
}
