//! Combinations on both paths, and what does not fit.

use candle_core::{DType, Device};

use super::*;
use crate::grad::GradientBufferPool;
use crate::testing::{HOST, bits, layout, random, seed, values, vector};

fn geometry() -> Geometry {
    Geometry::of(&layout(&[("a", 5, HOST, false), ("b", 3, seed(1), true), ("c", 4, seed(1), false)])).unwrap()
}

fn leases(pool: &GradientBufferPool, rows: &[Vec<f32>]) -> Vec<GradientLease> {
    let lease = |row: &Vec<f32>| {
        let lease = pool.lease(row.len(), DType::F32, &Device::Cpu).unwrap();
        lease.as_tensor().slice_set(&vector(row), 0, 0).unwrap();
        lease
    };
    rows.iter().map(lease).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

#[test]
fn kernels_candle_and_the_device_s_numbers_give_the_same_bits() {
    let (geometry, pool) = (geometry(), GradientBufferPool::new());
    for count in 1..6 {
        let rows: Vec<Vec<f32>> = (0..count).map(|row| random(12, row)).collect();
        let coefficients = random(2 * rows.len(), 50);
        let factors = vec![0.5, 1.0, 0.75];
        let mut results = Vec::new();
        for path in &[Passes::Kernel, Passes::Composed] {
            for on_device in [false, true] {
                let (coefficients, factors) = if on_device {
                    (Coefficients::Device(vector(&coefficients)), Factors::Device(vector(&factors)))
                } else {
                    (Coefficients::Host(wide(&coefficients)), Factors::Host(wide(&factors)))
                };
                let combination = Combination::new(leases(&pool, &rows), coefficients, factors).unwrap();
                let formed = combination.materialize_on(path, &geometry).unwrap();
                results.push(bits(&values(formed.as_tensor())));
            }
        }
        let element = |k: usize, index: usize, at: usize| rows[k][index] * coefficients[at];
        let isolated: f32 =
            (1..rows.len()).fold(element(0, 6, rows.len()), |sum, k| sum + element(k, 6, rows.len() + k));
        assert_eq!(results[0][6], isolated.to_bits());
        let last: f32 = (1..rows.len()).fold(element(0, 11, 0), |sum, k| sum + element(k, 11, k));
        assert_eq!(results[0][11], (last * 0.75).to_bits());
        assert!(results.iter().all(|result| *result == results[0]), "{count} rows: {results:?}");
    }
    assert_eq!(pool.stats().outstanding, 0);
}

#[test]
fn a_plain_row_is_left_as_it_is() {
    let (geometry, pool) = (geometry(), GradientBufferPool::new());
    let row = random(12, 1);
    for path in &[Passes::Kernel, Passes::Composed] {
        let lease = leases(&pool, std::slice::from_ref(&row)).remove(0);
        let formed = Combination::plain(lease).materialize_on(path, &geometry).unwrap();
        assert_eq!(bits(&values(formed.as_tensor())), bits(&row));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let pool = GradientBufferPool::new();
    let make = |lens: &[usize], coefficients: usize| {
        let rows: Vec<Vec<f32>> = lens.iter().map(|len| vec![0.0; *len]).collect();
        let coefficients = Coefficients::Host(vec![0.5; coefficients]);
        Combination::new(leases(&pool, &rows), coefficients, Factors::Host(vec![1.0; 2]))
    };
    let check = |error: Error, message: &str| assert!(error.to_string().starts_with(message), "{error}");
    check(make(&[], 0).unwrap_err(), "rows of a combination: expected at least 1, found 0");
    check(make(&[12, 12], 2).unwrap_err(), "coefficients of a combination: expected 4, found 2");
    check(make(&[12, 11], 4).unwrap_err(), "rows of a combination: expected F32 [12]");
    let formed = |lens: &[usize]| make(lens, 2).unwrap().materialize(&geometry()).unwrap_err();
    check(formed(&[11]), "shape of the gradient: expected [12], found [11]");
    check(formed(&[12]), "factors of a combination: expected 3, found 2");
}
