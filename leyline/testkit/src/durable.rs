//! Rules DU-1 to DU-3 of [`leyline::durable`] as functions, and the harness they run on.

use std::fmt;

use candle_core::Tensor;
use leyline::durable::{Durable, SavedState};
use leyline::error::ErrorKind;
use leyline::region::{Eager, declare_recording};

use crate::rule::{must, refuse, succeed};

/// Advances of the component before and after it is saved.
const NUM_ADVANCES: u64 = 6;

/// Moves a component on; the number says which advance it is. The thread's token is free.
pub type Advance<D> = Box<dyn FnMut(&mut D, u64)>;
/// Describes what can be seen of a component. The thread's token is free.
pub type Observe<D> = Box<dyn FnMut(&mut D) -> String>;

/// A fresh component with what is needed to watch it.
pub struct DurableHarness<D> {
    /// As it is when a process starts.
    pub component: D,
    /// Moves it on: advance `n` does the same to every component, for example train step `n` or decide on state `n`.
    /// At least one of the first six advances must change what is observed.
    pub advance: Advance<D>,
    /// Everything that must survive: outputs, states, decisions, random numbers. Two components that will behave in the
    /// same way give the same text; floats belong in it as bits or with all digits.
    pub observe: Observe<D>,
}

impl<D: fmt::Debug> fmt::Debug for DurableHarness<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableHarness").field("component", &self.component).finish_non_exhaustive()
    }
}

/// One `#[test]` per rule DU-1 to DU-3. The argument is a function or closure without arguments that builds a fresh
/// [`DurableHarness`](crate::durable::DurableHarness).
#[macro_export]
macro_rules! durable_conformance {
    ($make:expr) => {
        $crate::__one_test_per_rule!(
            durable,
            $make,
            du_1_a_restored_component_continues_as_the_saved_one,
            du_2_a_failed_restore_changes_nothing,
            du_3_neither_call_is_possible_while_recording,
        );
    };
}

/// DU-1: a fresh component that restores a saved state observes the same as the one that saved, then and after every
/// further advance; so does the one that saved, after it has moved on and come back.
pub fn du_1_a_restored_component_continues_as_the_saved_one<D: Durable>(make: &impl Fn() -> DurableHarness<D>) {
    const RULE: &str = "DU-1";
    let mut original = make();
    let mut trace = vec![original.observe()];
    for n in 0..NUM_ADVANCES {
        original.advance(n);
        trace.push(original.observe());
    }
    must!(RULE, trace.windows(2).any(|pair| pair[0] != pair[1]), "no advance of the harness changes what is observed");

    let saved = original.save(RULE);
    let mut expected = vec![original.observe()];
    must!(RULE, expected[0] == trace[trace.len() - 1], "saving changed the component");
    for n in NUM_ADVANCES..2 * NUM_ADVANCES {
        original.advance(n);
        expected.push(original.observe());
    }
    for (what, mut restored) in [("a fresh component", make()), ("the component that saved", original)] {
        succeed(RULE, &format!("restore into {what}"), restored.component.restore(&mut token(RULE), &saved));
        for (n, expected) in (NUM_ADVANCES..).zip(&expected) {
            let found = restored.observe();
            let advances = n - NUM_ADVANCES;
            must!(RULE, found == *expected, "{what}, {advances} advances after restore: {found}\nexpected: {expected}");
            restored.advance(n);
        }
    }
}

/// DU-2: damaged states are refused, and a refusal leaves the component as it was.
pub fn du_2_a_failed_restore_changes_nothing<D: Durable>(make: &impl Fn() -> DurableHarness<D>) {
    const RULE: &str = "DU-2";
    let mut source = make();
    for n in 0..NUM_ADVANCES {
        source.advance(n);
    }
    let saved = source.save(RULE);
    for (what, damaged) in damaged(&saved) {
        let (mut damaged_in, mut twin) = (make(), make());
        damaged_in.advance(0);
        twin.advance(0);
        let outcome = damaged_in.component.restore(&mut token(RULE), &damaged);
        must!(RULE, outcome.is_err(), "a state with {what} was restored");
        for n in 1..NUM_ADVANCES {
            let (found, expected) = (damaged_in.observe(), twin.observe());
            must!(RULE, found == expected, "after a refused state with {what}: {found}\nexpected: {expected}");
            damaged_in.advance(n);
            twin.advance(n);
        }
    }
}

/// DU-3: while a capture is open on this thread both calls fail with [`ErrorKind::Region`], and nothing changes.
pub fn du_3_neither_call_is_possible_while_recording<D: Durable>(make: &impl Fn() -> DurableHarness<D>) {
    const RULE: &str = "DU-3";
    let mut harness = make();
    let other = harness.save(RULE);
    for n in 0..NUM_ADVANCES {
        harness.advance(n);
    }
    let before = harness.observe();
    {
        let mut eager = token(RULE);
        let _capture = declare_recording();
        refuse(RULE, "save under a capture", harness.component.save(&eager), ErrorKind::Region);
        let restored = harness.component.restore(&mut eager, &other);
        refuse(RULE, "restore under a capture", restored, ErrorKind::Region);
    }
    let after = harness.observe();
    must!(RULE, after == before, "calls refused under a capture changed the component: {after}\nexpected: {before}");
}

fn token(rule: &str) -> Eager {
    succeed(rule, "acquiring this thread's token", Eager::acquire())
}

impl<D: Durable> DurableHarness<D> {
    fn save(&self, rule: &str) -> SavedState {
        succeed(rule, "save", self.component.save(&token(rule)))
    }
}

impl<D> DurableHarness<D> {
    fn advance(&mut self, n: u64) {
        (self.advance)(&mut self.component, n);
    }

    fn observe(&mut self) -> String {
        (self.observe)(&mut self.component)
    }
}

fn damaged(saved: &SavedState) -> Vec<(String, SavedState)> {
    let mut all = Vec::new();
    if !saved.json.is_empty() {
        let half = saved.json.floor_char_boundary(saved.json.len() / 2);
        for (what, json) in [("no JSON", ""), ("half of its JSON", &saved.json[..half]), ("foreign JSON", "[\"?\"]")] {
            all.push((what.to_owned(), SavedState { json: json.to_owned(), ..saved.clone() }));
        }
    }
    for name in saved.tensors.keys() {
        let mut missing = saved.clone();
        missing.tensors.remove(name);
        all.push((format!("no `{name}`"), missing));
        let mut reshaped = saved.clone();
        reshaped.tensors.insert(name.clone(), wrong_shape(&saved.tensors[name]));
        all.push((format!("another shape of `{name}`"), reshaped));
    }
    all
}

/// The tensor twice, one behind the other, as one row.
fn wrong_shape(tensor: &Tensor) -> Tensor {
    let flat = tensor.flatten_all().expect("every tensor can be flattened");
    Tensor::cat(&[&flat, &flat], 0).expect("two vectors of one type can be joined")
}
