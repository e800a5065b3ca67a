//! Checks decoding on a device against the same in `f64` on the CPU.

use candle_core::{DType, Device, Result, Tensor};

use super::compare::{SplitMix, largest, largest_difference, read};
use crate::{KvCache, Position};

/// Outputs have 24, 8 and 11 significant bits.
const NUMBERS: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::BF16, 1e-2), (DType::F16, 2e-3)];

/// (B, H, G, d), capacity and tokens; the last tokens may be beyond the capacity.
const CASES: &[([usize; 4], usize, usize)] = &[
    ([1, 12, 1, 64], 512, 140),
    ([2, 3, 4, 128], 100, 70),
    ([3, 2, 2, 32], 64, 66),
    ([1, 2, 3, 256], 40, 30),
    ([1, 1, 8, 64], 4200, 140),
    ([2, 3, 2, 24], 30, 12),
];

/// Name, largest error relative to the largest value of the result in `f64`, and the error allowed. What is named `again` is how far
/// a second sequence of the same numbers in the same cache is from the first: nothing is allowed.
///
/// # Errors
/// When the device fails.
/// # Sync
/// one device-to-host copy per token
pub fn decoding_cases(device: &Device) -> Result<Vec<(String, f64, f64)>> {
    let mut found = Vec::new();
    for (shape, capacity, tokens) in CASES {
        for (dtype, allowed) in NUMBERS {
            let inputs = inputs(*shape, *tokens, dtype)?;
            let expected = decode(&inputs, *shape, *capacity, DType::F64, &Device::Cpu, 1)?.remove(0);
            let results = decode(&inputs, *shape, *capacity, dtype, device, 2)?;
            let name = format!("decode {shape:?} of {capacity} {dtype:?}");
            // What has no place is no number on both sides, and nothing else is.
            let (is_none, values): (Vec<bool>, Vec<f64>) =
                expected.iter().map(|value| (value.is_nan(), if value.is_nan() { 0.0 } else { *value })).unzip();
            let clean = |found: &[f64]| -> Vec<f64> {
                let pairs = found.iter().zip(&is_none);
                pairs.map(|(value, is_none)| if *is_none && value.is_nan() { 0.0 } else { *value }).collect()
            };
            let [first, second] = [0, 1].map(|run: usize| clean(&results[run]));
            let error = largest_difference(&values, &first) / largest(&values, 1e-2);
            found.push((format!("{name}: result"), error, allowed));
            found.push((format!("{name}: again"), largest_difference(&first, &second), 0.0));
        }
    }
    Ok(found)
}

/// Queries, keys and values of all tokens, (B, …, n, d), of numbers that the type has.
fn inputs([batch, heads, groups, width]: [usize; 4], tokens: usize, dtype: DType) -> Result<[Tensor; 3]> {
    let mut numbers = SplitMix(5);
    let mut tensor = |heads: usize| {
        let shape = (batch, heads, tokens, width);
        let count = batch * heads * tokens * width;
        let values: Vec<f64> =
            (0..count).map(|_| (numbers.word() >> 11) as f64 / 2.0_f64.powi(52) * 2.0 - 1.0).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(DType::F32)?.to_dtype(dtype)
    };
    Ok([tensor(heads * groups)?, tensor(heads)?, tensor(heads)?])
}

/// The answers to all tokens one after the other, as often as asked, with one cache.
fn decode(
    inputs: &[Tensor; 3],
    [batch, heads, _, width]: [usize; 4],
    capacity: usize,
    dtype: DType,
    device: &Device,
    times: usize,
) -> Result<Vec<Vec<f64>>> {
    let position = Position::new(capacity, device)?;
    let cache = KvCache::new((batch, heads, width), &position, dtype)?;
    let mut runs = Vec::new();
    for _ in 0..times {
        position.set(0)?;
        let mut found = Vec::new();
        for token in 0..inputs[0].dim(2)? {
            let part = |of: &Tensor| of.narrow(2, token, 1)?.contiguous()?.to_device(device)?.to_dtype(dtype);
            let seen = cache.attend(&part(&inputs[0])?, &part(&inputs[1])?, &part(&inputs[2])?, &position)?;
            found.extend(read(&seen)?);
            position.advance(1)?;
        }
        runs.push(found);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::decoding_cases;

    #[test]
    fn all_cases_hold_on_the_cpu() {
        let found = decoding_cases(&Device::Cpu).unwrap();
        let wrong: Vec<_> = found.iter().filter(|(_, error, allowed)| error > allowed || error.is_nan()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert_eq!(found.len(), 36);
    }
}
