//! Bytes that a training pass keeps for its backward pass, and the most at once, with all activations kept and with blocks computed again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/in_use.rs"]
mod in_use;
mod support;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use in_use::{in_use, most_in_use};
use kasmina::host::HostConfig;
use kasmina::{ActivationCheckpointing, Kasmina, KasminaConfig};
use leyline::model::{Pass, TrainableModel as _};
use leyline::seed::SeedManager as _;
use leyline::telemetry::NullRecorder;
use leyline_testkit::clock::ManualClock;
use support::config;

const SAMPLES: usize = 4;
const CONTEXT: usize = 32;
const WIDTH: usize = 64;
/// Bytes of what enters attention, or the perceptron behind it.
const INPUT: isize = (SAMPLES * CONTEXT * WIDTH * size_of::<f32>()) as isize;

/// Bytes that a pass keeps until its backward pass, and the most in use in both.
fn pass(layers: usize, activation_checkpointing: ActivationCheckpointing) -> [isize; 2] {
    let host = HostConfig::LanguageModel {
        context: CONTEXT,
        width: WIDTH,
        heads: 4,
        layers,
        mlp_ratio: 4,
        tied: false,
        vocabulary: 16,
    };
    let config = KasminaConfig { activation_checkpointing, ..config(host) };
    let clock = Arc::new(ManualClock::default());
    let manager = Kasmina::new(config, &Device::Cpu, clock, Arc::new(NullRecorder)).unwrap();
    let tokens = Tensor::zeros((SAMPLES, CONTEXT), DType::U32, &Device::Cpu).unwrap();
    // What is made once and kept from pass to pass is made by the first.
    let [_, found] = [0, 1].map(|_| {
        let before = in_use();
        most_in_use();
        let logits = manager.model().forward(&tokens, Pass::Train).unwrap().logits;
        let kept = in_use() - before;
        logits.sqr().unwrap().mean_all().unwrap().backward().unwrap();
        [kept, most_in_use() - before]
    });
    found
}

#[test]
fn with_blocks_each_block_keeps_little_more_than_what_enters_its_two_parts() {
    let (few, many) = (2, 6);
    let per_block = |checkpointing| {
        let [few_pass, many_pass] = [few, many].map(|layers| pass(layers, checkpointing));
        [0, 1].map(|index| (many_pass[index] - few_pass[index]) / (many - few) as isize)
    };
    let all = per_block(ActivationCheckpointing::None);
    let blocks = per_block(ActivationCheckpointing::Blocks);
    assert!(all[0] > 20 * INPUT, "{all:?}, {INPUT} for an input");
    assert!((2 * INPUT..2 * INPUT + INPUT / 4).contains(&blocks[0]), "{blocks:?}, {INPUT} for an input");
    // The gradients of the block's parameters are there at the end of either.
    let gradients = isize::try_from((4 + 8) * WIDTH * WIDTH * size_of::<f32>()).unwrap();
    assert!((gradients..gradients + 3 * INPUT).contains(&blocks[1]), "{blocks:?}, {gradients} for gradients");
    assert!(all[1] > blocks[1] + 20 * INPUT, "{all:?}, {blocks:?}");
}
