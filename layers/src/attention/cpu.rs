//! Attention of `f32` on the CPU as one operation, heads beside each other on as many threads as there are.
//!
//! Composed of candle's operations it copies queries, keys and values, makes a dozen matrices of positions against positions, computes what
//! is hidden as well, and takes exponentials one by one. What is not finite in a value, or in a key on the way back, reaches rows of its
//! block that do not see it, as it does there in all. Here some rows of scores are there at a time, forward and again on the way back.

use std::ops::Range;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::options::PackedShape;
use crate::cpu::{EXP_LIMIT, Matrix, elements, exp, for_each_chunk, multiply_here, with_elements};

/// Rows of scores that are there at once.
const ROWS: usize = 64;
/// Multiplications from which heads are spread over threads.
const WORTH_THREADS: usize = 1 << 20;
/// Partial results of a sum or a maximum, which are formed beside each other.
const LANES: usize = 8;

/// Of contiguous `f32`.
pub(super) fn attention(qkv: &Tensor, shape: PackedShape, is_causal: bool) -> Result<Tensor> {
    qkv.apply_op1(Attention { shape, is_causal })
}

struct Attention {
    shape: PackedShape,
    is_causal: bool,
}

impl CustomOp1 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let qkv = elements((storage, layout))?;
        let result = self.for_each_head(1, &|head, result| self.forward(self.factors(qkv, head), result));
        Ok((CpuStorage::F32(result), Shape::from(self.shape.output())))
    }

    fn bwd(&self, qkv: &Tensor, _seen: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let gradient = with_elements(qkv, |values| {
            with_elements(&upstream.contiguous()?, |upstream| {
                Ok(self.for_each_head(3, &|head, gradient| {
                    let upstream = self.columns(upstream, 1, head, 0);
                    self.backward(self.factors(values, head), upstream, gradient);
                }))
            })
        })?;
        Tensor::from_vec(gradient, qkv.shape(), qkv.device()).map(Some)
    }
}

impl Attention {
    /// Part `part` of `parts` of a head in (B, T, parts·H·d): (T, d). Heads are counted through all batches.
    fn columns<'a>(&self, values: &'a [f32], parts: usize, head: usize, part: usize) -> Matrix<'a> {
        let PackedShape { length, heads, width, .. } = self.shape;
        let distance = parts * heads * width;
        let of_batch = &values[head / heads * length * distance..][..length * distance];
        Matrix::of_columns(of_batch, distance, length, ((part * heads + head % heads) * width, width))
    }

    /// Queries, keys and values of a head.
    fn factors<'a>(&self, qkv: &'a [f32], head: usize) -> [Matrix<'a>; 3] {
        [0, 1, 2].map(|part| self.columns(qkv, 3, head, part))
    }

    /// Has `run` write (parts, T, d) of each head; the result is (B, T, parts·H·d).
    fn for_each_head(&self, parts: usize, run: &(impl Fn(usize, &mut [f32]) + Sync)) -> Vec<f32> {
        let PackedShape { batches, length, heads, width } = self.shape;
        let of_head = parts * length * width;
        let mut by_heads = vec![0.0_f32; batches * heads * of_head];
        let size = by_heads.len().saturating_mul(length);
        for_each_chunk(&mut by_heads, of_head, size >= WORTH_THREADS, run);
        let mut result = vec![0.0_f32; by_heads.len()];
        for (index, row) in result.chunks_exact_mut(width).enumerate() {
            let (head, part, position) = (index % heads, index / heads % parts, index / heads / parts);
            let first = (position / length * heads + head) * of_head + (part * length + position % length) * width;
            row.copy_from_slice(&by_heads[first..][..width]);
        }
        result
    }

    /// Some rows, and the positions that the last of them sees.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let (length, is_causal) = (self.shape.length, self.is_causal);
        (0..length).step_by(ROWS).map(move |first| {
            let end = length.min(first + ROWS);
            (first..end, if is_causal { end } else { length })
        })
    }

    /// softmax(q kᵀ / √d) of some rows, with `seen` columns; what a row does not see has 0, which makes NaN of a value that is not finite.
    fn weights(&self, [q, k, _]: [Matrix<'_>; 3], rows: Range<usize>, seen: usize) -> Vec<f32> {
        let scale = self.shape.scale_f32();
        let mut scores = multiply_here(q.rows(rows.clone()), k.rows(0..seen).transposed());
        for (row, scores) in rows.zip(scores.chunks_exact_mut(seen)) {
            let (own, hidden) = scores.split_at_mut(if self.is_causal { row + 1 } else { seen });
            let max = fold(own, f32::NEG_INFINITY, f32::max);
            own.iter_mut().for_each(|score| *score = weight(scale * (*score - max)));
            let sum = fold(own, 0.0, |sum, weight| sum + weight);
            own.iter_mut().for_each(|weight| *weight /= sum);
            hidden.fill(0.0);
        }
        scores
    }

    /// Writes what a head sees, (T, d).
    fn forward(&self, factors: [Matrix<'_>; 3], result: &mut [f32]) {
        let width = self.shape.width;
        for (rows, seen) in self.blocks() {
            let weights = self.weights(factors, rows.clone(), seen);
            let values = factors[2].rows(0..seen);
            let product = multiply_here(Matrix::new(&weights, rows.len(), seen), values);
            result[rows.start * width..rows.end * width].copy_from_slice(&product);
        }
    }

    /// Adds the gradients of queries, keys and values, (3, T, d), to zeros.
    fn backward(&self, factors: [Matrix<'_>; 3], upstream: Matrix<'_>, gradient: &mut [f32]) {
        let PackedShape { length, width, .. } = self.shape;
        let scale = self.shape.scale_f32();
        let [q, k, v] = factors;
        let (of_q, others) = gradient.split_at_mut(length * width);
        let (of_k, of_v) = others.split_at_mut(length * width);
        for (rows, seen) in self.blocks() {
            let weights = self.weights(factors, rows.clone(), seen);
            let upstream = upstream.rows(rows.clone());
            let mut of_scores = multiply_here(upstream, v.rows(0..seen).transposed());
            for (of_scores, weights) in of_scores.chunks_exact_mut(seen).zip(weights.chunks_exact(seen)) {
                of_scores.iter_mut().zip(weights).for_each(|(gradient, weight)| *gradient *= weight);
                let sum = fold(of_scores, 0.0, |sum, gradient| sum + gradient);
                let of_row = of_scores.iter_mut().zip(weights);
                of_row.for_each(|(gradient, weight)| *gradient = scale * (*gradient - weight * sum));
            }
            let weights = Matrix::new(&weights, rows.len(), seen);
            let of_scores = Matrix::new(&of_scores, rows.len(), seen);
            add(&mut of_q[rows.start * width..], &multiply_here(of_scores, k.rows(0..seen)));
            add(of_k, &multiply_here(of_scores.transposed(), q.rows(rows)));
            add(of_v, &multiply_here(weights.transposed(), upstream));
        }
    }
}

/// eˣ for x ≤ 0, and 0 where `exp` ends.
fn weight(x: f32) -> f32 {
    if x < -EXP_LIMIT { 0.0 } else { exp(x) }
}

/// Adds `more` to the first of `sums`.
fn add(sums: &mut [f32], more: &[f32]) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// All of `values` one after the other in each lane, then the lanes.
fn fold(values: &[f32], start: f32, next: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &value)| *lane = next(*lane, value));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &value)| *lane = next(*lane, value));
    lanes.into_iter().fold(start, next)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::AttentionOptions;
    use crate::testing::{assert_close, numbers, read, tensor};

    /// What is seen, and the gradient of a weighted sum of it.
    fn run(values: &[f64], [batches, length, heads, width]: [usize; 4], causal: bool, dtype: DType) -> [Vec<f64>; 2] {
        let qkv = tensor(values, &[batches, length, 3 * heads * width]).to_dtype(dtype).unwrap();
        let qkv = Var::from_tensor(&qkv).unwrap();
        let seen = crate::attention(&qkv, &AttentionOptions { num_heads: heads, causal }).unwrap();
        let mix = tensor(&numbers(7, seen.elem_count()), seen.dims()).to_dtype(dtype).unwrap();
        let gradients = (&seen * mix).unwrap().sum_all().unwrap().backward().unwrap();
        [read(&seen), read(gradients.get(&qkv).unwrap())]
    }

    #[test]
    fn values_and_gradients_are_those_of_f64() {
        // Blocks that are not full, more than one, rows shorter than the lanes, and enough for threads.
        for shape in
            [[1, 1, 1, 1], [2, 5, 3, 4], [1, 63, 2, 7], [2, 64, 1, 16], [3, 130, 2, 33], [1, 70, 4, 64], [1, 3, 2, 200]]
        {
            let [batches, length, heads, width] = shape;
            let values = numbers(1, batches * length * 3 * heads * width);
            for causal in [false, true] {
                let found = run(&values, shape, causal, DType::F32);
                let expected = run(&values, shape, causal, DType::F64);
                for (what, (found, expected)) in ["seen", "gradient"].into_iter().zip(found.iter().zip(&expected)) {
                    let largest = expected.iter().fold(1.0, |largest: f64, value| largest.max(value.abs()));
                    assert_close(found, expected, 4e-6 * largest, &format!("{what} of {shape:?}, causal {causal}"));
                }
            }
        }
    }

    #[test]
    fn heads_have_the_same_bits_on_threads_and_on_one() {
        let shape = PackedShape { batches: 2, length: 130, heads: 2, width: 33 };
        let number = |index: usize| f32::from(u16::try_from(index * 37 % 1013).unwrap()) / 500.0 - 1.0;
        let values: Vec<f32> = (0..2 * 130 * 3 * 2 * 33).map(number).collect();
        const { assert!(2 * 130 * 2 * 33 * 130 >= WORTH_THREADS) };
        let attention = Attention { shape, is_causal: true };
        let together =
            attention.for_each_head(1, &|head, result| attention.forward(attention.factors(&values, head), result));
        for head in 0..4 {
            let mut alone = vec![0.0_f32; 130 * 33];
            attention.forward(attention.factors(&values, head), &mut alone);
            for (position, row) in alone.chunks_exact(33).enumerate() {
                let first = ((head / 2 * 130 + position) * 2 + head % 2) * 33;
                assert_eq!(row, &together[first..][..33]);
            }
        }
    }

    #[test]
    fn a_tensor_that_is_not_contiguous_has_the_same_result() {
        let values = tensor(&numbers(5, 2 * 24 * 6), &[2, 24, 6]).to_dtype(DType::F32).unwrap();
        let turned = values.transpose(1, 2).unwrap();
        let options = AttentionOptions { num_heads: 2, causal: true };
        let seen = |qkv: &Tensor| read(&crate::attention(qkv, &options).unwrap());
        assert_eq!(seen(&turned), seen(&turned.contiguous().unwrap()));
    }

    #[test]
    fn a_key_that_is_no_number_or_infinite_shows_where_it_is_seen() {
        for planted in [f32::NAN, f32::INFINITY] {
            let mut values = vec![0.5_f32; 9 * 6];
            // The key of position 4.
            values[4 * 6 + 2] = planted;
            let qkv = Tensor::from_vec(values, (1, 9, 6), &Device::Cpu).unwrap();
            let seen = crate::attention(&qkv, &AttentionOptions { num_heads: 1, causal: true }).unwrap();
            for (index, value) in read(&seen).into_iter().enumerate() {
                assert_eq!(value.is_nan(), index / 2 >= 4, "{planted} seen at {index}: {value}");
            }
        }
    }

    #[test]
    fn what_is_far_below_the_largest_score_weighs_nothing() {
        for below in [-87.0_f32, -200.0, f32::NEG_INFINITY] {
            // One coordinate: q = 1, keys `below` and 0, values 3e38 and 1.
            let qkv = Tensor::new(&[[[1.0, below, 3e38], [1.0, 0.0, 1.0]]], &Device::Cpu).unwrap();
            let seen = crate::attention(&qkv, &AttentionOptions { num_heads: 1, causal: false }).unwrap();
            assert_eq!(read(&seen), [1.0, 1.0], "{below}");
        }
    }
}
