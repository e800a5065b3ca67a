//! Growth in depth on a CPU, with networks of some blocks.

use std::sync::Arc;

use candle_core::{D, Tensor};
use clap::Command;
use leyline::clock::{Clock, SystemClock};
use leyline::model::{Pass, TrainableModel as _};
use tolaria::host_read::{HostReads, read_scalar};
use tolaria::plain::PlainModel;

use super::*;
use crate::models::{Draw, Form, Transformer, Variant};

const TINY: TransformerConfig =
    TransformerConfig { num_blocks: 2, width: 64, num_heads: 1, vocab_size: 256, context_len: 16, is_tied: false };

fn network(num_blocks: usize, seed: u64) -> PlainModel {
    let config = TransformerConfig { num_blocks, ..TINY };
    Transformer::new(config, Variant::of(Form::Layers), &mut Draw::new(seed, &Device::Cpu))
        .unwrap()
        .into_token_model()
        .unwrap()
}

#[test]
fn growth_by_identity_keeps_what_the_network_computes_and_stacking_does_not() {
    let ids = Tensor::from_iter((0..32_u32).map(|i| i * 7 % 256), &Device::Cpu).unwrap().reshape((2, 16)).unwrap();
    let logits = |model: &PlainModel| model.forward(&ids, Pass::Train).unwrap().logits;
    let small = network(2, 1);
    let [identity, stack] = [Growth::Identity, Growth::Stack].map(|growth| {
        let whole = network(4, 2);
        growth.copy(small.parameters(), &whole, 2).unwrap();
        let distance = (logits(&whole) - logits(&small)).unwrap().abs().unwrap().flatten_all().unwrap();
        read_scalar(&distance.max(D::Minus1).unwrap(), "distance", &mut HostReads::default()).unwrap()
    });
    assert!(identity == 0.0 && stack > 0.01, "{identity} {stack}");
    let missing = Growth::Stack.copy(&small.parameters()[..3], &network(4, 2), 2).unwrap_err();
    assert!(missing.to_string().contains("growing blocks."), "{missing}");
}

/// Lines of numbers, of which a network learns which bytes occur.
fn text() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: String = (0..400).map(|line| format!("line {line} of some text\n")).collect();
    std::fs::write(file.path(), lines).unwrap();
    file
}

#[test]
fn arms_are_measured_until_they_reach_what_scratch_did() {
    let text = text();
    let number = |n| NonZeroUsize::new(n).unwrap();
    let flags = GrowthFlags {
        text: text.path().to_owned(),
        blocks: 2,
        width: 64,
        context: number(16),
        batch: number(4),
        steps: 12,
        every: 4,
        held_out: number(8),
        arms: ["identity.p50", "stack.p50", "null"].map(|arm| arm.parse().unwrap()).into(),
        rise: 10,
        first_seed: 7,
        seeds: 1,
        ..GrowthFlags::by_default()
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let outcome = flags.measure(&Setting::alone(clock, None)).unwrap();
    let found = &outcome.result.measurements;
    assert_eq!(found["final.seed7"], found["loss.scratch.seed7.step00012"]);
    assert_eq!(found["seconds.scratch.seed7"].n, 3);
    assert!(found["loss.scratch.seed7.step00012"].median < found["loss.scratch.seed7.step00004"].median);
    for arm in ["identity.p50", "stack.p50", "null"] {
        let last = found[&format!("seconds.{arm}.seed7")].n;
        let reached = found[&format!("reached.{arm}")].median > 0.5;
        // 18 steps, of which 6 are of the small network; the null takes up to 24.
        let most = if arm == "null" { 6 } else { 4 };
        assert!(last <= most && (reached || last == most), "{arm}: {last} {reached}");
        assert_eq!(reached, found.contains_key(&format!("ratio.{arm}.seed7")), "{arm}");
    }
    assert_eq!(outcome.result.config["text_sha256"].len(), 64);
    let names: Vec<_> = outcome.attachments.iter().map(|plot| plot.file_name.as_str()).collect();
    assert_eq!(names, ["growth-at-scale-seconds.svg", "growth-at-scale-tokens.svg"]);
    assert!(outcome.attachments.iter().all(|plot| plot.text.contains(">stack.p50<")));
}

#[test]
fn held_out_windows_are_of_the_end_and_too_little_text_is_refused() {
    let text = Text((0..4000_u32).map(|i| u8::try_from(i / 16 % 256).unwrap()).collect());
    let splits = |sizes| text.splits("t".as_ref(), sizes, &Device::Cpu);
    let found = splits([16, 4, 8]).unwrap();
    assert_eq!((found.train.len(), found.validation.len()), (236, 8));
    let refused = splits([16, 4, 13]).unwrap_err().to_string();
    assert_eq!(refused, "held-out windows of 16 bytes in t gave 12, expected 13");
}

#[test]
fn a_null_can_be_slower_than_scratch_by_as_many_steps_as_scratch_takes() {
    let arm = |percent| Arm { growth: Growth::Identity, percent };
    assert_eq!((arm(50).steps(12), arm(0).steps(12)), ([6, 12], [0, 24]));
}

#[test]
fn flags_that_do_not_go_together_are_refused_before_the_text_is_read() {
    let check = |steps, every, arms: &[&str], first_seed, expected: &str| {
        let (text, arms) = (PathBuf::from("no such file"), arms.iter().map(|arm| arm.parse().unwrap()).collect());
        let flags = GrowthFlags { text, steps, every, arms, first_seed, ..GrowthFlags::by_default() };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let refused = flags.measure(&Setting::alone(clock, None)).unwrap_err();
        assert_eq!(refused.to_string(), expected);
    };
    check(12, 24, &["null"], 0, "--every 24: expected steps that divide the 12 of --steps, such as 12");
    check(12, 5, &["null"], 0, "--every 5: expected steps that divide the 12 of --steps, such as 4");
    check(12, 4, &["stack.p50", "null", "stack.p50"], 0, "--arms stack.p50 twice: expected each of them once");
    check(12, 4, &["stack.p5"], 0, "--arms stack.p5: expected whole steps of the 12 of --steps");
    check(12, 4, &["stack.p50"], 998, "--seeds 3: expected at most 2 from 998 on");
    check(12, 4, &["stack.p50"], 997, "reading no such file");
}

#[test]
fn flags_out_of_their_range_are_refused_by_name() {
    let command = GrowthFlags::augment_args(Command::new("growth-at-scale"));
    for (flag, found) in [
        ("--steps", "0"),
        ("--steps", "1048577"),
        ("--every", "0"),
        ("--arms", "stack.p0"),
        ("--arms", "stack.p50,stack.p101"),
        ("--arms", "widen.p50"),
        ("--rise", "1048577"),
        ("--first-seed", "1000"),
        ("--seeds", "0"),
        ("--seeds", "1001"),
        ("--budget", "0"),
        ("--blocks", "3"),
        ("--width", "65"),
        ("--context", "0"),
        ("--batch", "0"),
        ("--held-out", "0"),
    ] {
        let refused = command.clone().try_get_matches_from(["growth-at-scale", flag, found]).unwrap_err().to_string();
        assert!(refused.contains(flag), "{flag} {found}: {refused}");
    }
}
