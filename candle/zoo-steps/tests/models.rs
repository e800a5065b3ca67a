//! A model of each kind, on the CPU: nothing is captured there, and all that is compared is the same.

use std::sync::Arc;

use candle_core::Device;
use candle_zoo_steps::{Setting, look};
use leyline::clock::SystemClock;
use leyline::region::Eager;

#[test]
fn a_model_of_each_kind_keeps_its_promises_and_is_told_why_nothing_is_captured() {
    let clock = Arc::new(SystemClock::new());
    let setting = Setting { device: Device::Cpu, clock, steps: 12, compared: 2, seconds: 0.5 };
    let mut eager = Eager::acquire().unwrap();
    for name in ["qwen2", "vit", "dac encoder"] {
        let model = candle_zoo::models().find(|model| model.name == name).unwrap();
        let found = look(model, &setting, &mut eager);
        assert!(!found.is_broken, "{name}: {:?}", found.texts);
        assert_eq!(found.median("gradients.with"), found.median("gradients.used"), "{name}");
        assert!(found.texts["forward.captured"].starts_with("the same bits; refused as unsupported"), "{name}");
        for way in ["step.captured", "step.compiled"] {
            assert!(found.texts[way].starts_with("the same bits: 12 steps"), "{name}: {}", found.texts[way]);
        }
        assert!(found.median("forward.captured").is_none() && found.median("step.eager").is_some(), "{name}");
    }
}
