//! Trains a BERT of candle-transformers as it is: `cargo run --example train_bert`. Without `[patch.crates-io]` nothing is trained.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Optimizer, VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config};

fn main() -> Result<()> {
    let map = VarMap::new();
    let config =
        Config { vocab_size: 32, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, ..Config::default() };
    let model = BertModel::load(VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu), &config)?;
    let mut optimizer = AdamW::new_lr(map.all_vars(), 1e-2)?;
    let ids = Tensor::arange(0_u32, 8, &Device::Cpu)?.reshape((2, 4))?;
    for step in 0..20 {
        let loss = model.forward(&ids, &ids.zeros_like()?, None)?.narrow(2, 0, 1)?.sqr()?.mean_all()?;
        println!("step {step}: {:.4}", loss.to_scalar::<f32>()?);
        optimizer.backward_step(&loss)?;
    }
    Ok(())
}
