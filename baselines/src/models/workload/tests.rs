//! Tests of the works.

use candle_core::DType;
use leyline::model::Parameter;
use tolaria::host_read::{HostReads, read_scalar, read_vec, read_vec_u32};

use super::*;
use crate::models::{Form, Precision};

const TINY: TransformerConfig =
    TransformerConfig { num_blocks: 2, width: 16, num_heads: 2, vocab_size: 8, context_len: 6, is_tied: false };
const TIED: TransformerConfig = TransformerConfig { is_tied: true, ..TINY };

fn tiny_of(variant: Variant) -> [Workload; 6] {
    let widths = MlpConfig { widths: vec![6, 8, 8, 3] };
    let draw = || Draw::new(1, &Device::Cpu);
    [
        Workload::reference_of(4, variant, &mut draw()).unwrap(),
        Workload::mlp_of("mlp", &widths, 5, variant, &mut draw()).unwrap(),
        Workload::transformer_of("tfm", TINY, 4, variant, &mut draw()).unwrap(),
        Workload::transformer_of(GPT2, TIED, 4, variant, &mut draw()).unwrap(),
        Workload::sequence_ends_of(TINY, 4, variant, &mut draw()).unwrap(),
        Workload::conv2d(variant, 1, &Device::Cpu).unwrap(),
    ]
}

fn tiny() -> Vec<Workload> {
    let rounded = Variant { form: Form::Layers, precision: Precision::Bf16 };
    Form::ALL.map(Variant::of).into_iter().chain([rounded]).flat_map(tiny_of).collect()
}

fn number(tensor: &Tensor) -> f64 {
    read_scalar(tensor, "test", &mut HostReads::default()).unwrap()
}

#[test]
fn parameters_are_as_many_as_published() {
    for (name, expected) in [
        ("ref", 20),
        ("mlp", 669_706),
        ("tfm5m", 4_886_528),
        ("tfm30m", 31_852_544),
        ("mlp4096", 25_076_712),
        (GPT2, 124_475_904),
    ] {
        // The large ones differ from the small ones in sizes only.
        let forms = if expected > 10_000_000 { &Form::ALL[1..] } else { &Form::ALL[..] };
        for &form in forms {
            let work = Workload::of(name, Variant::of(form), 0, &Device::Cpu).unwrap();
            assert_eq!((work.name, work.model.layout().num_elements()), (name, expected));
        }
    }
    assert_eq!(Workload::reference(16, Variant::default(), 0, &Device::Cpu).unwrap().model.layout().num_elements(), 68);
    let error = Workload::named("resnet", 0, &Device::Cpu).unwrap_err();
    assert!(error.to_string().contains("ref, mlp, tfm5m, tfm30m, mlp4096, gpt2"), "{error}");
}

#[test]
fn a_tied_network_has_no_weights_of_its_own_for_the_output() {
    let tiny =
        |config| Workload::transformer_of(GPT2, config, 4, Variant::of(Form::Layers), &mut Draw::new(1, &Device::Cpu));
    let [tied, untied] = [TIED, TINY].map(|config| tiny(config).unwrap());
    let count = |work: &Workload| work.model.layout().num_elements();
    assert_eq!(count(&untied) - count(&tied), TINY.vocab_size * TINY.width);
    // 6 for each parameter but the 6 positions of 16 coordinates, and 12 for 2 blocks of 6 positions of 16.
    let tokens = tied.tokens.unwrap();
    assert_eq!(tokens.per_step, 4 * TINY.context_len);
    assert!((tokens.flops - (6 * (count(&tied) - 96) + 12 * 2 * 96) as f64).abs() < 0.5, "{tokens:?}");
}

#[test]
fn every_parameter_receives_a_gradient_that_is_not_0() {
    for work in tiny() {
        let gradients = work.loss(&work.batch(0).unwrap()).unwrap().backward().unwrap();
        for Parameter { name, var } in work.model.parameters() {
            let gradient = gradients.get(var).unwrap_or_else(|| panic!("{}: {name} has no gradient", work.name));
            assert_eq!(gradient.dims(), var.dims(), "{name}");
            let largest = number(&gradient.abs().unwrap().max_all().unwrap());
            // A key bias shifts all scores of a query alike: its gradient is 0 but for rounding.
            let moves = largest > 0.0 || name.ends_with("key.bias");
            assert!(moves && largest.is_finite(), "{}: {name} {largest}", work.name);
        }
    }
}

#[test]
fn the_loss_falls_over_20_steps() {
    for work in tiny() {
        let batch = work.batch(0).unwrap();
        let before = number(&work.loss(&batch).unwrap());
        for _ in 0..20 {
            let gradients = work.loss(&batch).unwrap().backward().unwrap();
            for parameter in work.model.parameters() {
                let update = (gradients.get(&parameter.var).unwrap() * 0.2).unwrap();
                parameter.var.set(&(parameter.var.as_tensor() - update).unwrap()).unwrap();
            }
        }
        let after = number(&work.loss(&batch).unwrap());
        assert!(after < 0.95 * before, "{}: {before} -> {after}", work.name);
    }
}

#[test]
fn batches_go_round_and_have_a_target_per_row_of_logits() {
    for work in tiny() {
        let batch = work.batch(1).unwrap();
        let logits = work.model.forward(&batch.inputs, Pass::Train).unwrap().logits;
        let (rows, classes) = logits.dims2().unwrap();
        assert_eq!(rows, batch.targets.elem_count());
        let targets = read_vec_u32(&batch.targets, "targets", &mut HostReads::default()).unwrap();
        assert!(targets.into_iter().all(|target| (target as usize) < classes));
        assert!(batch.inputs.is_contiguous() && batch.targets.is_contiguous());
        let again = work.batch(1 + work.num_batches()).unwrap();
        let values = |tensor: &Tensor| {
            let tensor = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
            read_vec(&tensor, "test", &mut HostReads::default()).unwrap()
        };
        assert_eq!(values(&batch.inputs), values(&again.inputs));
        assert_eq!(values(&batch.targets), values(&again.targets));
        assert_ne!(values(&batch.inputs), values(&work.batch(0).unwrap().inputs), "{}", work.name);
    }
}

#[test]
fn targets_of_a_sequence_are_its_inputs_one_later() {
    let work = Workload::transformer_of("tfm", TINY, 4, Variant::default(), &mut Draw::new(1, &Device::Cpu)).unwrap();
    let mut reads = HostReads::default();
    let inputs = read_vec(&work.inputs.flatten_all().unwrap(), "test", &mut reads).unwrap();
    let targets = read_vec(&work.targets.to_dtype(DType::F32).unwrap(), "test", &mut reads).unwrap();
    for (ids, next) in inputs.chunks(6).zip(targets.chunks(6)) {
        assert_eq!(ids[1..], next[..5]);
    }
}

#[test]
fn only_works_with_one_target_per_sample_fit_a_data_set() {
    let fits = tiny_of(Variant::default()).map(|work| work.dataset().is_ok());
    assert_eq!(fits, [true, true, false, false, true, true]);
}

#[test]
fn all_variants_of_a_work_start_from_the_same_network() {
    // bf16 keeps 8 bits of a factor: 2^-9 relative for each, and products of some dozens of them.
    for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Tf32, 1e-5), (Precision::Bf16, 0.03)] {
        let expected = tiny_of(Variant::default()).map(|work| number(&work.loss(&work.batch(2).unwrap()).unwrap()));
        for form in Form::ALL {
            let works = tiny_of(Variant { form, precision });
            for (work, expected) in works.iter().zip(expected) {
                let found = number(&work.loss(&work.batch(2).unwrap()).unwrap());
                assert!(
                    (found - expected).abs() < tolerance,
                    "{} {precision:?} {form:?}: {found} {expected}",
                    work.name
                );
            }
        }
    }
}

#[test]
fn bf16_rounds_and_f32_does_not() {
    let losses = |form| {
        [Precision::F32, Precision::Tf32, Precision::Bf16].map(|precision| {
            let [_, mlp, ..] = tiny_of(Variant { form, precision });
            number(&mlp.loss(&mlp.batch(0).unwrap()).unwrap()).to_bits()
        })
    };
    for form in Form::ALL {
        let [f32, tf32, bf16] = losses(form);
        assert!(f32 == tf32 && f32 != bf16, "{form:?}");
    }
}
