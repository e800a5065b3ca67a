//! The trainer's dropout with this candle, whose `backward` refuses what has no backward pass: its mask is no part of the network.

use candle_core::{Device, Var};
use tolaria::random::{DrawCounter, Dropout};

#[test]
fn a_mask_is_a_constant() -> Result<(), Box<dyn std::error::Error>> {
    let counter = DrawCounter::new(99, &Device::Cpu)?;
    let inputs = Var::ones(64, candle_core::DType::F32, &Device::Cpu)?;
    let kept = Dropout::new(0.25, 0, &counter)?.forward(&inputs, true)?;
    let gradients = kept.sum_all()?.backward()?;
    let kept = kept.to_vec1::<f32>()?;
    assert!(kept.contains(&0.0) && kept.contains(&(1.0 / 0.75)), "{kept:?}");
    assert_eq!(gradients.get(&inputs).ok_or("no gradient")?.to_vec1::<f32>()?, kept);
    Ok(())
}
