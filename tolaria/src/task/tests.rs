//! The contract of tasks, kept by every task that is provided; and what fused and composed ways have in common.
#![expect(clippy::disallowed_methods, reason = "tests look at tensors")]

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use leyline_testkit::task::TaskHarness;

use super::{Classification, Flags, IGNORED, NextToken, Regression, RegressionLoss, TargetFacts, Task, TaskConfig};
use crate::testing::random;

fn tensor(count: usize, shape: &[usize], seed: u64) -> Tensor {
    Tensor::from_vec(random(count, seed), shape, &Device::Cpu).unwrap()
}

fn classes(of: &[u32]) -> Tensor {
    Tensor::new(of, &Device::Cpu).unwrap()
}

fn of_classes(task: Classification) -> TaskHarness {
    let refused = vec![
        (classes(&[0, 5]), "expected classes below 5, found 5 at sample 1"),
        (classes(&[0, 1]).to_dtype(DType::F32).unwrap(), "expected u32 of shape (N,)"),
        (classes(&[0, 1]).unsqueeze(1).unwrap(), "expected u32 of shape (N,)"),
    ];
    TaskHarness { task: Arc::new(task), outputs: tensor(20, &[4, 5], 1), targets: classes(&[4, 0, 2, 2]), refused }
}

fn of_values(loss: RegressionLoss) -> TaskHarness {
    let refused = vec![
        (tensor(4, &[4, 1], 3), "expected f32 of shape (N, 2)"),
        (classes(&[1, 2]), "expected f32 of shape (N, 2)"),
        (Tensor::new(&[[0.0, f32::NAN]], &Device::Cpu).unwrap(), "expected finite numbers, found NaN at sample 0"),
    ];
    let task = Regression::new(loss, vec![2.0, 0.5]).unwrap();
    TaskHarness { task: Arc::new(task), outputs: tensor(6, &[3, 2], 2), targets: tensor(6, &[3, 2], 3), refused }
}

fn of_flags(task: Flags) -> TaskHarness {
    let targets = Tensor::new(&[[1.0_f32, 0.0], [0.0, 0.0], [1.0, 1.0]], &Device::Cpu).unwrap();
    let refused = vec![
        (tensor(3, &[3, 1], 4), "expected f32 of shape (N, 2)"),
        (Tensor::new(&[[0.0_f32, 0.5]], &Device::Cpu).unwrap(), "expected 0 or 1, found 0.5 at sample 0"),
    ];
    TaskHarness { task: Arc::new(task), outputs: tensor(6, &[3, 2], 4), targets, refused }
}

fn of_tokens(task: NextToken, last: u32) -> TaskHarness {
    let targets = Tensor::new(&[[0_u32, 3, 1], [2, 2, last]], &Device::Cpu).unwrap();
    let refused = vec![
        (classes(&[0, 1]), "expected u32 of shape (N, T)"),
        (classes(&[0, 4]).unsqueeze(0).unwrap(), "expected tokens below 4, found 4 at sample 0, position 1"),
    ];
    TaskHarness { task: Arc::new(task), outputs: tensor(24, &[2, 3, 4], 5), targets, refused }
}

macro_rules! kept_by {
    ($($name:ident: $make:expr;)+) => {
        $(mod $name {
            use super::*;

            leyline_testkit::task_conformance!(|| $make);
        })+
    };
}

kept_by! {
    classification: of_classes(Classification::new(5));
    weighted_classification: of_classes(
        Classification::new(5).with(Some(vec![0.5, 2.0, 1.0, 1.0, 3.0]), 0.1, &Device::Cpu).unwrap()
    );
    squared_error: of_values(RegressionLoss::Mse);
    absolute_error: of_values(RegressionLoss::Mae);
    huber_error: of_values(RegressionLoss::Huber { delta: 0.3 });
    flags: of_flags(Flags::new(2));
    weighted_flags: of_flags(Flags::new(2).with_positive_weight(3.0).unwrap());
    next_token: of_tokens(NextToken::new(4), 1);
    next_token_with_ignored: of_tokens(NextToken::new(4).with_ignored(), IGNORED);
}

#[test]
fn weights_of_one_and_no_smoothing_are_the_fused_loss() {
    let (outputs, targets) = (tensor(40, &[8, 5], 7), classes(&[0, 1, 2, 3, 4, 0, 1, 2]));
    let plain = Classification::new(5);
    let weighted = Classification::new(5).with(Some(vec![1.0; 5]), 0.0, &Device::Cpu).unwrap();
    let of = |task: &Classification| {
        let var = Var::from_tensor(&outputs).unwrap();
        let loss = task.mean_loss(&var, &targets).unwrap();
        let gradient = loss.backward().unwrap().get(&var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        [task.losses(&outputs, &targets).unwrap().to_vec1::<f32>().unwrap(), gradient].concat()
    };
    for (fused, composed) in of(&plain).into_iter().zip(of(&weighted)) {
        assert!((fused - composed).abs() < 1e-6, "{fused} and {composed}");
    }
}

#[test]
fn smoothing_and_weights_follow_their_definition() {
    let task = Classification::new(3).with(Some(vec![1.0, 2.0, 4.0]), 0.3, &Device::Cpu).unwrap();
    let logits = [0.5_f64, -1.0, 2.0];
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    let nats = logits.map(|x| sum.ln() - x);
    let expected = 2.0 * (0.1 * (nats[0] + nats[2]) + 0.8 * nats[1]);
    let outputs = Tensor::new(&[[0.5_f32, -1.0, 2.0]], &Device::Cpu).unwrap();
    let found = task.losses(&outputs, &classes(&[1])).unwrap().to_vec1::<f32>().unwrap()[0];
    assert!((f64::from(found) - expected).abs() < 1e-5, "{found}, not {expected}");
}

#[test]
fn a_flag_has_the_loss_of_two_classes_however_large_its_logit() {
    let task = Flags::new(1);
    for (logit, flag) in [(0.3_f32, 1.0_f32), (-2.0, 0.0), (90.0, 0.0), (-90.0, 1.0), (400.0, 1.0)] {
        let one = |value: f32| Tensor::new(&[[value]], &Device::Cpu).unwrap();
        let found = task.losses(&one(logit), &one(flag)).unwrap().to_vec1::<f32>().unwrap()[0];
        let x = f64::from(if flag > 0.0 { -logit } else { logit });
        let expected = x.max(0.0) + (-x.abs()).exp().ln_1p();
        assert!((f64::from(found) - expected).abs() < 1e-5 * expected.max(1.0), "{logit}: {found}, not {expected}");
    }
}

/// The slopes of the mean loss at these outputs.
fn gradient(task: &dyn Task, outputs: &Tensor, targets: &Tensor) -> Vec<f32> {
    let var = Var::from_tensor(outputs).unwrap();
    let slopes = task.mean_loss(&var, targets).unwrap().backward().unwrap();
    slopes.get(&var).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn a_logit_of_0_is_half_wrong_whether_its_flag_is_set_or_not() {
    let (outputs, targets) = (Tensor::zeros((1, 2), DType::F32, &Device::Cpu).unwrap(), [[1.0_f32, 0.0]]);
    let targets = Tensor::new(&targets, &Device::Cpu).unwrap();
    assert_eq!(gradient(&Flags::new(2), &outputs, &targets), [-0.25, 0.25], "the mean of two flags");
    let weighted = Flags::new(2).with_positive_weight(3.0).unwrap();
    assert_eq!(gradient(&weighted, &outputs, &targets), [-0.75, 0.25]);
}

#[test]
fn what_a_model_rules_out_does_not_spoil_the_loss_of_what_it_does_not() {
    let ruled_out = f32::NEG_INFINITY;
    let outputs = Tensor::new(&[[0.0_f32, 0.0, ruled_out]], &Device::Cpu).unwrap();
    let plain = Classification::new(3);
    let weighted = Classification::new(3).with(Some(vec![1.0; 3]), 0.0, &Device::Cpu).unwrap();
    let tokens = NextToken::new(3).with_ignored();
    let (one, sequence) = (classes(&[1]), classes(&[1]).unsqueeze(0).unwrap());
    let of_sequence = outputs.unsqueeze(0).unwrap();
    let cases: [(&dyn Task, &Tensor, &Tensor); 3] =
        [(&plain, &outputs, &one), (&weighted, &outputs, &one), (&tokens, &of_sequence, &sequence)];
    for (task, outputs, targets) in cases {
        let mean = task.mean_loss(outputs, targets).unwrap().to_scalar::<f32>().unwrap();
        assert!((mean - 2.0_f32.ln()).abs() < 1e-6, "{}: {mean}", task.describe());
        assert_eq!(gradient(task, outputs, targets), [0.5, -0.5, 0.0], "{}", task.describe());
    }
}

#[test]
fn the_loss_of_guessing_is_not_below_what_weights_make_of_it() {
    let (two, nats) = (2.0_f64.ln(), |task: &dyn Task| task.loss_of_guessing().unwrap());
    assert!((nats(&Flags::new(3)) - two).abs() < 1e-12);
    assert!((nats(&Flags::new(3).with_positive_weight(50.0).unwrap()) - 50.0 * two).abs() < 1e-12);
    assert!((nats(&Flags::new(3).with_positive_weight(0.1).unwrap()) - two).abs() < 1e-12);
    let weighted = Classification::new(2).with(Some(vec![0.5, 4.0]), 0.0, &Device::Cpu).unwrap();
    assert!((nats(&weighted) - 4.0 * two).abs() < 1e-12);
}

#[test]
fn an_error_of_a_task_says_its_cause() {
    let of_classes = Classification::new(5).losses(&tensor(5, &[1, 5], 1), &classes(&[9]));
    let of_tokens = NextToken::new(5).mean_loss(&tensor(5, &[1, 1, 5], 1), &classes(&[9]).unsqueeze(0).unwrap());
    for failed in [of_classes, of_tokens] {
        let text = failed.unwrap_err().to_string();
        assert!(text.contains("target 9 is no class: expected a number below 5"), "{text}");
    }
}

#[test]
fn balanced_weights_have_a_mean_of_one_over_the_samples() {
    let text = r#"{"kind": "classification", "class_weights": "balanced"}"#;
    let config: TaskConfig = serde_json::from_str(text).unwrap();
    let facts = TargetFacts::Classes { counts: vec![6, 2] };
    let task = config.task(&facts, &Device::Cpu).unwrap();
    assert_eq!(task.describe(), "classification of 2, class weights [0.6666667, 2.0]");
    assert_eq!(serde_json::to_value(&config).unwrap()["class_weights"], "balanced");
}

#[test]
fn bits_per_byte_are_measured_where_the_bytes_of_a_token_are_known() {
    for (text, known, expected) in [
        (r#"{"kind": "auto"}"#, None, &["perplexity"][..]),
        (r#"{"kind": "auto"}"#, Some(1.0), &["perplexity", "bits_per_byte"]),
        (r#"{"kind": "next_token"}"#, None, &["perplexity"]),
        (r#"{"kind": "next_token", "bytes_per_token": 3.5}"#, None, &["perplexity", "bits_per_byte"]),
    ] {
        let facts = TargetFacts::Tokens { vocabulary: 9, bytes_per_token: known };
        let config: TaskConfig = serde_json::from_str(text).unwrap();
        let task = config.task(&facts, &Device::Cpu).unwrap();
        let names: Vec<&str> = task.measures().iter().map(|measure| measure.about().name).collect();
        assert_eq!(names, expected, "{text} {known:?}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused_with_their_key() {
    let classes = TargetFacts::Classes { counts: vec![3, 3] };
    let values = TargetFacts::Values { scales: vec![1.0] };
    let tokens = TargetFacts::Tokens { vocabulary: 9, bytes_per_token: None };
    for (text, facts, part) in [
        (
            r#"{"kind": "classification", "label_smoothing": 1.0}"#,
            &classes,
            "`label_smoothing` expected a number from 0",
        ),
        (
            r#"{"kind": "classification", "class_weights": [1.0]}"#,
            &classes,
            "`class_weights` expected 2, one per class",
        ),
        (r#"{"kind": "classification", "class_weights": [1.0, 0.0]}"#, &classes, "expected finite numbers above 0"),
        (r#"{"kind": "classification", "class_weights": [-1.0, -3.0]}"#, &classes, "above 0, found -1"),
        (r#"{"kind": "classification", "class_weights": [1.0, -3.0]}"#, &classes, "above 0, found -3"),
        (
            r#"{"kind": "regression", "loss": "huber", "delta": 0.0}"#,
            &values,
            "`delta` expected a finite number above 0",
        ),
        (r#"{"kind": "regression", "loss": "mae", "delta": 2.0}"#, &values, "`delta` belongs to `loss = \"huber\"`"),
        (r#"{"kind": "next_token", "bytes_per_token": 0.0}"#, &tokens, "`bytes_per_token` is 0"),
        (r#"{"kind": "binary"}"#, &classes, "`kind` is binary: expected classification or auto, for the targets are 2"),
        (r#"{"kind": "multi_label"}"#, &values, "expected regression or auto, for the targets are 1 values"),
    ] {
        let config: TaskConfig = serde_json::from_str(text).unwrap();
        let error = config.task(facts, &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let text = r#"{"kind": "classification", "class_weights": "fair"}"#;
    let error = serde_json::from_str::<TaskConfig>(text).unwrap_err().to_string();
    assert!(error.contains("expected `balanced` or a list of a number above 0 per class"), "{error}");
    for text in [r#"{"kind": "ranking"}"#, r#"{"kind": "binary", "weight": 1.0}"#, r#"{"loss": "mse"}"#] {
        assert!(serde_json::from_str::<TaskConfig>(text).is_err(), "{text}");
    }
}
