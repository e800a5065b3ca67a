//! Dropout on the CPU.
#![expect(clippy::cast_possible_truncation, reason = "words are the low and the high part of a number")]

use candle_core::{DType, Device, Tensor, Var};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::testing::{bits, values};

fn dropout(probability: f64, layer: u32, seed: u64, draws: u64) -> Dropout {
    let counter = DrawCounter::new(seed, &Device::Cpu).unwrap();
    counter.set(draws).unwrap();
    Dropout::new(probability, layer, &counter).unwrap()
}

fn ones(shape: impl Into<Shape>) -> Tensor {
    Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap()
}

fn mask(dropout: &Dropout, len: usize) -> Vec<f32> {
    values(&dropout.forward(&ones(len), true).unwrap())
}

fn num_kept(mask: &[f32]) -> usize {
    mask.iter().filter(|&&element| element > 0.0).count()
}

#[test]
fn a_probability_outside_of_0_to_1_is_refused_by_its_key() {
    let counter = DrawCounter::new(0, &Device::Cpu).unwrap();
    for probability in [-0.1, -f64::MIN_POSITIVE, 1.0, 1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        match Dropout::new(probability, 0, &counter) {
            Err(Error::InvalidConfig { key, .. }) => assert_eq!(key, "dropout.probability"),
            other => panic!("{probability}: {other:?}"),
        }
    }
    for probability in [0.0, -0.0, f64::MIN_POSITIVE, 0.5, 1.0 - f64::EPSILON / 2.0] {
        assert!(Dropout::new(probability, 0, &counter).is_ok(), "{probability}");
    }
}

#[test]
fn integers_are_refused() {
    let inputs = Tensor::new(&[1_u32, 2], &Device::Cpu).unwrap();
    let found = dropout(0.5, 0, 0, 0).forward(&inputs, true);
    assert!(matches!(found, Err(Error::LayoutMismatch { .. })), "{found:?}");
}

#[test]
fn the_bound_is_the_rounded_part_of_all_words_and_never_all_of_them() {
    for (probability, expected) in [
        (0.0, 0),
        (0.5, 0x8000_0000),
        (0.75, 0xC000_0000),
        (0.1, 429_496_730),
        (1.0 - 2.0_f64.powi(-40), u32::MAX),
        (1.0 - f64::EPSILON / 2.0, u32::MAX),
    ] {
        assert_eq!(drop_bound(probability), expected, "{probability}");
    }
}

#[test]
fn the_numbers_never_change_between_versions() {
    // The first words for seed, draws and layer 0 are 6627e8d5 e169c58d bc57ac4c 9b00dbd8, as in the known answers.
    for (probability, expected) in
        [(0.25, [1, 1, 1, 1]), (0.5, [0, 1, 1, 1]), (0.625, [0, 1, 1, 0]), (0.75, [0, 1, 0, 0]), (0.9, [0, 0, 0, 0])]
    {
        let kept: Vec<u8> = mask(&dropout(probability, 0, 0, 0), 4).iter().map(|&x| u8::from(x > 0.0)).collect();
        assert_eq!(kept, expected, "{probability}");
    }
}

#[test]
fn a_word_equal_to_the_bound_keeps_its_element() {
    let first_word = f64::from(0x6627_E8D5_u32);
    for (bound, expected) in [(first_word, 1), (first_word + 1.0, 0)] {
        assert_eq!(num_kept(&mask(&dropout(bound / 2.0_f64.powi(32), 0, 0, 0), 1)), expected, "{bound}");
    }
}

#[test]
fn nothing_is_copied_where_nothing_is_dropped() {
    let inputs = ones((3, 4));
    assert_eq!(dropout(0.5, 0, 0, 0).forward(&inputs, false).unwrap().id(), inputs.id());
    assert_eq!(dropout(0.0, 0, 0, 0).forward(&inputs, true).unwrap().id(), inputs.id());
    assert_ne!(dropout(0.5, 0, 0, 0).forward(&inputs, true).unwrap().id(), inputs.id());
    let empty = ones((0, 4));
    assert_eq!(dropout(0.5, 0, 0, 0).forward(&empty, true).unwrap().id(), empty.id());
}

#[test]
fn as_many_are_kept_as_the_probability_says_and_the_expectation_stays() {
    let len = 1 << 18;
    for probability in [0.01, 0.1, 0.5, 0.9, 0.99] {
        let mask = mask(&dropout(probability, 1, 3, 5), len);
        let (n, sigma) = (len as f64, (len as f64 * probability * (1.0 - probability)).sqrt());
        let kept = num_kept(&mask) as f64;
        assert!((kept - n * (1.0 - probability)).abs() < 5.0 * sigma, "{probability}: {kept} kept");
        let sum: f64 = mask.iter().map(|&element| f64::from(element)).sum();
        // The rounding of the scale to `f32` is far below the deviation.
        assert!((sum - n).abs() < 5.0 * sigma / (1.0 - probability) + n * 1e-6, "{probability}: sum {sum}");
    }
}

#[test]
fn each_lane_of_a_block_is_kept_equally_often_and_independently_of_its_neighbor() {
    let mask = mask(&dropout(0.5, 0, 11, 1), 1 << 18);
    let kept =
        |pick: &dyn Fn(&[f32; 4]) -> bool| mask.as_chunks::<4>().0.iter().filter(|block| pick(block)).count() as f64;
    let num_blocks = f64::from(1 << 16);
    let check = |count: f64, rate: f64, what: &str| {
        let sigma = (num_blocks * rate * (1.0 - rate)).sqrt();
        assert!((count - num_blocks * rate).abs() < 5.0 * sigma, "{what}: {count}");
    };
    for lane in 0..4 {
        check(kept(&|block| block[lane] > 0.0), 0.5, "one lane");
        check(kept(&|block| block[lane] > 0.0 && block[(lane + 1) % 4] > 0.0), 0.25, "two lanes");
    }
}

#[test]
fn a_mask_is_that_of_its_seed_layer_and_draws_alone() {
    let original = mask(&dropout(0.5, 2, 7, 3), 256);
    assert_eq!(original, mask(&dropout(0.5, 2, 7, 3), 256));
    for (layer, seed, draws) in
        [(3, 7, 3), (2, 8, 3), (2, 7 | 1 << 32, 3), (2, 7, 4), (2, 7, 3 | 1 << 32), (3, 7, 2), (7, 2, 3)]
    {
        let other = mask(&dropout(0.5, layer, seed, draws), 256);
        let num_equal = original.iter().zip(&other).filter(|(a, b)| a.to_bits() == b.to_bits()).count();
        // Mean 128, standard deviation 8 of independent masks.
        assert!((88..=168).contains(&num_equal), "layer {layer}, seed {seed}, draws {draws}: {num_equal} of 256");
    }
}

#[test]
fn the_mask_changes_only_when_the_counter_advances() {
    let counter = DrawCounter::new(1, &Device::Cpu).unwrap();
    let dropout = Dropout::new(0.3, 0, &counter).unwrap();
    let mut seen: Vec<Vec<u32>> = Vec::new();
    for _ in 0..20 {
        counter.advance().unwrap();
        let found = bits(&mask(&dropout, 64));
        assert_eq!(found, bits(&mask(&dropout, 64)));
        assert!(!seen.contains(&found));
        seen.push(found);
    }
    for (draws, expected) in (1..).zip(&seen) {
        counter.set(draws).unwrap();
        assert_eq!(bits(&mask(&dropout, 64)), *expected, "draw {draws}");
    }
}

#[test]
fn the_backward_pass_uses_the_mask_of_the_forward_pass() {
    let counter = DrawCounter::new(4, &Device::Cpu).unwrap();
    let dropout = Dropout::new(0.4, 6, &counter).unwrap();
    counter.advance().unwrap();
    let inputs =
        Var::from_tensor(&Tensor::arange(1.0_f32, 31.0, &Device::Cpu).unwrap().reshape((5, 6)).unwrap()).unwrap();
    let outputs = dropout.forward(&inputs, true).unwrap();
    let expected = mask(&dropout, 30);
    counter.advance().unwrap();
    let gradients = outputs.sum_all().unwrap().backward().unwrap();
    let gradient = gradients.get(&inputs).unwrap();
    assert_eq!(gradient.dims(), [5, 6]);
    assert_eq!(bits(&values(gradient)), bits(&expected));
    assert!(gradients.get(counter.as_var()).is_none());
    assert_ne!(expected, mask(&dropout, 30), "the counter has moved on");
}

#[test]
fn the_order_in_memory_of_the_inputs_does_not_matter() {
    let dropout = dropout(0.5, 0, 9, 2);
    let inputs = Tensor::arange(1.0_f32, 36.0, &Device::Cpu).unwrap().reshape((5, 7)).unwrap().t().unwrap();
    let packed = inputs.contiguous().unwrap();
    let found = [&inputs, &packed].map(|inputs| bits(&values(&dropout.forward(inputs, true).unwrap())));
    assert_eq!(found[0], found[1]);
}

#[test]
fn other_float_types_drop_the_same_elements() {
    let dropout = dropout(0.5, 0, 9, 2);
    let expected = mask(&dropout, 50);
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let outputs = dropout.forward(&ones(50).to_dtype(dtype).unwrap(), true).unwrap();
        assert_eq!(outputs.dtype(), dtype);
        assert_eq!(values(&outputs.to_dtype(DType::F32).unwrap()), expected, "{dtype:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, rng_seed: RngSeed::Fixed(43), ..Default::default()
    })]

    #[test]
    fn element_i_takes_word_i_mod_4_of_block_i_div_4_whatever_the_length(
        seed: u64,
        draws: u64,
        layer: u32,
        probability in 0.001..0.999_f64,
        len in 1..70_usize,
    ) {
        let found = mask(&dropout(probability, layer, seed, draws), len);
        let scale = (1.0 / (1.0 - probability)) as f32;
        let naive: Vec<f32> = (0..len)
            .map(|i| {
                let counter = [(i / 4) as u32, layer, draws as u32, (draws >> 32) as u32];
                let word = philox4x32(counter, [seed as u32, (seed >> 32) as u32])[i % 4];
                if word < (probability * 4_294_967_296.0).round() as u32 { 0.0 } else { scale }
            })
            .collect();
        prop_assert_eq!(bits(&found), bits(&naive));
    }

    #[test]
    fn more_elements_or_another_shape_leave_the_first_ones_as_they_are(
        seed: u64,
        draws: u64,
        rows in 1..9_usize,
        columns in 1..9_usize,
        more in 0..40_usize,
    ) {
        let dropout = dropout(0.5, 0, seed, draws);
        let long = mask(&dropout, rows * columns + more);
        let matrix = values(&dropout.forward(&ones((rows, columns)), true).unwrap());
        prop_assert_eq!(bits(&matrix), bits(&long[..rows * columns]));
    }

    #[test]
    fn a_higher_probability_drops_what_a_lower_one_drops(a in 0.01..0.99_f64, b in 0.01..0.99_f64, seed: u64) {
        let (low, high) = (a.min(b), a.max(b));
        let (low, high) = (mask(&dropout(low, 0, seed, 0), 64), mask(&dropout(high, 0, seed, 0), 64));
        prop_assert!(low.iter().zip(&high).all(|(low, high)| *low > 0.0 || *high <= 0.0));
    }
}
