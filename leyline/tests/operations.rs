//! What operations say of themselves, and how settings of a blend are written.

use leyline::command::{AlphaCurve, AlphaRamp, Blend, ChannelWeights, KeyId, Operation, SignedCommand};
use leyline::id::SeedId;
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
