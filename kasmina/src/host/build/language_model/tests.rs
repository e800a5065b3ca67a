//! Nothing flows back, every weight has its gradient, and reading token by token is reading at once.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::loss::cross_entropy;
use candle_nn::optim::{AdamW, Optimizer as _, ParamsAdamW};
use esper_layers::operations::{Operations, counted};
use leyline::command::{Blend, ConfidenceGate};
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::model::{Parameter, Pass, TrainableModel as _};
use leyline::unit::Alpha;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::GraftedModel;
use crate::blueprint::Registry;
use crate::config::ActivationCheckpointing;
use crate::graft::{Decoder, NetworkSpec, SeedSpec};
use crate::host::{Host, HostConfig};
use crate::host_read::read_f32;
use crate::weight::{ElementType, View, WeightSet, WeightSource};

const CONTEXT: usize = 6;
const VOCABULARY: usize = 5;
const TOKENS: u32 = 5;

fn config(tied: bool) -> HostConfig {
    HostConfig::LanguageModel {
        context: CONTEXT,
        width: 8,
        heads: 2,
        layers: 2,
        mlp_ratio: 2,
        tied,
        vocabulary: VOCABULARY,
    }
}

fn host(tied: bool, seed: u64) -> Host {
    assert_eq!(config(tied).validate(), []);
    Host::build(&config(tied), false, &mut WeightSource::draw(ChaCha8Rng::seed_from_u64(seed)), &Device::Cpu).unwrap()
}

fn logits(host: &Host, tokens: &Tensor, view: View) -> Tensor {
    let first = host.lift(tokens, view).unwrap();
    (0..host.slots().len()).fold(first, |h, index| host.segment(index, h, view).unwrap())
}

fn parameters(host: &Host) -> Vec<&Parameter> {
    host.weights().flat_map(|set| set.parameters()).collect()
}

/// Tokens (B, CONTEXT), each the sum of the two before it: what comes next is told by two positions together.
fn sums(num_samples: usize, seed: u64) -> (Tensor, Tensor) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut inputs, mut targets): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    for _ in 0..num_samples {
        let mut row: Vec<u32> = (0..2).map(|_| rng.random_range(0..TOKENS)).collect();
        (2..=CONTEXT).for_each(|at| row.push((row[at - 1] + row[at - 2]) % TOKENS));
        inputs.extend(&row[..CONTEXT]);
        targets.extend(&row[1..]);
    }
    let tensor = |values| Tensor::from_vec(values, (num_samples, CONTEXT), &Device::Cpu).unwrap();
    (tensor(inputs), tensor(targets))
}

fn loss_of(logits: &Tensor, targets: &Tensor) -> Tensor {
    cross_entropy(&logits.flatten_to(1).unwrap(), &targets.flatten_all().unwrap()).unwrap()
}

fn loss_on(host: &Host, samples: &(Tensor, Tensor)) -> f32 {
    read_f32(&loss_of(&logits(host, &samples.0, View::Frozen), &samples.1)).unwrap()[0]
}

#[test]
fn it_announces_its_slots_and_gives_logits_at_every_token() {
    for tied in [true, false] {
        let host = host(tied, 1);
        let ids: Vec<&str> = host.slots().iter().map(|slot| slot.id.as_str()).collect();
        assert_eq!(ids, ["embedded", "attention0", "block0", "attention1", "block1"]);
        let (tokens, _) = sums(3, 1);
        let mut h = host.lift(&tokens, View::Frozen).unwrap();
        for (index, slot) in host.slots().iter().enumerate() {
            assert_eq!(h.dims(), slot.shape.batch(3), "slot {}", slot.id);
            h = host.segment(index, h, View::Frozen).unwrap();
        }
        assert_eq!((h.dims(), h.dtype()), ([3, CONTEXT, VOCABULARY].as_slice(), DType::F32));
        let has_head = parameters(&host).iter().any(|parameter| parameter.name.starts_with("host.head."));
        assert_eq!(has_head, !tied);
        let counted: usize = Host::preview(&config(tied), false)
            .unwrap()
            .1
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        assert_eq!(counted, host.weights().map(WeightSet::num_elements).sum::<usize>());
    }
}

#[test]
fn no_token_sees_what_comes_after_it() {
    let host = host(true, 2);
    let (tokens, _) = sums(1, 3);
    let rows = |tokens: &Tensor| -> Vec<Vec<f32>> {
        read_f32(&logits(&host, tokens, View::Frozen)).unwrap().chunks(VOCABULARY).map(<[f32]>::to_vec).collect()
    };
    let before = rows(&tokens);
    for place in 0..CONTEXT {
        let moved: Vec<u32> = (0..CONTEXT).map(|at| u32::from(at == place)).collect();
        let moved = (&tokens + Tensor::from_vec(moved, (1, CONTEXT), &Device::Cpu).unwrap()).unwrap();
        let moved = moved.clamp(0_u32, TOKENS - 1).unwrap();
        let is_moved = read_f32(&moved.ne(&tokens).unwrap().to_dtype(DType::F32).unwrap()).unwrap()[place] > 0.0;
        for (at, (before, after)) in before.iter().zip(rows(&moved)).enumerate() {
            assert_eq!(*before != after, is_moved && at >= place, "token {at} after a change at {place}");
        }
    }
}

#[test]
fn it_learns_what_two_tokens_together_tell() {
    for tied in [true, false] {
        let host = host(tied, 1);
        let held_out = sums(64, 99);
        let before = loss_on(&host, &held_out);
        assert!((before - (VOCABULARY as f32).ln()).abs() < 0.4, "{before}");
        let vars = parameters(&host).into_iter().map(|parameter| parameter.var.clone()).collect();
        let settings = ParamsAdamW { lr: 0.01, weight_decay: 0.0, ..ParamsAdamW::default() };
        let mut optimizer = AdamW::new(vars, settings).unwrap();
        for step in 0..300 {
            let (inputs, targets) = sums(32, step);
            optimizer.backward_step(&loss_of(&logits(&host, &inputs, View::Live), &targets)).unwrap();
        }
        // One token alone tells nothing of the next: all that is below ln 5 comes from two.
        let after = loss_on(&host, &held_out);
        assert!(after < 1.1, "tied {tied}: held-out loss {before} → {after}");
    }
}

/// Along its own gradient each tensor changes the loss by the norm of the gradient; the table of a tied one has two of them.
#[test]
fn every_weight_has_the_gradient_that_differences_show() {
    for tied in [true, false] {
        let host = host(tied, 3);
        let samples = sums(16, 5);
        let gradients = loss_of(&logits(&host, &samples.0, View::Live), &samples.1).backward().unwrap();
        for parameter in parameters(&host) {
            let (name, var) = (&parameter.name, &parameter.var);
            let gradient = gradients.get(var).unwrap_or_else(|| panic!("no gradient for {name}"));
            let norm = read_f32(&gradient.sqr().unwrap().sum_all().unwrap()).unwrap()[0].sqrt();
            assert!(norm > 1e-4, "{name} has a gradient of norm {norm}");
            let start = var.as_detached_tensor().copy().unwrap();
            let at = |offset: f32| {
                var.set(&(&start + gradient.affine(f64::from(offset / norm), 0.0).unwrap()).unwrap()).unwrap();
                loss_on(&host, &samples)
            };
            let slope = (at(0.02) - at(-0.02)) / 0.04;
            var.set(&start).unwrap();
            assert!((slope - norm).abs() < 0.03 * norm + 2e-4, "{name}: {slope} along a gradient of norm {norm}");
        }
        let held = logits(&host, &samples.0, View::Frozen).sqr().unwrap().sum_all().unwrap().backward().unwrap();
        assert!(parameters(&host).iter().all(|parameter| held.get(&parameter.var).is_none()), "held fixed");
    }
}

/// A network with a seed of each kind and each blend that a causal slot takes, awake.
fn grown(dtype: ElementType) -> GraftedModel {
    let names = ["causal_attention", "low_rank", "mlp", "norm", "norm_mlp"];
    let blends =
        [Blend::Residual, Blend::Gate, Blend::Confidence(ConfidenceGate::default()), Blend::Multiply, Blend::Convex];
    let slots = ["attention0", "block0", "attention1", "block1", "embedded"];
    let seeds = (1..).zip(names.iter().zip(blends).zip(slots)).map(|(id, ((name, blend), slot))| SeedSpec {
        id: SeedId(id),
        slot: SlotId::new(slot).unwrap(),
        blueprint: BlueprintId::new(*name).unwrap(),
        width: 4,
        blend,
        alpha: Alpha::new(if id == 1 { 1.0 } else { 0.5 }).unwrap(),
    });
    let spec = NetworkSpec { host: config(false), dtype, seeds: seeds.collect() };
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let tensors: BTreeMap<String, Tensor> = spec
        .tensors(&Registry::all())
        .unwrap()
        .into_iter()
        .map(|(name, shape)| {
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-0.6..0.6)).collect();
            (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype.dtype()).unwrap())
        })
        .collect();
    spec.build(tensors, &Registry::all(), &Device::Cpu).unwrap()
}

#[test]
fn reading_in_pieces_gives_the_logits_of_reading_at_once_whatever_has_grown() {
    for (dtype, tolerance) in [(ElementType::F64, 1e-12), (ElementType::F32, 1e-5), (ElementType::Bf16, 0.2)] {
        let model = grown(dtype);
        let tokens = [4_u32, 0, 2, 2, 1, 3];
        let whole = model
            .forward(&Tensor::new(&[tokens], &Device::Cpu).unwrap(), Pass::Evaluate { overrides: &[] })
            .unwrap()
            .logits;
        let expected = read_f32(&whole).unwrap();
        assert!(expected.iter().any(|logit| logit.abs() > 0.1));
        let mut decoder = Decoder::new(&model).unwrap();
        for pieces in [&[1; 6][..], &[6], &[3, 1, 2], &[1, 4, 1]] {
            decoder.clear().unwrap();
            let (mut found, mut start) = (Vec::new(), 0);
            for &count in pieces {
                assert_eq!(decoder.room(), CONTEXT - start);
                found.extend(read_f32(&decoder.read(&tokens[start..start + count]).unwrap()).unwrap());
                start += count;
            }
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= tolerance, "{dtype:?} {pieces:?}: {found} against {expected}");
            }
        }
    }
}

#[test]
fn what_it_cannot_read_is_refused_and_nothing_was_read() {
    let mut decoder = Decoder::new(&grown(ElementType::F32)).unwrap();
    decoder.read(&[1, 2]).unwrap();
    for (tokens, message) in [
        (&[][..], "inputs have shape [0]: expected 1 to 4 tokens behind 2 of 6"),
        (&[0; 5], "inputs have shape [5]: expected 1 to 4 tokens behind 2 of 6"),
        (&[0, 5], "inputs have shape [2]: expected tokens below 5, and one is 5"),
    ] {
        assert_eq!(decoder.read(tokens).unwrap_err().to_string(), message);
    }
    assert_eq!(decoder.room(), 4);
    let host = host(true, 1);
    for (inputs, shown) in [
        (Tensor::zeros((2, CONTEXT), DType::F32, &Device::Cpu), "[2, 6]: expected (B, 6) of U32, and these are F32"),
        (Tensor::zeros((2, 7), DType::U32, &Device::Cpu), "[2, 7]: expected (B, 6) of U32, and these are U32"),
    ] {
        let error = host.lift(&inputs.unwrap(), View::Frozen).unwrap_err();
        assert_eq!(error.to_string(), format!("inputs have shape {shown}"));
    }
}

/// Logits, and the gradients of all parameters, of ten steps with seeds of every blend between the blocks.
fn ten_steps(checkpointing: ActivationCheckpointing, dtype: ElementType) -> (Vec<u32>, Operations) {
    let model = grown(dtype).with_checkpointing(checkpointing);
    let mut bits: Vec<u32> = Vec::new();
    let ((), operations) = counted(|| {
        for step in 0..10 {
            let (tokens, targets) = sums(4, step);
            let outputs = model.forward(&tokens, Pass::Train).unwrap();
            let gradients = loss_of(&outputs.logits, &targets).backward().unwrap();
            bits.extend(read_f32(&outputs.logits).unwrap().into_iter().map(f32::to_bits));
            for parameter in model.parameters() {
                let gradient = gradients.get(&parameter.var).expect(&parameter.name);
                bits.extend(read_f32(gradient).unwrap().into_iter().map(f32::to_bits));
                let moved = (parameter.var.as_detached_tensor() - gradient.affine(0.1, 0.0).unwrap()).unwrap();
                parameter.var.set(&moved).unwrap();
            }
        }
    });
    (bits, operations)
}

#[test]
fn activations_that_are_computed_again_change_no_bit_with_seeds_between_the_blocks() {
    for dtype in [ElementType::F32, ElementType::Bf16] {
        let kept = ten_steps(ActivationCheckpointing::None, dtype);
        assert!(kept.0.iter().any(|bits| *bits != 0), "{dtype:?}");
        assert!(ten_steps(ActivationCheckpointing::Blocks, dtype) == kept, "{dtype:?}");
    }
}

/// What a graph of operations can reach from the logits: with `blocks`, an input per part and a chain of tokens.
#[test]
fn with_blocks_far_fewer_numbers_are_kept_for_the_backward_pass() {
    let num_kept = |checkpointing| {
        let (tokens, _) = sums(64, 1);
        let logits =
            grown(ElementType::F32).with_checkpointing(checkpointing).forward(&tokens, Pass::Train).unwrap().logits;
        let kept = logits.sorted_nodes().into_iter().filter(|node| !node.is_variable());
        kept.map(|node| node.elem_count()).sum::<usize>()
    };
    let (blocks, all) = (num_kept(ActivationCheckpointing::Blocks), num_kept(ActivationCheckpointing::None));
    assert!(3 * blocks < all, "{blocks} numbers against {all}");
}
