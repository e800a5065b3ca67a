//! Region tokens: a host-side call inside a captured region does not compile.
//!
//! A captured region may hold device work only. Every host-side method of a contract therefore takes an [`Eager`]
//! token by reference, and [`Eager::record`] borrows that token mutably for as long as the region is open:
//!
//! ```
//! use leyline::region::Eager;
//! # fn host_side(_: &Eager) {}
//! let mut eager = Eager::acquire()?;
//! host_side(&eager);                              // before the region: fine
//! let loss = eager.record(|_recording| 0.25_f32); // device work only
//! host_side(&eager);                              // after the region: fine
//! # assert_eq!(loss, 0.25);
//! # Ok::<(), leyline::region::RegionError>(())
//! ```
//!
//! The same call inside the closure is refused by the compiler (E0502):
//!
//! ```compile_fail
//! use leyline::region::Eager;
//! # fn host_side(_: &Eager) {}
//! let mut eager = Eager::acquire()?;
//! host_side(&eager);
//! let loss = eager.record(|_recording| { host_side(&eager); 0.25_f32 });
//! host_side(&eager);
//! # assert_eq!(loss, 0.25);
//! # Ok::<(), leyline::region::RegionError>(())
//! ```
//!
//! # Terms
//! *Region*: the closure given to [`Eager::record`]. *Recording*: the time during which it runs on this thread.
//!
//! # For callers
//! One token per thread; acquire it where the training loop starts and pass it down by reference. It is `!Send`, so it
//! cannot prove anything about another thread.
//!
//! # For implementers
//! Call [`Eager::check`] first in every host-side method: it catches what the compiler cannot see, a capture opened
//! on this thread by other means and declared with [`declare_recording`].
//!
//! | situation | found by | result |
//! |---|---|---|
//! | host-side call inside `record` | compiler | E0502; E0499 where the call borrows the token mutably |
//! | token sent to another thread | compiler | E0277 |
//! | second token on the thread | [`Eager::acquire`] | [`RegionError::AlreadyHeld`] |
//! | token acquired inside a region | [`Eager::acquire`] | [`RegionError::Recording`] |
//! | host-side call under a capture opened elsewhere | [`Eager::check`] | [`RegionError::Recording`] |

use std::cell::Cell;
use std::marker::PhantomData;

use crate::error::{Error, ErrorKind};

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
    static RECORDING: Cell<u32> = const { Cell::new(0) };
}

/// A rule of the region tokens was broken at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// A token is alive on this thread already.
    #[error("this thread holds an eager token already; pass it down by reference")]
    AlreadyHeld,
    /// A region is open on this thread.
    #[error("a region is being recorded on this thread; host-side calls must wait until it is closed")]
    Recording,
}

impl Error for RegionError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Region
    }
}

/// Proof that no region is open on this thread. At most one is alive per thread.
///
/// It cannot be cloned or sent:
///
/// ```compile_fail
/// let eager = leyline::region::Eager::acquire()?;
/// std::thread::scope(|scope| { scope.spawn(|| eager.check()); });
/// # Ok::<(), leyline::region::RegionError>(())
/// ```
///
/// while its result can:
///
/// ```
/// let eager = leyline::region::Eager::acquire()?;
/// let checked = eager.check();
/// std::thread::scope(|scope| { scope.spawn(|| checked); });
/// # Ok::<(), leyline::region::RegionError>(())
/// ```
#[derive(Debug)]
pub struct Eager {
    not_send: PhantomData<*const ()>,
}

impl Eager {
    /// Takes this thread's token.
    ///
    /// # Errors
    /// [`RegionError::Recording`] while a region is open on this thread, else [`RegionError::AlreadyHeld`] while
    /// another token is alive on it.
    pub fn acquire() -> Result<Self, RegionError> {
        if RECORDING.get() > 0 {
            return Err(RegionError::Recording);
        }
        if HELD.replace(true) {
            return Err(RegionError::AlreadyHeld);
        }
        Ok(Self { not_send: PhantomData })
    }

    /// Runs `region`, with this token borrowed until it returns. A panic inside closes the region too.
    pub fn record<R>(&mut self, region: impl FnOnce(&Recording) -> R) -> R {
        let declared = declare_recording();
        region(&declared.recording)
    }

    /// Confirms at run time that no region is open on this thread.
    ///
    /// # Errors
    /// [`RegionError::Recording`] when a capture was opened without this token; see [`declare_recording`].
    pub fn check(&self) -> Result<(), RegionError> {
        if RECORDING.get() > 0 { Err(RegionError::Recording) } else { Ok(()) }
    }
}

impl Drop for Eager {
    fn drop(&mut self) {
        HELD.set(false);
    }
}

/// Proof that a region is open. Functions that may run only inside one take it by reference.
#[derive(Debug)]
pub struct Recording {
    not_send: PhantomData<*const ()>,
}

/// A region that was opened without a token; closed when dropped.
#[derive(Debug)]
pub struct DeclaredRecording {
    recording: Recording,
}

impl DeclaredRecording {
    /// The proof that a region is open.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }
}

impl Drop for DeclaredRecording {
    fn drop(&mut self) {
        RECORDING.set(RECORDING.get() - 1);
    }
}

/// Declares that this thread has a capture open, for code that opens one in the driver without [`Eager::record`].
/// Until the value is dropped, [`Eager::acquire`] and [`Eager::check`] fail on this thread.
#[must_use = "the declaration ends when the value is dropped"]
pub fn declare_recording() -> DeclaredRecording {
    RECORDING.set(RECORDING.get() + 1);
    DeclaredRecording { recording: Recording { not_send: PhantomData } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_token_on_the_thread_is_refused_until_the_first_is_gone() {
        let first = Eager::acquire().unwrap();
        assert_eq!(Eager::acquire().unwrap_err(), RegionError::AlreadyHeld);
        drop(first);
        assert!(Eager::acquire().is_ok());
    }

    #[test]
    fn a_token_cannot_be_acquired_while_recording() {
        let mut eager = Eager::acquire().unwrap();
        let inner = eager.record(|_| Eager::acquire().unwrap_err());
        assert_eq!(inner, RegionError::Recording);
    }

    #[test]
    fn a_token_used_under_a_foreign_capture_fails_its_check() {
        let eager = Eager::acquire().unwrap();
        let capture = declare_recording();
        assert_eq!(eager.check(), Err(RegionError::Recording));
        drop(capture);
        assert_eq!(eager.check(), Ok(()));
    }

    #[test]
    fn another_thread_has_a_token_of_its_own() {
        let mut eager = Eager::acquire().unwrap();
        eager.record(|_| {
            std::thread::spawn(|| Eager::acquire().unwrap().check().unwrap()).join().unwrap();
        });
    }

    #[test]
    fn a_panic_inside_closes_the_region() {
        let mut eager = Eager::acquire().unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eager.record(|_| panic!("planted"));
        }));
        assert!(outcome.is_err());
        assert_eq!(eager.check(), Ok(()));
    }
}
