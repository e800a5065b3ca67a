//! Shapes at every slot, gradients, sizes, and inputs that are refused.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::host::Pool;
use crate::host_read::read_f32;

fn host(config: &HostConfig) -> Host {
    assert_eq!(config.validate(), []);
    Host::build(config, false, &mut WeightSource::draw(ChaCha8Rng::seed_from_u64(3)), &Device::Cpu).unwrap()
}

/// Runs the host and compares every slot's shape with its description.
#[track_caller]
fn check(config: &HostConfig, inputs: &[usize], slots: &[&str], classes: usize) {
    let host = host(config);
    let ids: Vec<&str> = host.slots().iter().map(|slot| slot.id.as_str()).collect();
    assert_eq!(ids, slots);
    let mut h = host.lift(&Tensor::ones(inputs, DType::F32, &Device::Cpu).unwrap(), View::Frozen).unwrap();
    for (index, slot) in host.slots().iter().enumerate() {
        assert_eq!(h.dims(), slot.shape.batch(inputs[0]), "slot {}", slot.id);
        h = host.segment(index, h, View::Frozen).unwrap();
    }
    assert_eq!(h.dims(), [inputs[0], classes]);
    assert!(read_f32(&h).unwrap().iter().any(|&logit| logit != 0.0));
}

#[test]
fn every_slot_has_the_shape_it_announces() {
    let mlp = HostConfig::Mlp { inputs: 6, hidden: vec![4, 3], classes: 2 };
    check(&mlp, &[5, 6], &["input", "hidden0", "hidden1"], 2);
    check(&HostConfig::Mlp { inputs: 6, hidden: vec![], classes: 2 }, &[5, 6], &["input"], 2);
    for pool in [Pool::Mean, Pool::Flatten] {
        for (kernel, stride) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 2), (8, 8)] {
            let channels = vec![4, 3, 2];
            let cnn = HostConfig::Cnn1d { length: 8, channels, kernel, stride, classes: 3, pool };
            check(&cnn, &[2, 8], &["input", "block0", "block1", "block2"], 3);
            check(&cnn, &[2, 1, 8], &["input", "block0", "block1", "block2"], 3);
        }
        for (height, width, input_channels) in [(8, 8, 1), (5, 7, 3), (6, 2, 2), (1, 4, 1), (1, 1, 2)] {
            let shorter = height.min(width);
            for (kernel, stride) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 3), (5, 1), (8, 8)] {
                let (kernel, stride) = (shorter.min(kernel), shorter.min(stride));
                let channels = vec![4, 3];
                let cnn =
                    HostConfig::Cnn2d { height, width, input_channels, channels, kernel, stride, classes: 3, pool };
                check(&cnn, &[2, input_channels, height, width], &["input", "block0", "block1"], 3);
                check(&cnn, &[2, input_channels * height * width], &["input", "block0", "block1"], 3);
            }
        }
    }
}

#[test]
fn no_samples_have_no_logits() {
    let (channels, pool) = (vec![4, 3], Pool::Mean);
    for (inputs, config) in [
        (6, HostConfig::Mlp { inputs: 6, hidden: vec![4], classes: 3 }),
        (8, HostConfig::Cnn1d { length: 8, channels: channels.clone(), kernel: 4, stride: 2, classes: 3, pool }),
        (8, HostConfig::Transformer { inputs: 8, patch: 2, width: 4, heads: 2, layers: 2, mlp_ratio: 3, classes: 3 }),
        (
            40,
            HostConfig::Cnn2d {
                height: 5,
                width: 4,
                input_channels: 2,
                channels,
                kernel: 3,
                stride: 2,
                classes: 3,
                pool,
            },
        ),
    ] {
        let host = host(&config);
        let mut h = host.lift(&Tensor::zeros((0, inputs), DType::F32, &Device::Cpu).unwrap(), View::Live).unwrap();
        for index in 0..host.slots().len() {
            h = host.segment(index, h, View::Live).unwrap();
        }
        assert_eq!(h.dims(), [0, 3], "{config:?}");
    }
}

#[test]
fn an_image_and_its_vector_have_the_same_logits() {
    let (channels, pool) = (vec![4], Pool::Flatten);
    let config =
        HostConfig::Cnn2d { height: 3, width: 2, input_channels: 2, channels, kernel: 2, stride: 1, classes: 3, pool };
    let host = host(&config);
    let vectors = Tensor::arange(0_f32, 24.0, &Device::Cpu).unwrap().reshape((2, 12)).unwrap();
    let images = vectors.reshape((2, 2, 3, 2)).unwrap();
    let logits = |inputs: &Tensor| {
        let h = host.lift(inputs, View::Frozen).unwrap();
        let h = host.segment(0, h, View::Frozen).unwrap();
        read_f32(&host.segment(1, h, View::Frozen).unwrap()).unwrap()
    };
    assert_eq!(logits(&vectors), logits(&images));
}

#[test]
fn every_weight_of_a_host_of_images_has_a_gradient() {
    for pool in [Pool::Mean, Pool::Flatten] {
        let channels = vec![4, 3];
        let host = host(&HostConfig::Cnn2d {
            height: 5,
            width: 4,
            input_channels: 1,
            channels,
            kernel: 3,
            stride: 2,
            classes: 3,
            pool,
        });
        let mut h = host.lift(&Tensor::ones((2, 20), DType::F32, &Device::Cpu).unwrap(), View::Frozen).unwrap();
        for index in 0..host.slots().len() {
            h = host.segment(index, h, View::Live).unwrap();
        }
        let gradients = h.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for parameter in host.weights().flat_map(WeightSet::parameters) {
            let gradient = read_f32(gradients.get(&parameter.var).unwrap()).unwrap();
            assert!(gradient.iter().any(|&g| g != 0.0), "{} with {pool:?}", parameter.name);
        }
    }
    // Several tokens, one token, tokens of one feature.
    for (patch, heads, layers) in [(2, 2, 2), (8, 1, 1), (1, 4, 1)] {
        let encoder = HostConfig::Transformer { inputs: 8, patch, width: 4, heads, layers, mlp_ratio: 2, classes: 3 };
        let slots = &["input", "embedded", "block0", "block1"][..2 + layers];
        check(&encoder, &[5, 8], slots, 3);
        check(&encoder, &[5, 8 / patch, patch], slots, 3);
    }
}

#[test]
fn inputs_of_another_shape_are_refused_with_the_accepted_one() {
    let mlp = host(&HostConfig::Mlp { inputs: 6, hidden: vec![4], classes: 2 });
    let error = mlp.lift(&Tensor::zeros((5, 7), DType::F32, &Device::Cpu).unwrap(), View::Frozen).unwrap_err();
    assert_eq!(error.to_string(), "inputs have shape [5, 7]: expected (B, 6)");
    let (channels, pool) = (vec![4], Pool::Mean);
    let cnn = host(&HostConfig::Cnn1d { length: 8, channels, kernel: 3, stride: 1, classes: 2, pool });
    let error = cnn.lift(&Tensor::zeros((5, 2, 8), DType::F32, &Device::Cpu).unwrap(), View::Frozen).unwrap_err();
    assert_eq!(error.to_string(), "inputs have shape [5, 2, 8]: expected (B, 8) or (B, 1, 8)");
    let (width, heads, layers) = (4, 2, 1);
    let encoder =
        host(&HostConfig::Transformer { inputs: 8, patch: 2, width, heads, layers, mlp_ratio: 2, classes: 2 });
    let error = encoder.lift(&Tensor::zeros((5, 2, 4), DType::F32, &Device::Cpu).unwrap(), View::Frozen).unwrap_err();
    assert_eq!(error.to_string(), "inputs have shape [5, 2, 4]: expected (B, 8) or (B, 4, 2)");
    let (channels, pool) = (vec![4], Pool::Mean);
    let cnn = host(&HostConfig::Cnn2d {
        height: 3,
        width: 4,
        input_channels: 2,
        channels,
        kernel: 3,
        stride: 1,
        classes: 2,
        pool,
    });
    for (dims, shown) in [(&[5, 12][..], "[5, 12]"), (&[5, 2, 4, 3], "[5, 2, 4, 3]"), (&[2, 3, 4], "[2, 3, 4]")] {
        let error = cnn.lift(&Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap(), View::Frozen).unwrap_err();
        let expected = format!("inputs have shape {shown}: expected (B, 24) or (B, 2, 3, 4)");
        assert_eq!(error.to_string(), expected);
    }
}
#[test]
fn a_host_is_as_large_as_it_was_counted_to_be() {
    let (channels, pool) = (vec![4, 3], Pool::Flatten);
    for config in [
        HostConfig::Mlp { inputs: 6, hidden: vec![4, 3], classes: 2 },
        HostConfig::Cnn1d { length: 8, channels: channels.clone(), kernel: 4, stride: 2, classes: 3, pool },
        HostConfig::Transformer { inputs: 8, patch: 2, width: 4, heads: 2, layers: 2, mlp_ratio: 3, classes: 3 },
        HostConfig::Cnn2d { height: 5, width: 4, input_channels: 2, channels, kernel: 3, stride: 2, classes: 3, pool },
    ] {
        let found: usize = host(&config).weights().map(WeightSet::num_elements).sum();
        assert_eq!(num_previewed(&config), found as u64, "{config:?}");
    }
}

#[test]
fn what_cannot_be_a_host_is_refused_before_it_is_counted() {
    let config = HostConfig::Cnn1d { length: 8, channels: vec![2], kernel: 3, stride: 0, classes: 2, pool: Pool::Mean };
    let error = crate::Kasmina::count_host_parameters(&config).unwrap_err();
    assert!(error.to_string().contains("stride"), "{error}");
}

#[track_caller]
fn check_too_large(config: &HostConfig, num_elements: u64) {
    assert_eq!(config.validate(), [], "each size alone can be used");
    let mut source = WeightSource::draw(ChaCha8Rng::seed_from_u64(3));
    let error = Host::build(config, false, &mut source, &Device::Cpu).unwrap_err();
    let expected = format!("`host` needs {num_elements} parameters: expected at most 2147483648");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_host_of_more_than_2_to_the_31_elements_is_refused_before_anything_is_allocated() {
    let most = 1_u64 << 20;
    let size = 1 << 20;
    // Weights and biases of the hidden layer, then of the last one.
    check_too_large(
        &HostConfig::Mlp { inputs: size, hidden: vec![size], classes: 2 },
        most * most + most + 2 * most + 2,
    );
    check_too_large(&HostConfig::Mlp { inputs: size, hidden: vec![2048], classes: 2 }, (most + 3) * 2048 + 2);
    assert!(num_previewed(&HostConfig::Mlp { inputs: size, hidden: vec![2047], classes: 2 }) < 1 << 31);
    // More than 64 bits can count.
    let (channels, pool) = (vec![size; 16], Pool::Flatten);
    let huge = HostConfig::Cnn1d { length: size, channels, kernel: size, stride: 1, classes: size, pool };
    check_too_large(&huge, u64::MAX);
}

fn num_previewed(config: &HostConfig) -> u64 {
    num_in_shapes(Host::preview(config, false).unwrap().1.iter().map(|(_, shape)| &**shape))
}
