//! The works that can be measured.

mod reference;

use std::sync::Arc;

use leyline::clock::Clock;

use crate::error::Error;
use crate::result::BenchResult;

/// Names accepted by [`run`].
pub const NAMES: &[&str] = &["reference"];

/// Measures one work.
///
/// # Errors
/// [`Error::UnknownWork`] for another name, else what the work fails with.
pub fn run(name: &str, clock: &Arc<dyn Clock>) -> Result<BenchResult, Error> {
    match name {
        "reference" => reference::run(clock),
        _ => Err(Error::UnknownWork { name: name.to_owned(), known: NAMES.join(", ") }),
    }
}
