//! Diagnostic lines on standard error; `RUST_LOG` chooses which, warnings when it is not set.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use esper_graph::Nvtx;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use crate::phases::{PhaseLayer, RangeLayer};

/// Lines that wait while something else has the terminal; absent when nothing has it.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);
/// Most bytes that wait; later lines are lost.
const MAX_HELD: usize = 1 << 20;

/// Installs the subscriber, which records phases where asked to, and makes ranges of them where somebody shows these. A second call changes nothing.
pub fn init(records_phases: bool, ranges: Option<Nvtx>) {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    // A line that nobody reads is no reason to panic, which the subscriber's own report of it would.
    let lines = fmt::layer().log_internal_errors(false).with_writer(|| Lines).without_time();
    let phases = records_phases.then(|| PhaseLayer::new().with_filter(filter_fn(PhaseLayer::wants)));
    // It fails only when a subscriber is installed already, and then that one stays.
    let ranges = ranges.map(|ranges| RangeLayer(ranges).with_filter(filter_fn(PhaseLayer::wants)));
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(phases).with(ranges).try_init().ok();
}

/// Holds lines back from now on.
pub(crate) fn hold() {
    held().get_or_insert_default();
}

/// Writes what was held back, and later lines at once.
pub(crate) fn release() {
    if let Some(text) = held().take() {
        io::stderr().write_all(&text).ok();
    }
}

/// The lines that were held back after so many bytes, which are counted on.
pub(crate) fn held_since(bytes: &mut usize) -> Vec<String> {
    let held = held();
    let text = held.as_ref().and_then(|text| text.get(*bytes..)).unwrap_or_default();
    *bytes += text.len();
    String::from_utf8_lossy(text).lines().map(without_colors).collect()
}

fn without_colors(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default();
    parts
        .map(|part| part.split_once('m').map_or(part, |(_, rest)| rest))
        .fold(first.to_owned(), |line, part| line + part)
}

fn held() -> MutexGuard<'static, Option<Vec<u8>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard error, unless lines are held.
struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = held();
        let Some(text) = held.as_mut() else { return io::stderr().write(bytes) };
        if text.len() + bytes.len() <= MAX_HELD {
            text.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_held_come_without_colors_and_each_once() {
        hold();
        let mut seen = 0;
        for (text, expected) in [
            ("\u{1b}[33m WARN\u{1b}[0m esper: slow\n", vec![" WARN esper: slow"]),
            ("a\nb\n", vec!["a", "b"]),
            ("", vec![]),
        ] {
            Lines.write_all(text.as_bytes()).unwrap();
            assert_eq!(held_since(&mut seen), expected);
        }
        assert_eq!(Lines.write(&[b'x'; MAX_HELD]).unwrap(), MAX_HELD, "what does not fit is lost, not refused");
        assert!(held_since(&mut seen).is_empty());
        release();
        assert!(held().is_none());
    }
}
