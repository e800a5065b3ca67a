//! Every model of the zoo: each parameter that its loss depends on has a gradient, and gradients agree with differences.

use std::sync::Mutex;

use candle_zoo::check::{Extent, check};
use candle_zoo::{Model, audio, text, vision};

/// Eight parameters of each model; the command compares them all.
fn all_are_right(models: &[Model]) {
    let (left, wrong) = (Mutex::new(models.iter()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(model) = left.lock().expect("no thread panics").next() else { break };
                    let told = match check(*model, Extent::Some(8), &candle_core::Device::Cpu) {
                        Ok(found) if found.is_right(model) => continue,
                        Ok(found) => format!("{found}: without {:?}, different {:?}", found.missing, found.different),
                        Err(error) => format!("{}: {error}", model.name),
                    };
                    wrong.lock().expect("no thread panics").push(told);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no thread has panicked");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn models_of_language() {
    all_are_right(text::MODELS);
}

#[test]
fn models_of_images() {
    all_are_right(vision::MODELS);
}

#[test]
fn models_of_sound() {
    all_are_right(audio::MODELS);
}
