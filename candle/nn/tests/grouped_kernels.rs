//! The index arithmetic of the kernels for convolutions, pooling and gradients of layer norm, compiled for the processor, against candle's loop over groups and the
//! gradients that are composed of tensor operations.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use candle::{DType, Device, Result, Tensor, Var};

/// N, groups, channels of a group before and after, sizes of the input and the window, padding, stride, dilation.
type Case = (usize, usize, [usize; 2], [usize; 2], [usize; 2], usize, usize, usize);

const CASES: &[Case] = &[
    (2, 6, [1, 1], [7, 5], [3, 3], 1, 1, 1),
    (1, 4, [1, 1], [9, 9], [7, 7], 3, 1, 1),
    (2, 3, [1, 2], [8, 6], [3, 2], 0, 2, 1),
    (2, 2, [3, 2], [7, 8], [3, 3], 2, 2, 2),
    (1, 5, [2, 1], [6, 9], [1, 4], 0, 3, 1),
    (3, 2, [4, 4], [5, 5], [5, 5], 2, 1, 1),
    (1, 3, [1, 1], [4, 4], [2, 2], 3, 2, 3),
    // One dimension.
    (2, 4, [1, 1], [1, 11], [1, 4], 2, 1, 1),
    (2, 3, [2, 3], [1, 10], [1, 3], 1, 2, 2),
];

/// Size of the input, window, stride.
type Pool = ([usize; 4], (usize, usize), (usize, usize));

const POOLS: &[Pool] = &[
    ([2, 3, 7, 6], (3, 3), (2, 2)),
    ([1, 2, 9, 8], (3, 3), (1, 1)),
    ([2, 1, 8, 7], (2, 2), (3, 3)),
    ([1, 4, 6, 6], (2, 2), (2, 2)),
    ([1, 1, 10, 11], (4, 3), (1, 2)),
    ([1, 3, 4, 5], (1, 1), (1, 1)),
    ([1, 2, 5, 5], (1, 1), (2, 2)),
    ([1, 2, 1, 9], (1, 4), (1, 2)),
    ([3, 2, 5, 5], (5, 5), (1, 1)),
];

fn program(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Who links Rust programs has a C compiler under this name.
    let compiled = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wno-unused-function", "-x", "c", "-I"])
        .arg(here.join("../core/src/backward"))
        .arg(here.join("tests/grouped_kernels.c"))
        .args(["-x", "none", "-lm", "-o"])
        .arg(&target)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    target
}

fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 30) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// What the program says of sizes and numbers.
fn run(program: &Path, of: &[&str], sizes: &[usize], values: &[f64]) -> Result<Vec<f64>> {
    let mut bytes: Vec<u8> = sizes.iter().flat_map(|&size| u32::try_from(size).unwrap().to_le_bytes()).collect();
    bytes.extend(values.iter().copied().flat_map(f64::to_le_bytes));
    let mut running = Command::new(program).args(of).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    running.stdin.take().unwrap().write_all(&bytes)?;
    let found = running.wait_with_output()?;
    assert!(found.status.success(), "{}", found.status);
    Ok(found.stdout.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect())
}

fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()
}

#[test]
fn gradients_of_pooling_by_a_kernel_have_the_bits_of_the_composition() -> Result<()> {
    let program = program("pool_kernels");
    for &(shape @ [samples, channels, height, width], window, stride) in POOLS {
        let distinct = numbers(shape.iter().product(), 1);
        // Zeros of both signs among them.
        let ties: Vec<_> = distinct.iter().map(|value| (value * 1.4).round()).collect();
        let mut holes = ties.clone();
        holes.iter_mut().skip(3).step_by(11).for_each(|value| *value = f64::NAN);
        for (x, name, dtype) in [distinct, ties, holes].into_iter().flat_map(|x| {
            [("f32", DType::F32), ("f64", DType::F64), ("bf16", DType::BF16)]
                .map(|(name, dtype)| (x.clone(), name, dtype))
        }) {
            for is_zero in [false, true] {
                let x = Var::from_tensor(&Tensor::from_slice(&x, &shape, &Device::Cpu)?.to_dtype(dtype)?)?;
                let y = x.max_pool2d_with_stride(window, stride)?;
                let (_, _, rows, columns) = y.dims4()?;
                let g = match is_zero {
                    false => numbers(y.elem_count(), 3),
                    true => vec![-0.0; y.elem_count()],
                };
                let g = Tensor::from_vec(g, y.dims(), &Device::Cpu)?.to_dtype(dtype)?;
                let gradient = |of: &Tensor| read((of * &g)?.sum_all()?.backward()?.get(&x).unwrap());
                let expected = [gradient(&y)?, gradient(&x.avg_pool2d_with_stride(window, stride)?)?].concat();
                let part = (&g / (window.0 * window.1) as f64)?;
                let sizes = [samples, channels, 1, 1, height, width, window.0, window.1, rows, columns];
                let steps = [0, 0, stride.0, stride.1, 1, 1];
                let operands = [read(&x)?, read(&y)?, read(&g)?, read(&part)?].concat();
                let found = run(&program, &[name], &[&sizes[..], &steps].concat(), &operands)?;
                let is_same = |a: &f64, b: &f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                assert_eq!(found.len(), expected.len());
                for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    assert!(
                        is_same(found, expected),
                        "{shape:?} {window:?} {stride:?} {name} {index}: {found:?}, expected {expected:?}"
                    );
                }
            }
        }
    }
    Ok(())
}

fn is_close(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9)
}

#[test]
fn windows_as_columns_give_the_result_and_the_gradients_of_a_convolution_of_one_group() -> Result<()> {
    let program = program("column_kernels");
    for ([samples, channels, outputs], [height, width], [tall, wide], padding, stride, dilation) in [
        ([2, 3, 4], [7, 6], [3, 3], 1, 1, 1),
        ([1, 2, 5], [9, 8], [3, 2], 2, 2, 1),
        ([3, 4, 2], [8, 7], [2, 3], 0, 3, 2),
        ([2, 1, 3], [5, 5], [5, 5], 4, 1, 1),
        ([2, 3, 2], [1, 11], [1, 4], 2, 1, 2),
    ] {
        let tensor = |dims: [usize; 4], seed| {
            Var::from_tensor(&Tensor::from_vec(numbers(dims.iter().product(), seed), &dims, &Device::Cpu)?)
        };
        let (x, w) = (tensor([samples, channels, height, width], 1)?, tensor([outputs, channels, tall, wide], 2)?);
        // Padding is that of both dimensions.
        let down = if tall == 1 { 0 } else { padding };
        let y = x.pad_with_zeros(2, down, down)?.pad_with_zeros(3, padding, padding)?;
        let y = y.conv2d(&w, 0, stride, dilation, 1)?;
        let (_, _, rows, columns) = y.dims4()?;
        let g = tensor([samples, outputs, rows, columns], 3)?;
        let gradients = (&y * g.as_tensor())?.sum_all()?.backward()?;
        let by_output = |of: &Tensor| of.transpose(0, 1)?.reshape((outputs, ()));
        let weights = w.reshape((outputs, ()))?;
        let given = weights.t()?.matmul(&by_output(&g)?)?;
        let sizes = [samples, channels, 1, 1, height, width, tall, wide, rows, columns];
        let steps = [down, padding, stride, stride, dilation, dilation];
        let operands = [read(&x)?, read(&given)?].concat();
        let found = run(&program, &["columns"], &[&sizes[..], &steps].concat(), &operands)?;
        let (seen, folded) = found.split_at(given.elem_count());
        assert!(is_close(folded, &read(gradients.get(&x).unwrap())?), "{sizes:?} {steps:?}");
        let seen = Tensor::from_slice(seen, given.dims(), &Device::Cpu)?;
        assert!(is_close(&read(&weights.matmul(&seen)?)?, &read(&by_output(&y)?)?), "{sizes:?} {steps:?}");
        let of_weights = by_output(&g)?.matmul(&seen.t()?)?;
        assert!(is_close(&read(&of_weights)?, &read(gradients.get(&w).unwrap())?), "{sizes:?} {steps:?}");
    }
    Ok(())
}

#[test]
fn gradients_of_layer_norm_by_kernels_are_those_of_the_composition() -> Result<()> {
    let program = program("norm_kernels");
    let eps = 1e-2_f32;
    // Rows, width, threads of a row, rows of a slice.
    for (rows, width, threads, per_slice) in
        [(1, 1, 32, 64), (5, 7, 32, 2), (130, 3, 32, 64), (9, 40, 32, 8), (3, 300, 256, 1), (17, 33, 256, 16)]
    {
        let tensor = |seed, dims: &[usize]| {
            Var::from_tensor(&Tensor::from_vec(numbers(dims.iter().product(), seed), dims, &Device::Cpu)?)
        };
        let (x, alpha, beta) = (tensor(1, &[rows, width])?, tensor(2, &[width])?, tensor(3, &[width])?);
        let g = tensor(4, &[rows, width])?;
        let y = candle_nn::ops::layer_norm(&x, &alpha, &beta, eps)?;
        let gradients = (&y * g.as_tensor())?.sum_all()?.backward()?;
        let expected = [&x, &alpha, &beta].map(|of| read(gradients.get(of).unwrap()));
        let expected = expected.into_iter().collect::<Result<Vec<_>>>()?.concat();
        let sizes = [rows, width, threads, per_slice, rows.div_ceil(per_slice), eps.to_bits() as usize];
        let found = run(&program, &["norm"], &sizes, &[read(&x)?, read(&alpha)?, read(&g)?].concat())?;
        assert!(is_close(&found, &expected), "{sizes:?}: {found:?}, expected {expected:?}");
    }
    Ok(())
}

#[test]
fn kernels_of_grouped_convolutions_are_those_of_the_loop_over_groups() -> Result<()> {
    let program = program("grouped_kernels");
    for &(samples, groups, [inputs, outputs], [height, width], [tall, wide], padding, stride, dilation) in CASES {
        let is_flat = height == 1;
        let dims = |dims: [usize; 4]| {
            dims.into_iter()
                .enumerate()
                .filter(|(dim, _)| !is_flat || *dim != 2)
                .map(|(_, size)| size)
                .collect::<Vec<_>>()
        };
        let tensor = |values: &[f64], of: [usize; 4]| Tensor::from_slice(values, dims(of), &Device::Cpu);
        let (of_x, of_w) = ([samples, groups * inputs, height, width], [groups * outputs, inputs, tall, wide]);
        let (x, w) = (numbers(of_x.iter().product(), 1), numbers(of_w.iter().product(), 2));
        let (x_var, w_var) = (Var::from_tensor(&tensor(&x, of_x)?)?, Var::from_tensor(&tensor(&w, of_w)?)?);
        let y = if is_flat {
            x_var.conv1d(&w_var, padding, stride, dilation, groups)?
        } else {
            x_var.conv2d(&w_var, padding, stride, dilation, groups)?
        };
        let (rows, columns) = if is_flat { (1, y.dim(2)?) } else { (y.dim(2)?, y.dim(3)?) };
        let g = numbers(y.elem_count(), 3);
        let gradients = (&y * tensor(&g, [samples, groups * outputs, rows, columns])?)?.sum_all()?.backward()?;
        let mut expected = read(&y)?;
        expected.extend(read(gradients.get(&x_var).unwrap())?);
        expected.extend(read(gradients.get(&w_var).unwrap())?);
        let single = expected.len();
        expected.extend(read(&x_var.to_dtype(DType::F32)?.to_dtype(DType::BF16)?)?);

        let steps = |of: usize, of_one_row: usize| [if is_flat { of_one_row } else { of }, of];
        let sizes = [samples, groups, inputs, outputs, height, width, tall, wide, rows, columns];
        let steps = [steps(padding, 0), steps(stride, 1), steps(dilation, 1)].concat();
        let found = run(&program, &[], &[&sizes[..], &steps].concat(), &[x, w, g].concat())?;
        assert_eq!(found.len(), expected.len());
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let allowed = if index < single { 1e-11 } else { 0.0 };
            assert!((found - expected).abs() <= allowed, "{index} of {single}: {found}, expected {expected}");
        }
    }
    Ok(())
}
