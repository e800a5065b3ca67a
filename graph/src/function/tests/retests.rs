//! A captured function is recorded again at growing distances, and not trusted any more once that differs.

use leyline::region::Eager;

use super::device::{Step, frozen, refuse, steps_and_tests};
use super::{affine, contents, expected, fake, matrix};
use crate::Stale;
use crate::reason::Refusal;

#[test]
fn a_function_is_recorded_again_before_its_first_replay_and_at_growing_distances() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(1);
    let mut tested = Vec::new();
    for call in 0..40 {
        let x = matrix(2, call);
        assert_eq!(contents(&graphs.call(&mut eager, &[&x], &mut affine).unwrap()), expected(&[&x]), "call {call}");
        let steps = steps_and_tests();
        let expected: &[Step] = match call {
            0 => &[Step::Warm, Step::Capture],
            _ if steps.contains(&Step::Test) => &[Step::Test, Step::Replay],
            _ => &[Step::Replay],
        };
        assert_eq!(steps, expected, "call {call}");
        if steps.contains(&Step::Test) {
            tested.push(call);
        }
    }
    assert_eq!(tested, [1, 2, 4, 8, 16, 32]);
}

#[test]
fn a_difference_before_the_first_replay_costs_nothing() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(1);
    graphs.call(&mut eager, &[&matrix(2, 0)], &mut affine).unwrap();
    refuse(Step::Test);
    for call in 1..5 {
        let x = matrix(2, call);
        steps_and_tests();
        assert_eq!(contents(&graphs.call(&mut eager, &[&x], &mut affine).unwrap()), expected(&[&x]), "call {call}");
        assert_eq!(steps_and_tests(), if call == 1 { vec![Step::Test] } else { Vec::new() }, "call {call}");
        assert_eq!(graphs.last_refusal(&[&x]), Some(&frozen()));
    }
    assert_eq!((graphs.stats().entries, graphs.stats().total.replays), (0, 0));
    refuse(None);
}

#[test]
fn a_difference_after_replays_is_an_error_of_the_call_and_later_calls_run_eagerly() {
    let mut eager = Eager::acquire().unwrap();
    let mut graphs = fake(1);
    for call in 0..6 {
        graphs.call(&mut eager, &[&matrix(2, call)], &mut affine).unwrap();
    }
    refuse(Step::Test);
    // Tested before calls 1, 2 and 4; the next test is before call 8.
    for call in 6..8 {
        graphs.call(&mut eager, &[&matrix(2, call)], &mut affine).unwrap();
    }
    let error = graphs.call(&mut eager, &[&matrix(2, 8)], &mut affine).unwrap_err();
    let stale = Stale { num_replays: 3, refusal: frozen() }.to_string();
    assert!(error.to_string().starts_with(&stale), "{error}");
    assert!(stale.ends_with("argument 3 of affine_f32"), "{stale}");
    refuse(None);
    let x = matrix(2, 9);
    assert_eq!(contents(&graphs.call(&mut eager, &[&x], &mut affine).unwrap()), expected(&[&x]));
    assert_eq!(graphs.last_refusal(&[&x]).map(Refusal::name), Some("frozen_value"));
}
