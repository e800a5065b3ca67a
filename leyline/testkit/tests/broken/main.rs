//! A wrong implementation fails its rule by number: each double here breaks one rule on purpose.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod manager;
mod model;
mod policy;
mod recorder;
mod task;
mod durable;
mod source;

/// Runs a rule on a broken double and asserts that it fails with the rule's number and this complaint.
#[track_caller]
fn fails(rule: &str, complaint: &str, run: impl FnOnce()) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    let panic = outcome.expect_err("the rule passed a broken double");
    let message = panic.downcast::<String>().expect("rules panic with a formatted message");
    assert!(message.starts_with(&format!("{rule}: ")), "another failure than {rule}: {message}");
    assert!(message.contains(complaint), "the complaint does not contain `{complaint}`: {message}");
}
