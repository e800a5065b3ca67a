//! What operations say of themselves, and how settings of a blend are written.

use leyline::command::{
    AlphaCurve, AlphaRamp, Blend, ChannelWeights, Command, KeyId, Nonce, Operation, Order, SignedCommand, Unverified,
};
use leyline::id::{RunId, SeedId};
use leyline::unit::Alpha;

#[test]
fn every_operation_says_its_name_its_seed_and_what_it_does() {
    let (seed, curve) = (SeedId(3), AlphaCurve::Linear);
    let germinate =
        |blend| Operation::Germinate { slot: "slot-0".parse().unwrap(), blueprint: "linear".parse().unwrap(), blend };
    let channel = Blend::Channel(ChannelWeights::new(vec![0.5]).unwrap());
    let ramp = AlphaRamp { target: Alpha::new(0.5).unwrap(), steps: 7, curve };
    for (operation, name, of, said) in [
        (germinate(Blend::default()), "germinate", None, "germinate linear in slot-0"),
        (germinate(channel), "germinate", None, "germinate linear in slot-0 with blend channel"),
        (Operation::StartTraining { seed }, "start_training", Some(seed), "start_training seed-3"),
        (
            Operation::StartBlending { seed, ramp },
            "start_blending",
            Some(seed),
            "start_blending seed-3 to 0.5 in 7 steps",
        ),
        (Operation::Hold { seed }, "hold", Some(seed), "hold seed-3"),
        (Operation::Fossilize { seed }, "fossilize", Some(seed), "fossilize seed-3"),
        (Operation::Cull { seed }, "cull", Some(seed), "cull seed-3"),
        (
            Operation::CullGradually { seed, steps: 7, curve },
            "cull_gradually",
            Some(seed),
            "cull_gradually seed-3 in 7 steps",
        ),
        (Operation::Pause { seed }, "pause", Some(seed), "pause seed-3"),
        (Operation::Resume { seed }, "resume", Some(seed), "resume seed-3"),
    ] {
        assert_eq!((operation.name(), operation.seed(), &*operation.to_string()), (name, of, said));
        // What is written down has the same name.
        assert!(serde_json::to_string(&operation).unwrap().starts_with(&format!("{{\"{name}\":")), "{operation}");
    }
}

#[test]
fn weights_of_channels_are_read_as_they_were_written() {
    let blend = Blend::Channel(ChannelWeights::new(vec![0.0, 0.25, 1.0]).unwrap());
    assert_eq!(serde_json::from_str::<Blend>(&serde_json::to_string(&blend).unwrap()).unwrap(), blend);
}

#[test]
fn what_is_signed_begins_with_the_key() {
    assert_eq!(SignedCommand::signed_message(KeyId(0x0102), b"ab"), [2, 1, 0, 0, b'a', b'b']);
}

#[test]
fn a_signed_command_has_at_least_its_key_and_its_tag_and_at_most_64_kib() {
    for (len, is_one) in [(35, false), (36, true), (64 * 1024, true), (64 * 1024 + 1, false)] {
        let read = SignedCommand::from_wire(&vec![0; len]);
        assert_eq!(read.map(|signed| signed.bytes.len()).ok(), is_one.then(|| len - 36), "{len} bytes");
    }
    let error = SignedCommand::from_wire(&[]).unwrap_err();
    assert_eq!(error.to_string(), "a signed command has 36 to 65536 bytes, found 0");
    assert_eq!(KeyId(7).to_string(), "key-7");
}

#[test]
fn an_order_that_is_signed_is_taken_by_nobody_who_does_not_verify() {
    let order = Order::from(Operation::Hold { seed: SeedId(3) });
    assert_eq!(order.check_verified(), Ok(()));
    let signed = Some(SignedCommand { key_id: KeyId(1), bytes: vec![], tag: [0; 32] });
    assert_eq!(Order { signed, ..order }.check_verified(), Err(Unverified));
}

#[test]
fn a_coverage_that_is_no_share_is_refused_by_its_name() {
    let command = Command {
        run_id: RunId::new("run-1").unwrap(),
        sequence: 1,
        nonce: Nonce::from_counter(1),
        issued_at_unix_ms: 0,
        valid_for_ms: 1,
        operation: Operation::Hold { seed: SeedId(3) },
        input_coverage: Some(1.5),
        reason: String::new(),
    };
    let error = Command::from_bytes(&command.to_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "1.5 is not a valid coverage: expected a number from 0 to 1");
}
