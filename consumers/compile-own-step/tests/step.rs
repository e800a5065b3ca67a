//! The step in numbers, on the CPU and, in a build with the feature `cuda`, on a GPU.

use candle_core::{Device, Result};
use compile_own_step::train;

/// Each step brings the weight half of the way from 0 to 2, and the loss to a quarter, without rounding.
fn expected(num_steps: i32) -> Vec<f32> {
    (0..num_steps).map(|step| 10.0 * 0.25_f32.powi(step)).collect()
}

#[test]
fn without_a_gpu_the_step_runs_eagerly_and_says_why() -> Result<()> {
    let (losses, replays, refusal) = train(&Device::Cpu, 6)?;
    assert_eq!((losses, replays), (expected(6), 0));
    let refusal = refusal.unwrap_or_default();
    assert!(refusal.contains("GPU"), "{refusal}");
    Ok(())
}

#[cfg(feature = "cuda")]
#[test]
fn on_a_gpu_the_step_is_replayed_with_the_same_losses() -> Result<()> {
    let (losses, replays, refusal) = train(&Device::new_cuda_with_stream(0)?, 20)?;
    for (loss, expected) in losses.iter().zip(expected(20)) {
        assert!((loss - expected).abs() <= 1e-6 * expected, "{losses:?}");
    }
    assert_eq!((replays, refusal), (18, None), "2 steps run eagerly, of which the second is captured too");
    Ok(())
}
