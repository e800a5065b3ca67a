//! Decoding against attention over the whole sequence.

use candle_core::{DType, Device, Tensor};

use super::{KvCache, Position};
use crate::testing::{assert_close, numbers, read, tensor};
use crate::{AttentionOptions, attention};

const BATCH: usize = 2;
const LENGTH: usize = 7;
const WIDTH: usize = 3;

/// Queries of `heads`, keys and values of `kv_heads` heads, (B, heads, T, d).
fn sequence(heads: usize, kv_heads: usize) -> [Tensor; 3] {
    [(1, heads), (2, kv_heads), (3, kv_heads)].map(|(seed, heads)| {
        let dims = [BATCH, heads, LENGTH, WIDTH];
        tensor(&numbers(seed, dims.iter().product()), &dims)
    })
}

/// The same by [`attention`], which wants a key of its own for each head of queries.
fn whole([q, k, v]: &[Tensor; 3], groups: usize) -> Vec<f64> {
    let heads = q.dims()[1];
    let repeated = |x: &Tensor| {
        let dims = (BATCH, heads / groups, groups, LENGTH, WIDTH);
        x.unsqueeze(2).unwrap().broadcast_as(dims).unwrap().reshape((BATCH, heads, LENGTH, WIDTH)).unwrap()
    };
    let columns = |x: &Tensor| x.transpose(1, 2).unwrap().reshape((BATCH, LENGTH, heads * WIDTH)).unwrap();
    let packed = Tensor::cat(&[columns(q), columns(&repeated(k)), columns(&repeated(v))], 2).unwrap();
    let found = attention(&packed, &AttentionOptions { num_heads: heads, causal: true }).unwrap();
    read(&found.reshape((BATCH, LENGTH, heads, WIDTH)).unwrap().transpose(1, 2).unwrap().contiguous().unwrap())
}

/// Feeds the sequence in pieces.
fn decode(parts: &[Tensor; 3], pieces: &[usize], cache: &KvCache, position: &Position) -> Tensor {
    let mut start = 0;
    let mut found = Vec::new();
    for &count in pieces {
        let [q, k, v] = [0, 1, 2].map(|part| parts[part].narrow(2, start, count).unwrap());
        found.push(cache.attend(&q, &k, &v, position).unwrap());
        position.advance(count).unwrap();
        start += count;
    }
    Tensor::cat(&found, 2).unwrap()
}

#[test]
fn a_sequence_in_pieces_is_attended_as_a_whole_one() {
    for (heads, groups) in [(1, 1), (3, 1), (4, 2), (6, 3)] {
        for pieces in [&[1; LENGTH][..], &[LENGTH], &[3, 1, 1, 2], &[1, 6]] {
            for capacity in [LENGTH, LENGTH + 4] {
                let parts = sequence(heads, heads / groups);
                let position = Position::new(capacity, &Device::Cpu).unwrap();
                let cache = KvCache::new((BATCH, heads / groups, WIDTH), &position, DType::F64).unwrap();
                let found = decode(&parts, pieces, &cache, &position);
                let what = format!("{heads} heads in groups of {groups}, {pieces:?}, {capacity} places");
                assert_close(&read(&found.contiguous().unwrap()), &whole(&parts, groups), 1e-12, &what);
            }
        }
    }
}

#[test]
fn a_second_sequence_sees_nothing_of_the_first() {
    let parts = sequence(2, 2);
    let position = Position::new(LENGTH, &Device::Cpu).unwrap();
    let cache = KvCache::new((BATCH, 2, WIDTH), &position, DType::F64).unwrap();
    let other = parts.each_ref().map(|part| (part * -3.0).unwrap());
    decode(&other, &[LENGTH], &cache, &position);
    position.set(0).unwrap();
    let found = decode(&parts, &[2, 1, 4], &cache, &position);
    assert_close(&read(&found.contiguous().unwrap()), &whole(&parts, 1), 1e-12, "after another sequence");

    position.set(0).unwrap();
    decode(&parts.each_ref().map(|part| (part / 0.0).unwrap()), &[LENGTH], &cache, &position);
    cache.clear().unwrap();
    position.set(0).unwrap();
    let found = decode(&parts, &[LENGTH], &cache, &position);
    assert_close(&read(&found.contiguous().unwrap()), &whole(&parts, 1), 1e-12, "after one that was not finite");
}

#[test]
fn what_has_no_place_is_nan_and_changes_nothing() {
    let parts = sequence(1, 1);
    let position = Position::new(4, &Device::Cpu).unwrap();
    let cache = KvCache::new((BATCH, 1, WIDTH), &position, DType::F64).unwrap();
    let found = read(&decode(&parts, &[3, 2, 1, 1], &cache, &position).contiguous().unwrap());
    for (index, number) in found.iter().enumerate() {
        let place = index / WIDTH % LENGTH;
        assert_eq!(number.is_nan(), place >= 4, "token {place}");
    }
    position.set(3).unwrap();
    let last = parts.each_ref().map(|part| part.narrow(2, 3, 1).unwrap());
    let again = read(&cache.attend(&last[0], &last[1], &last[2], &position).unwrap());
    let before: Vec<f64> = (0..BATCH).flat_map(|b| found[(b * LENGTH + 3) * WIDTH..][..WIDTH].to_vec()).collect();
    assert_close(&again, &before, 0.0, "the fourth token");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let position = Position::new(4, &Device::Cpu).unwrap();
    let cache = KvCache::new((1, 2, 3), &position, DType::F32).unwrap();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    for (q, k, dtype, part) in [
        ([1, 3, 1, 3], [1, 2, 1, 3], DType::F32, "expected queries"),
        ([1, 2, 1, 3], [1, 2, 2, 3], DType::F32, "expected queries"),
        ([1, 2, 0, 3], [1, 2, 0, 3], DType::F32, "expected queries"),
        ([2, 2, 1, 3], [2, 2, 1, 3], DType::F32, "expected queries"),
        ([1, 2, 1, 3], [1, 2, 1, 3], DType::F64, "dtype mismatch"),
        ([1, 2, 5, 3], [1, 2, 5, 3], DType::F32, "expected 1 to 4 tokens at once, found 5"),
    ] {
        let (q, k) = (zeros(&q, dtype), zeros(&k, dtype));
        let error = cache.attend(&q, &k, &k, &position).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let cache = KvCache::new((1, 0, 3), &position, DType::F32).unwrap();
    let [q, k] = [[1, 2, 1, 3], [1, 0, 1, 3]].map(|dims| zeros(&dims, DType::F32));
    assert!(cache.attend(&q, &k, &k, &position).unwrap_err().to_string().contains("expected queries"));
    assert!(Position::new(0, &Device::Cpu).unwrap_err().to_string().contains("1 to 2147483648"));
    assert!(position.set(5).unwrap_err().to_string().contains("up to 4"));
    assert!(KvCache::new((1, 1, 1), &position, DType::U32).is_err());
}
