//! Convolutions in groups on a GPU: the kernels of `candle_core::grouped` beside candle's loop over groups and `f64` on the CPU, and what they save.
//! Gradients of pooling by one kernel: the bits of those that the CPU composes. Gradients of layer norm by kernels, beside `f64` on the CPU.
//!
//! `cargo run --release --manifest-path candle/Cargo.toml -p candle-zoo --features cuda --example grouped` prints JSON. A bound that is
//! broken is an error.

use std::error::Error;
use std::time::Instant;

use candle_core::grouped::set_direct;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Module, VarBuilder, VarMap};
use candle_transformers::models as m;
use serde_json::{Map, Value, json};

/// N, groups, channels of a group before and after, sizes of the input and the window, padding, stride, dilation.
type Case = (usize, usize, [usize; 2], [usize; 2], [usize; 2], usize, usize, usize);

const CASES: &[Case] = &[
    (8, 40, [1, 1], [56, 56], [7, 7], 3, 1, 1),
    (8, 96, [1, 1], [56, 57], [3, 3], 1, 2, 1),
    (2, 144, [1, 1], [28, 28], [5, 5], 2, 2, 1),
    (3, 7, [1, 2], [17, 9], [3, 2], 0, 1, 1),
    (2, 4, [8, 8], [14, 14], [3, 3], 1, 1, 1),
    (2, 32, [4, 4], [14, 13], [3, 3], 1, 2, 1),
    (1, 3, [2, 5], [20, 11], [3, 3], 4, 1, 3),
    (2, 5, [32, 16], [6, 6], [3, 1], 1, 1, 2),
    (4, 2, [1, 1], [5, 5], [5, 5], 0, 1, 1),
    (2, 6, [1, 1], [4, 4], [2, 2], 3, 3, 2),
    (2, 64, [1, 1], [1, 100], [1, 4], 3, 1, 1),
    (2, 8, [3, 2], [1, 33], [1, 5], 2, 2, 2),
    // One group, windows that overlap, leave something out or reach beyond: products with columns.
    (3, 1, [8, 12], [15, 14], [3, 3], 1, 1, 1),
    (2, 1, [16, 24], [17, 20], [3, 3], 1, 2, 1),
    (2, 1, [5, 7], [19, 16], [3, 2], 2, 3, 2),
    (1, 1, [3, 32], [40, 40], [7, 7], 3, 2, 1),
    (2, 1, [6, 9], [1, 50], [1, 5], 3, 2, 2),
    // One group, windows side by side: products.
    (2, 1, [40, 160], [28, 28], [1, 1], 0, 1, 1),
    (3, 1, [24, 48], [14, 12], [2, 2], 0, 2, 1),
    (1, 1, [3, 64], [32, 32], [4, 4], 0, 4, 1),
    (4, 1, [16, 32], [1, 60], [1, 5], 0, 5, 1),
];
/// Size of the input, window, stride.
type Pool = ([usize; 4], (usize, usize), (usize, usize));

const POOLS: &[Pool] = &[
    ([4, 32, 57, 56], (3, 3), (2, 2)),
    ([2, 5, 33, 40], (3, 3), (1, 1)),
    ([1, 1, 31, 29], (2, 2), (3, 3)),
    ([3, 16, 28, 28], (2, 2), (2, 2)),
    ([2, 7, 24, 35], (4, 3), (1, 2)),
    ([2, 3, 9, 9], (1, 1), (1, 1)),
    ([2, 8, 1, 100], (1, 4), (1, 2)),
    ([2, 64, 7, 7], (7, 7), (1, 1)),
];
/// Rows and width of what is normed.
const NORMS: &[(usize, usize)] = &[
    (1, 9),
    (5, 7),
    (300, 40),
    (8192, 128),
    (777, 1024),
    (130, 1030),
    (64, 5000),
    (1, 33),
    (7, 64),
    (9, 500),
    (3, 9000),
];
/// Type, and what gradients and results may be apart from `f64`, as a share of the largest.
const TYPES: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::BF16, 1e-2), (DType::F16, 2e-3)];

fn numbers(shape: &[usize], seed: u64) -> Result<Tensor> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 30) as f64 - 1.0
    };
    Tensor::from_vec((0..shape.iter().product()).map(|_| next()).collect::<Vec<_>>(), shape, &Device::Cpu)
}

fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Result, gradient of the input, gradient of the weight.
fn evaluate(x: &Tensor, w: &Tensor, case: &Case) -> Result<[Vec<f64>; 3]> {
    let &(_, groups, _, [height, _], _, padding, stride, dilation) = case;
    let (x, w) = (Var::from_tensor(x)?, Var::from_tensor(w)?);
    let y = match height {
        1 => x.squeeze(2)?.conv1d(&w.squeeze(2)?, padding, stride, dilation, groups)?,
        _ => x.conv2d(&w, padding, stride, dilation, groups)?,
    };
    let slopes = numbers(y.dims(), 3)?.to_dtype(DType::F32)?.to_dtype(y.dtype())?.to_device(y.device())?;
    let gradients = (&y * slopes)?.sum_all()?.backward()?;
    let of = |var: &Var| match gradients.get(var) {
        Some(gradient) => read(gradient),
        None => candle_core::bail!("a variable has no gradient"),
    };
    Ok([read(&y)?, of(&x)?, of(&w)?])
}

/// Representable numbers of a type between two values.
fn ulps(a: f64, b: f64, dtype: DType) -> f64 {
    let digits = match dtype {
        DType::F32 => 23,
        DType::BF16 => 7,
        _ => 10,
    };
    let size = a.abs().max(b.abs()).max(f64::MIN_POSITIVE);
    (a - b).abs() / 2.0_f64.powi(size.log2().floor() as i32 - digits)
}

fn relative(found: &[f64], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(1e-2_f64, |largest, value| largest.max(value.abs()));
    let differences =
        found.iter().zip(expected).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f64::INFINITY });
    differences.fold(0.0, f64::max) / largest
}

fn compare(device: &Device) -> std::result::Result<Value, Box<dyn Error>> {
    let mut all = Map::new();
    for (dtype, allowed) in TYPES {
        let (mut num_differing, mut count, mut most_ulps, mut of_largest) = (0, 0, 0.0_f64, 0.0_f64);
        let mut errors = [0.0_f64; 3];
        for case in CASES {
            let &(samples, groups, [inputs, outputs], [height, width], [tall, wide], ..) = case;
            let tensor = |shape: [usize; 4], seed| numbers(&shape, seed)?.to_dtype(DType::F32)?.to_dtype(dtype);
            let x = tensor([samples, groups * inputs, height, width], 1)?;
            let w = tensor([groups * outputs, inputs, tall, wide], 2)?;
            let expected = evaluate(&x.to_dtype(DType::F64)?, &w.to_dtype(DType::F64)?, case)?;
            let (x, w) = (x.to_device(device)?, w.to_device(device)?);
            set_direct(false);
            let by_loop = evaluate(&x, &w, case)?;
            set_direct(true);
            let found = evaluate(&x, &w, case)?;
            if found != evaluate(&x, &w, case)? {
                return Err(format!("{case:?} of {dtype:?}: other bits in a second run").into());
            }
            set_direct(false);
            count += found[0].len();
            num_differing += found[0].iter().zip(&by_loop[0]).filter(|(a, b)| a != b).count();
            // Of numbers that are not what is left of larger ones.
            let scale = by_loop[0].iter().fold(0.0_f64, |largest, value| largest.max(value.abs())) / 16.0;
            for (a, b) in found[0].iter().zip(&by_loop[0]).filter(|(_, b)| b.abs() > scale) {
                most_ulps = most_ulps.max(ulps(*a, *b, dtype));
            }
            of_largest = of_largest.max(relative(&found[0], &by_loop[0]));
            for ((error, found), expected) in errors.iter_mut().zip(&found).zip(&expected) {
                let own = relative(found, expected);
                if own > allowed {
                    return Err(format!("{case:?} of {dtype:?}: {own:e} apart from f64, allowed {allowed:e}").into());
                }
                *error = error.max(own);
            }
        }
        all.insert(format!("{dtype:?}").to_lowercase(), json!({
            "elements": count, "differ_from_loop": num_differing, "most_ulps_from_loop_of_large_elements": most_ulps,
            "most_from_loop_of_largest": of_largest, "result_from_f64": errors[0], "input_gradient_from_f64": errors[1],
            "weight_gradient_from_f64": errors[2],
        }));
    }
    Ok(Value::Object(all))
}

/// The number of elements of gradients whose bits are those of the CPU; any other is an error.
fn pooling(device: &Device) -> std::result::Result<Value, Box<dyn Error>> {
    let mut all = Map::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let mut count = 0;
        for case in POOLS {
            let &(shape, window, stride) = case;
            // Some of the largest are alike, some are single.
            for x in [numbers(&shape, 1)?, (numbers(&shape, 1)? * 2.0)?.round()?] {
                let gradients = |device: &Device| -> Result<Vec<u64>> {
                    let x = Var::from_tensor(&x.to_dtype(DType::F32)?.to_dtype(dtype)?.to_device(device)?)?;
                    let mut found = Vec::new();
                    for y in [x.max_pool2d_with_stride(window, stride)?, x.avg_pool2d_with_stride(window, stride)?] {
                        let slopes = numbers(y.dims(), 3)?.to_dtype(DType::F32)?.to_dtype(dtype)?.to_device(device)?;
                        let gradients = (&y * slopes)?.sum_all()?.backward()?;
                        let Some(gradient) = gradients.get(&x) else { candle_core::bail!("the input has no gradient") };
                        found.extend(read(gradient)?.into_iter().map(f64::to_bits));
                    }
                    Ok(found)
                };
                let found = gradients(device)?;
                if found != gradients(&Device::Cpu)? {
                    return Err(format!("pooling {case:?} of {dtype:?}: other bits than on the CPU").into());
                }
                count += found.len();
            }
        }
        all.insert(format!("{dtype:?}").to_lowercase(), count.into());
    }
    Ok(Value::Object(all))
}

/// How far gradients of x, alpha and beta are from `f64`, of the largest; more than is allowed, or other bits in a second run, is an error.
fn norms(device: &Device) -> std::result::Result<Value, Box<dyn Error>> {
    let mut all = Map::new();
    for (dtype, allowed) in TYPES.into_iter().chain([(DType::F64, 1e-12)]) {
        let mut errors = [0.0_f64; 3];
        for &(rows, width) in NORMS {
            let dims = [&[rows, width][..], &[width], &[width]];
            let value = |(dims, seed)| Var::from_tensor(&numbers(dims, seed)?.to_dtype(dtype)?.to_device(device)?);
            let on_gpu = dims.into_iter().zip(1..).map(value).collect::<Result<Vec<_>>>()?;
            let wide = |of: &Var| Var::from_tensor(&of.to_device(&Device::Cpu)?.to_dtype(DType::F64)?);
            let on_cpu = on_gpu.iter().map(wide).collect::<Result<Vec<_>>>()?;
            let gradients = |of: &[Var]| -> Result<Vec<Vec<f64>>> {
                let y = candle_nn::ops::layer_norm(&of[0], &of[1], &of[2], 1e-5)?;
                // The same numbers in all types.
                let slopes = numbers(y.dims(), 9)?.to_dtype(DType::BF16)?.to_dtype(y.dtype())?.to_device(y.device())?;
                let found = (&y * slopes)?.sum_all()?.backward()?;
                let gradient = |of: &Var| match found.get(of) {
                    Some(gradient) => read(gradient),
                    None => candle_core::bail!("a variable has no gradient"),
                };
                of.iter().map(gradient).collect()
            };
            let found = gradients(&on_gpu)?;
            // Of one operand alone, and of an input and a gradient that do not lie side by side.
            for index in 0..3 {
                let mut alone = on_gpu.iter().map(|of| of.detach()).collect::<Vec<_>>();
                alone[index] = on_gpu[index].as_tensor().clone();
                let y = candle_nn::ops::layer_norm(
                    &alone[0].t()?.contiguous()?.t()?.contiguous()?,
                    &alone[1],
                    &alone[2],
                    1e-5,
                )?;
                let slopes = numbers(y.dims(), 9)?.to_dtype(DType::BF16)?.to_dtype(dtype)?.to_device(device)?;
                let store = (y.t()? * slopes.t()?)?.sum_all()?.backward()?;
                let of_one = store.get(&on_gpu[index]).map(read).transpose()?;
                if of_one.as_ref() != Some(&found[index]) {
                    return Err(
                        format!("norm {rows} x {width} of {dtype:?}: other bits of operand {index} alone").into()
                    );
                }
            }
            if found != gradients(&on_gpu)? {
                return Err(format!("norm {rows} x {width} of {dtype:?}: other bits in a second run").into());
            }
            for ((error, found), expected) in errors.iter_mut().zip(&found).zip(&gradients(&on_cpu)?) {
                let own = relative(found, expected);
                if own > allowed {
                    let said =
                        format!("norm {rows} x {width} of {dtype:?}: {own:e} apart from f64, allowed {allowed:e}");
                    return Err(said.into());
                }
                *error = error.max(own);
            }
        }
        all.insert(
            format!("{dtype:?}").to_lowercase(),
            json!({
                "input_from_f64": errors[0], "scale_from_f64": errors[1], "shift_from_f64": errors[2],
            }),
        );
    }
    Ok(Value::Object(all))
}

/// Median of several runs, in ms.
fn time(device: &Device, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for index in 0..13 {
        device.synchronize()?;
        let began = Instant::now();
        run()?;
        device.synchronize()?;
        if index >= 3 {
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn model(device: &Device, size: usize, build: fn(VarBuilder) -> Result<Box<dyn Module>>) -> Result<Value> {
    let variables = VarMap::new();
    let network = build(VarBuilder::from_varmap(&variables, DType::F32, device))?;
    let x = numbers(&[8, 3, size, size], 4)?.to_dtype(DType::F32)?.to_device(device)?;
    let mut found = Map::new();
    for is_direct in [false, true] {
        set_direct(is_direct);
        let name = if is_direct { "direct" } else { "loop" };
        found.insert(format!("{name}.forward_ms"), time(device, || network.forward(&x).map(drop))?.into());
        found.insert(
            format!("{name}.gradients_ms"),
            time(device, || network.forward(&x)?.sqr()?.mean_all()?.backward().map(drop))?.into(),
        );
    }
    set_direct(false);
    Ok(Value::Object(found))
}

fn convnext(vb: VarBuilder) -> Result<Box<dyn Module>> {
    Ok(Box::new(m::convnext::convnext(&m::convnext::Config::atto(), 1000, vb)?))
}

fn efficientnet(vb: VarBuilder) -> Result<Box<dyn Module>> {
    Ok(Box::new(m::efficientnet::EfficientNet::new(vb, m::efficientnet::MBConvConfig::b0(), 1000)?))
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let device = Device::new_cuda_with_stream(0)?;
    let mut all = Map::new();
    all.insert("kernels".to_owned(), compare(&device)?);
    all.insert("norms".to_owned(), norms(&device)?);
    all.insert("pooling.elements_of_same_bits".to_owned(), pooling(&device)?);
    for size in [32, 224] {
        all.insert(format!("convnext_atto.{size}"), model(&device, size, convnext)?);
        all.insert(format!("efficientnet_b0.{size}"), model(&device, size, efficientnet)?);
    }
    println!("{}", serde_json::to_string_pretty(&Value::Object(all))?);
    Ok(())
}
