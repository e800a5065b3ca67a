//! The matrices against inner products one by one, for every instruction set and number of threads.

use proptest::prelude::*;

use super::*;
use crate::testing::{HOST, layout, random, seed};

fn geometry(lens: &[usize]) -> Geometry {
    let names: Vec<String> = (0..lens.len()).map(|index| format!("p{index:02}")).collect();
    let segments: Vec<_> =
        names.iter().zip(lens).enumerate().map(|(i, (name, len))| (name.as_str(), *len, seed(1), i % 3 == 1)).collect();
    let mut segments = segments;
    segments.push(("z", 1, HOST, false));
    Geometry::of(&layout(&segments)).unwrap()
}

fn rows(count: usize, num_elements: usize) -> Vec<Vec<f32>> {
    (0..count as u64).map(|row| random(num_elements, 900 + row)).collect()
}

fn slices(rows: &[Vec<f32>]) -> Vec<&[f32]> {
    rows.iter().map(Vec::as_slice).collect()
}

fn found(rows: &[&[f32]], geometry: &Geometry) -> Vec<u64> {
    let mut grams = vec![f64::NAN; geometry.parts().len() * rows.len() * rows.len()];
    part_grams(rows, geometry, &mut grams);
    grams.into_iter().map(f64::to_bits).collect()
}

/// Chunk by chunk, pair by pair.
fn expected(rows: &[&[f32]], geometry: &Geometry) -> Vec<u64> {
    let size = rows.len();
    let mut grams = vec![0.0; geometry.parts().len() * size * size];
    for chunk in geometry.chunks() {
        for i in 0..size {
            for j in 0..size {
                let sum = cpu::dot(&rows[i][chunk.range.clone()], &rows[j][chunk.range.clone()]);
                grams[(chunk.part * size + i) * size + j] += sum;
            }
        }
    }
    grams.into_iter().map(f64::to_bits).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_pair_is_the_sum_of_its_chunks(count in 0_usize..14, lens in prop::collection::vec(0_usize..6000, 1..5)) {
        let geometry = geometry(&lens);
        let rows = rows(count, geometry.num_elements());
        prop_assert_eq!(found(&slices(&rows), &geometry), expected(&slices(&rows), &geometry));
    }
}

#[test]
fn windows_of_sixty_four_rows_fit() {
    let geometry = geometry(&[4096 + 13, 3]);
    let rows = rows(64, geometry.num_elements());
    assert_eq!(found(&slices(&rows), &geometry), expected(&slices(&rows), &geometry));
}

#[test]
fn numbers_beyond_all_bounds_stay_in_their_pairs() {
    let geometry = geometry(&[20]);
    let mut rows = rows(3, 21);
    rows[1][4] = f32::NAN;
    rows[2][17] = f32::INFINITY;
    let mut grams = vec![0.0; 2 * 9];
    part_grams(&slices(&rows), &geometry, &mut grams);
    let finite: Vec<bool> = grams[..9].iter().map(|sum| sum.is_finite()).collect();
    assert_eq!(finite, [true, false, false, false, false, false, false, false, false]);
    assert!(grams[9..].iter().all(|sum| sum.is_finite()));
}

#[test]
fn threads_change_no_bit() {
    let geometry = geometry(&[200_000, 70_001, 13]);
    let rows = rows(5, geometry.num_elements());
    let with = |threads| crate::cpu::with_threads(threads, || found(&slices(&rows), &geometry));
    assert_eq!(with(1), expected(&slices(&rows), &geometry));
    for threads in [2, 3] {
        assert_eq!(with(threads), with(1), "{threads} threads");
    }
}

/// The chunks' sums by one instruction set.
fn with_simd<S: Simd>(simd: S, rows: &[&[f32]], geometry: &Geometry) -> Vec<u64> {
    let num_pairs = rows.len() * (rows.len() + 1) / 2;
    let mut partials = vec![0.0; geometry.chunks().len() * num_pairs];
    let piece = Piece { chunks: geometry.chunks(), partials: &mut partials, num_pairs };
    simd.vectorize(Pass { piece, rows, scratch: &mut Scratch::default() });
    partials.into_iter().map(f64::to_bits).collect()
}

#[test]
fn instruction_sets_agree_bit_for_bit() {
    let geometry = geometry(&[5000, 77]);
    for count in 1..10 {
        let rows = rows(count, geometry.num_elements());
        let rows = slices(&rows);
        let scalar = with_simd(pulp::Scalar, &rows, &geometry);
        assert_eq!(with_simd(pulp::Scalar256b, &rows, &geometry), scalar, "{count} rows, vectors of four");
        assert_eq!(with_simd(pulp::Scalar512b, &rows, &geometry), scalar, "{count} rows, vectors of eight");
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = pulp::x86::V3::try_new() {
                assert_eq!(with_simd(simd, &rows, &geometry), scalar, "{count} rows with AVX2");
            }
            if let Some(simd) = pulp::x86::V4::try_new() {
                assert_eq!(with_simd(simd, &rows, &geometry), scalar, "{count} rows with AVX-512");
            }
        }
    }
}
