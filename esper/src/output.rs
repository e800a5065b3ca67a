//! What the command writes: results to standard output, everything else to standard error.
//!
//! A reader may leave before the end, as `head` does: it has seen what it wanted to see. So a closed pipe ends the
//! writing and nothing else; the work, the files and the exit code are those of a command that was read to its end.

use std::error::Error;
use std::io::{self, Write as _};
use std::iter;

/// Hands standard output to `write`; `None` when the reader has left.
///
/// # Errors
/// What `write` fails with for any other reason, as on a full disk.
pub fn stdout<T, E: Error + 'static>(write: impl FnOnce(&mut dyn io::Write) -> Result<T, E>) -> Result<Option<T>, E> {
    match write(&mut io::stdout().lock()) {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_closed_pipe(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a result to standard output.
///
/// # Errors
/// When it cannot be written, but for a reader who has left.
pub fn print(text: &str) -> io::Result<()> {
    wrote(text).map(|_| ())
}

/// As [`print()`]; whether somebody still reads.
///
/// # Errors
/// As there.
pub fn wrote(text: &str) -> io::Result<bool> {
    Ok(stdout(|out| out.write_all(text.as_bytes()).and_then(|()| out.flush()))?.is_some())
}

/// Writes a message to standard error, in one piece. Nothing ends because nobody reads it.
pub fn tell(text: &str) {
    let mut out = io::stderr().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    let mut causes = iter::successors(Some(error), |&cause| cause.source());
    causes.any(|cause| cause.downcast_ref().is_some_and(|io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe))
}
