//! Gradients of operations that candle 0.11.1 leaves without: in `f64` against central differences, for every element of every input.
#![expect(clippy::unwrap_used, reason = "tests")]

use candle::{DType, Device, Module, Result, Tensor, Var, D};
use candle_nn::attention::{flash_attn, AttnMask};
use candle_nn::kv_cache::{ConcatKvCache, InterleavedKvCache, KvCache, RotatingKvCache};
use candle_nn::{ops, rotary_emb, Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose1d, ConvTranspose1dConfig};

/// Numbers in [-1, 1), no two alike, of a seed.
fn numbers(seed: u64, shape: &[usize]) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn read(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Compares gradients of a weighted sum of the results with central differences in steps of `step`.
#[track_caller]
fn check_within(
    dtype: DType,
    step: f64,
    tolerance: f64,
    shapes: &[&[usize]],
    run: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let inputs: Vec<Tensor> =
        shapes.iter().zip(1..).map(|(shape, seed)| numbers(seed, shape).to_dtype(dtype).unwrap()).collect();
    let variables: Vec<Var> = inputs.iter().map(|input| Var::from_tensor(input).unwrap()).collect();
    let tensors: Vec<Tensor> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let result = run(&tensors).unwrap();
    let mix = numbers(99, result.dims()).to_dtype(dtype).unwrap();
    let gradients = (&result * &mix).unwrap().sum_all().unwrap().backward().unwrap();
    let mix = read(&mix);
    let value = |inputs: &[Tensor]| -> f64 { read(&run(inputs).unwrap()).iter().zip(&mix).map(|(y, m)| y * m).sum() };
    for (index, variable) in variables.iter().enumerate() {
        let found = gradients.get(variable).unwrap_or_else(|| panic!("input {index} has no gradient"));
        assert_eq!(found.dims(), variable.dims(), "input {index}");
        let start = read(&inputs[index]);
        for (element, found) in read(found).into_iter().enumerate() {
            let at = |offset: f64| {
                let mut moved = start.clone();
                moved[element] += offset;
                let mut inputs = inputs.clone();
                let moved = Tensor::from_vec(moved, inputs[index].dims(), &Device::Cpu).unwrap();
                inputs[index] = moved.to_dtype(dtype).unwrap();
                value(&inputs)
            };
            let expected = (at(step) - at(-step)) / (2.0 * step);
            assert!(
                (found - expected).abs() <= tolerance,
                "input {index}, element {element}: {found}, expected {expected}"
            );
        }
    }
}

#[track_caller]
fn check(shapes: &[&[usize]], run: impl Fn(&[Tensor]) -> Result<Tensor>) {
    check_within(DType::F64, 1e-5, 1e-6, shapes, run);
}

#[test]
fn softmax_of_the_last_dimension() {
    for shape in [&[3][..], &[2, 1], &[2, 5], &[2, 1, 3, 7], &[1, 33]] {
        check(&[shape], |x| ops::softmax_last_dim(&x[0]));
    }
}

#[test]
fn rms_norm_of_the_last_dimension() {
    for (shape, width) in [(&[1, 4][..], 4), (&[3, 1], 1), (&[2, 3, 5], 5), (&[2, 1, 2, 9], 9)] {
        check(&[shape, &[width]], |x| ops::rms_norm(&x[0], &x[1], 1e-2));
        check(&[shape, &[width]], |x| candle_nn::RmsNorm::new(x[1].clone(), 1e-2).forward(&x[0]));
    }
}

#[test]
fn layer_norm_of_the_last_dimension() {
    for (shape, width) in [(&[1, 4][..], 4), (&[3, 1], 1), (&[2, 3, 5], 5), (&[2, 1, 2, 9], 9)] {
        check(&[shape, &[width], &[width]], |x| ops::layer_norm(&x[0], &x[1], &x[2], 1e-2));
        check(&[shape, &[width], &[width]], |x| {
            candle_nn::LayerNorm::new(x[1].clone(), x[2].clone(), 1e-2).forward(&x[0])
        });
    }
}

#[test]
fn parts_of_a_tensor_and_one_that_is_used_twice() {
    check(&[&[4, 6]], |x| {
        let part = x[0].narrow(0, 1, 2)?;
        ops::softmax_last_dim(&part)? + ops::softmax_last_dim(&(part * 2.0)?)?
    });
    check(&[&[6, 4], &[6], &[6]], |x| {
        ops::layer_norm(&x[0].t()?.contiguous()?, &x[1], &x[2], 1e-2)?.broadcast_mul(&x[1])
    });
    check(&[&[2, 3, 4, 4]], |x| x[0].upsample_nearest2d(8, 8)? + x[0].upsample_nearest2d(8, 8)?.sqr()?);
    check(&[&[1, 2, 6, 6], &[4, 1, 3, 3]], |x| x[0].transpose(2, 3)?.conv2d(&x[1].transpose(2, 3)?, 1, 1, 1, 2));
}

#[test]
fn rotary_embeddings() {
    type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let by_head: [&[usize]; 3] = [&[1, 1, 1, 2], &[2, 3, 4, 6], &[1, 2, 5, 4]];
    for (rope, by_time) in
        [(rotary_emb::rope as Rope, false), (rotary_emb::rope_i, false), (rotary_emb::rope_thd, true)]
    {
        for dims in by_head {
            let shape =
                if by_time { [dims[0], dims[2], dims[1], dims[3]] } else { [dims[0], dims[1], dims[2], dims[3]] };
            let angles = [dims[2], dims[3] / 2];
            check(&[&shape, &angles, &angles], |x| rope(&x[0], &x[1], &x[2]));
            let of_each = [dims[0], dims[2], dims[3] / 2];
            check(&[&shape, &of_each, &of_each], |x| rope(&x[0], &x[1], &x[2]));
        }
    }
}

#[test]
fn pooling_with_any_window_and_stride() {
    let cases: [(&[usize], (usize, usize), (usize, usize)); 8] = [
        (&[1, 1, 4, 4], (2, 2), (2, 2)),
        (&[2, 2, 5, 5], (2, 2), (2, 2)),
        (&[1, 2, 7, 6], (3, 3), (2, 2)),
        (&[1, 2, 5, 6], (3, 2), (1, 1)),
        (&[1, 1, 8, 7], (2, 2), (3, 3)),
        (&[1, 3, 4, 5], (1, 1), (1, 1)),
        (&[1, 2, 1, 9], (1, 4), (1, 2)),
        (&[2, 1, 3, 3], (3, 3), (1, 1)),
    ];
    for (shape, window, stride) in cases {
        check(&[shape], |x| x[0].max_pool2d_with_stride(window, stride));
        check(&[shape], |x| x[0].avg_pool2d_with_stride(window, stride));
    }
}

#[test]
fn the_first_of_equal_elements_is_the_largest() {
    let x = Var::new(&[[[[1.0_f64, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]], &Device::Cpu).unwrap();
    let gradients = x.max_pool2d_with_stride(2, 1).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(read(gradients.get(&x).unwrap()), [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn upsampling_to_any_size() {
    for (size, target) in [(1, 1), (1, 3), (3, 7), (4, 8), (5, 3)] {
        check(&[&[2, 2, size]], |x| x[0].upsample_nearest1d(target));
    }
    for ((height, width), (tall, wide)) in
        [((1, 1), (2, 3)), ((2, 3), (4, 6)), ((3, 2), (7, 5)), ((4, 5), (3, 3)), ((2, 2), (4, 2))]
    {
        let shape = [2, 2, height, width];
        check(&[&shape], |x| x[0].upsample_nearest2d(tall, wide));
        for corners in [false, true] {
            check(&[&shape], |x| x[0].upsample_bilinear2d(tall, wide, corners));
            check(&[&shape], |x| x[0].upsample_bilinear2d_with_scale(2.3, 1.5, corners));
        }
    }
}

#[test]
fn convolutions_whole_in_groups_and_depthwise() {
    // Input channels, output channels, groups, size, kernel, padding, stride, dilation.
    let cases = [
        (2, 3, 1, 6, 3, 1, 1, 1),
        (3, 2, 1, 7, 3, 1, 2, 1),
        (4, 4, 4, 6, 3, 1, 1, 1),
        (4, 8, 4, 7, 3, 1, 2, 1),
        (6, 4, 2, 6, 3, 0, 2, 1),
        (4, 6, 2, 9, 2, 2, 3, 2),
        (2, 2, 2, 5, 1, 0, 1, 1),
        (2, 4, 2, 8, 5, 2, 1, 1),
    ];
    for (inputs, outputs, groups, size, kernel, padding, stride, dilation) in cases {
        let config = Conv2dConfig { padding, stride, dilation, groups, ..Conv2dConfig::default() };
        let shapes: [&[usize]; 3] =
            [&[2, inputs, size, size + 1], &[outputs, inputs / groups, kernel, kernel], &[outputs]];
        check(&shapes, |x| Conv2d::new(x[1].clone(), Some(x[2].clone()), config).forward(&x[0]));
        let config = Conv1dConfig { padding, stride, dilation, groups, ..Conv1dConfig::default() };
        let shapes: [&[usize]; 2] = [&[2, inputs, size], &[outputs, inputs / groups, kernel]];
        check(&shapes, |x| Conv1d::new(x[1].clone(), None, config).forward(&x[0]));
    }
}

#[test]
fn convolutions_whose_windows_lie_side_by_side() {
    for (samples, height, width, window) in [(1, 3, 4, 1), (2, 3, 4, 1), (1, 4, 6, 2), (3, 6, 2, 2), (2, 3, 3, 3)] {
        let shapes: [&[usize]; 2] = [&[samples, 3, height, width], &[5, 3, window, window]];
        check(&shapes, |x| x[0].conv2d(&x[1], 0, window, 1, 1));
        // The channels of a place side by side in memory, before and after.
        check(&[&[samples, height, width, 3], shapes[1]], |x| {
            x[0].permute((0, 3, 1, 2))?.conv2d(&x[1], 0, window, 1, 1)?.permute((0, 2, 3, 1))?.sqr()
        });
        check(&[&[samples, 3, width], &[5, 3, window]], |x| x[0].conv1d(&x[1], 0, window, 1, 1));
    }
}

#[test]
fn a_grouped_convolution_has_the_bits_of_its_groups() {
    let (x, w) = (numbers(1, &[2, 6, 9, 8]), numbers(2, &[4, 3, 3, 3]));
    let groups = [0, 1].map(|group| {
        x.narrow(1, 3 * group, 3).unwrap().conv2d(&w.narrow(0, 2 * group, 2).unwrap(), 1, 2, 1, 1).unwrap()
    });
    assert_eq!(read(&x.conv2d(&w, 1, 2, 1, 2).unwrap()), read(&Tensor::cat(&groups, 1).unwrap()));
}

#[test]
fn transposed_convolutions() {
    for (inputs, outputs, groups, length, kernel, padding, output_padding, stride, dilation) in [
        (2, 3, 1, 5, 3, 0, 0, 1, 1),
        (2, 3, 1, 5, 4, 1, 0, 2, 1),
        (2, 2, 1, 4, 4, 1, 1, 3, 1),
        (3, 1, 1, 6, 3, 2, 0, 2, 2),
        (4, 1, 4, 5, 4, 1, 0, 2, 1),
    ] {
        let config = ConvTranspose1dConfig { padding, output_padding, stride, dilation, groups };
        // Without padding and with more samples than one, the CPU's forward pass is wrong in candle 0.11.1.
        let samples = if padding == 0 { 1 } else { 2 };
        let shapes: [&[usize]; 2] = [&[samples, inputs, length], &[inputs, outputs, kernel]];
        check(&shapes, |x| ConvTranspose1d::new(x[1].clone(), None, config).forward(&x[0]));
        if groups == 1 {
            let shapes: [&[usize]; 2] = [&[2, inputs, length, length], &[inputs, outputs, kernel, kernel]];
            check(&shapes, |x| x[0].conv_transpose2d(&x[1], padding, output_padding, stride, dilation));
        }
    }
}

#[test]
fn what_was_written_over_has_no_gradient() {
    let indexes = Tensor::new(&[[0_u32, 2], [1, 0]], &Device::Cpu).unwrap();
    check(&[&[2, 4], &[2, 2]], |x| x[0].scatter(&indexes, &x[1], 1));
}

#[test]
fn what_was_added_to_keeps_its_gradient() {
    let indexes = Tensor::new(&[[0_u32, 2], [1, 1]], &Device::Cpu).unwrap();
    check(&[&[2, 4], &[2, 2]], |x| x[0].scatter_add(&indexes, &x[1], 1));
}

/// Attention on the CPU computes in `f32`, whatever its inputs are.
#[test]
fn attention_on_the_cpu() {
    for (batch, queries, keys, heads, kv_heads) in [(1, 3, 3, 2, 2), (1, 2, 4, 4, 2), (2, 3, 3, 2, 1), (1, 1, 5, 2, 2)]
    {
        let shapes: [&[usize]; 3] =
            [&[batch, queries, heads, 4], &[batch, keys, kv_heads, 4], &[batch, keys, kv_heads, 4]];
        let mut masks = vec![AttnMask::None, AttnMask::causal_with_offset(keys - queries)];
        if queries == 1 {
            masks.push(AttnMask::causal());
        }
        if (batch, queries) == (1, 3) {
            // The first query sees nothing.
            let hidden = f32::NEG_INFINITY;
            let mask = [[[hidden; 3], [0.0, 0.5, hidden], [0.0; 3]]];
            masks.push(AttnMask::Mask(Tensor::new(&mask, &Device::Cpu).unwrap()));
        }
        for mask in masks {
            check_within(DType::F32, 1e-2, 2e-3, &shapes, |x| {
                flash_attn::<f32>(&x[0], &x[1], &x[2], 0.5, mask.clone(), None, None)
            });
        }
        if batch == 1 {
            check_within(DType::F32, 1e-2, 2e-3, &shapes, |x| {
                flash_attn::<f32>(&x[0], &x[1], &x[2], 0.5, AttnMask::None, None, Some(0.7))
            });
        }
    }
}

#[test]
fn what_a_call_appends_to_a_cache() {
    let shapes: [&[usize]; 2] = [&[1, 2, 3, 4], &[1, 2, 3, 4]];
    let old = numbers(7, &[1, 2, 2, 4]);
    for used in [false, true] {
        check(&shapes, |x| {
            let mut cache = KvCache::new(2, 8);
            if used {
                cache.append(&old, &old)?;
            }
            let (k, v) = cache.append(&x[0], &x[1])?;
            (k * v)?.sqr()
        });
        check(&shapes, |x| {
            let mut cache = RotatingKvCache::new(2, 8);
            if used {
                cache.append(&old, &old)?;
            }
            let (k, v) = cache.append(&x[0], &x[1])?;
            (k * v)?.sqr()
        });
        check(&shapes, |x| {
            let mut cache = ConcatKvCache::new(2);
            if used {
                cache.append(&old, &old)?;
            }
            let (k, v) = cache.append(&x[0], &x[1])?;
            assert!(!cache.k().is_some_and(Tensor::track_op), "what is stored has no history");
            (k * v)?.sqr()
        });
        check(&shapes, |x| {
            let mut cache = InterleavedKvCache::new(4);
            if used {
                cache.append(&old, &old)?;
            }
            cache.append(&x[0], &x[1])?.sqr()
        });
    }
}

#[test]
fn an_operation_without_a_backward_pass_is_named() {
    struct Double;
    impl candle::CustomOp1 for Double {
        fn name(&self) -> &'static str {
            "double"
        }
        fn cpu_fwd(
            &self,
            storage: &candle::CpuStorage,
            layout: &candle::Layout,
        ) -> Result<(candle::CpuStorage, candle::Shape)> {
            let doubled = storage.as_slice::<f64>()?.iter().map(|x| 2.0 * x).collect();
            Ok((candle::CpuStorage::F64(doubled), layout.shape().clone()))
        }
    }
    let x = Var::new(&[1.0_f64, 2.0], &Device::Cpu).unwrap();
    let y = x.apply_op1_no_bwd(&Double).unwrap();
    assert_eq!(read(&y), [2.0, 4.0]);
    let told = y.sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(told.contains("the operation `double` of tensors [[2]] has no backward pass"), "{told}");
    // Nothing is asked of it where no variable comes before it, or where its arguments are detached.
    let plain = x.detach().apply_op1_no_bwd(&Double).unwrap();
    assert!(plain.sum_all().unwrap().backward().is_ok());
}

#[test]
fn half_precision_has_gradients_of_its_type() {
    let x = Var::from_tensor(&numbers(1, &[2, 8]).to_dtype(DType::BF16).unwrap()).unwrap();
    let scale = Var::from_tensor(&numbers(2, &[8]).to_dtype(DType::BF16).unwrap()).unwrap();
    for y in [ops::rms_norm(&x, &scale, 1e-5), ops::layer_norm(&x, &scale, &scale, 1e-5), ops::softmax_last_dim(&x)] {
        let gradients = y.unwrap().sum_all().unwrap().backward().unwrap();
        let gradient = gradients.get(&x).unwrap();
        assert_eq!((gradient.dtype(), gradient.dims()), (DType::BF16, &[2, 8][..]));
    }
    let (y, last) =
        (ops::softmax(&x.to_dtype(DType::F64).unwrap(), D::Minus1).unwrap(), ops::softmax_last_dim(&x).unwrap());
    assert!(read(&y).iter().zip(read(&last)).all(|(a, b)| (a - b).abs() < 1e-2));
}

#[test]
fn products_with_what_was_transposed_for_them() {
    check(&[&[5, 3], &[4, 3]], |v| v[0].matmul(&v[1].t()?));
    check(&[&[3, 5], &[3, 4]], |v| v[0].t()?.matmul(&v[1]));
    check(&[&[3, 5], &[4, 3]], |v| v[0].t()?.matmul(&v[1].t()?));
    check(&[&[2, 2, 5, 3], &[2, 2, 4, 3]], |v| v[0].matmul(&v[1].transpose(D::Minus2, D::Minus1)?));
    check(&[&[2, 5, 3], &[2, 4, 3]], |v| v[1].matmul(&v[0].transpose(2, 1)?));
    // One that something else reads as well, one that two products read, one by itself.
    check(&[&[3, 3], &[3, 3]], |v| {
        let turned = v[1].t()?;
        v[0].matmul(&turned)? + turned.sqr()?
    });
    check(&[&[3, 3], &[3, 3]], |v| {
        let turned = v[1].t()?;
        turned.matmul(&v[0].matmul(&turned)?)
    });
    check(&[&[4, 3]], |v| v[0].matmul(&v[0].t()?));
    check(&[&[3, 3]], |v| v[0].t()?.matmul(&v[0].t()?.t()?));
    // One matrix for all of a batch.
    check(&[&[5, 3], &[2, 4, 3]], |v| v[0].broadcast_as((2, 5, 3))?.matmul(&v[1].transpose(1, 2)?));
    check(&[&[5, 3], &[2, 2, 4, 3]], |v| v[0].broadcast_as((2, 2, 5, 3))?.matmul(&v[1].transpose(2, 3)?));
    check(&[&[2, 5, 3], &[4, 3]], |v| v[0].matmul(&v[1].broadcast_as((2, 4, 3))?.transpose(1, 2)?));
    check(&[&[2, 3, 5], &[3, 4]], |v| v[0].transpose(1, 2)?.contiguous()?.matmul(&v[1].broadcast_as((2, 3, 4))?));
    // A transposed constant: nothing flows back to it, and no store tells of it.
    let x = Var::from_tensor(&numbers(1, &[4, 3])).unwrap();
    let turned = x.round().unwrap().t().unwrap();
    let gradients = x.matmul(&turned).unwrap().sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(&x).is_some() && gradients.get_ids().all(|id| gradients.get_id(*id).is_some()));
    // Other dimensions than the last two.
    check(&[&[2, 5, 3], &[3, 2, 4]], |v| v[0].matmul(&v[1].transpose(0, 1)?));
    // Layers, of one sample and of a batch of rows.
    check(&[&[2, 5, 3], &[4, 3], &[4]], |v| candle_nn::Linear::new(v[1].clone(), Some(v[2].clone())).forward(&v[0]));
    check(&[&[1, 3], &[1, 3]], |v| v[0].matmul(&v[1].t()?));
}

#[test]
fn what_flows_back_first_is_the_sum_of_what_follows() {
    let x = Var::new(&[[1.0_f64, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
    let y = Var::new(&[[5.0_f64, 6.0], [7.0, 8.0]], &Device::Cpu).unwrap();
    // A transposed term first, the same tensor twice, and a difference.
    let sum = ((x.t().unwrap() * y.as_tensor()).unwrap() + (x.as_tensor() - y.as_tensor()).unwrap()).unwrap();
    let gradients = (sum + x.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
    let [of_x, of_y] = [&x, &y].map(|var| gradients.get(var).unwrap());
    assert!(of_x.is_contiguous() && of_y.is_contiguous());
    assert_eq!([read(of_x), read(of_y)], [vec![7.0, 9.0, 8.0, 10.0], vec![0.0, 2.0, 1.0, 3.0]]);
}
