//! How a rule fails: with its number first, and with the error chain of what went wrong.

use std::fmt::Write;

use leyline::error::{Error, ErrorKind};

/// Generates one `#[test]` per rule function of a module. Not for direct use: see the macros at the crate root.
#[doc(hidden)]
#[macro_export]
macro_rules! __one_test_per_rule {
    ($module:ident, $make:expr, $($rule:ident),+ $(,)?) => {
        $(
            #[test]
            fn $rule() {
                $crate::$module::$rule(&$make);
            }
        )+
    };
}

/// Fails rule `$rule` unless the condition holds.
macro_rules! must {
    ($rule:expr, $condition:expr, $($message:tt)+) => {
        let holds: bool = $condition;
        if !holds {
            panic!("{}: {}", $rule, format_args!($($message)+));
        }
    };
}
pub(crate) use must;

/// The value, or failure of `rule` with everything the error says.
#[track_caller]
pub(crate) fn succeed<T, E: Error>(rule: &str, what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{rule}: {what} failed: {}", chain(&error)),
    }
}

/// Fails `rule` unless `result` is an error of the wanted kind.
#[track_caller]
pub(crate) fn refuse<T, E: Error>(rule: &str, what: &str, result: Result<T, E>, wanted: ErrorKind) {
    match result {
        Ok(_) => panic!("{rule}: {what} was accepted; expected a refusal of kind {wanted:?}"),
        Err(error) if error.kind() == wanted => {}
        Err(error) => panic!("{rule}: {what} was refused as {:?}, expected {wanted:?}: {error}", error.kind()),
    }
}

/// The error and its sources in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, ": {cause}").expect("a String takes everything");
        source = cause.source();
    }
    text
}
