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
//! on this thread by other means and declared with [`declare_recording`]. An object that a region may reach in other
//! ways than through its token, as a seed manager whose network the region runs, keeps a [`ThreadBinding`] and calls
//! [`ThreadBinding::check`] instead: a thread that is started inside the region has a token of its own, and the object
//! refuses it.
//!
//! | situation | found by | result |
//! |---|---|---|
//! | host-side call inside `record`, saving and restoring included | compiler | E0502; E0499 where the call borrows the token mutably |
//! | token sent to another thread | compiler | E0277 |
//! | second token on the thread | [`Eager::acquire`] | [`RegionError::AlreadyHeld`] |
//! | token acquired inside a region | [`Eager::acquire`] | [`RegionError::Recording`] |
//! | host-side call under a capture opened elsewhere | [`Eager::check`] | [`RegionError::Recording`] |
//! | host-side call on a thread started inside a region, with a token of that thread | [`ThreadBinding::check`] | [`RegionError::ForeignToken`] |
//!
//! What a region cannot name it cannot call: the trainer gives its region the network and no seed manager (see
//! `tolaria/src/trainer/region.rs`). Regions of threads that share no object do not know of each other: several trainers
//! record at the same time, each with the token of its thread.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, ErrorKind};

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
    static THREAD: Arc<Thread> = Arc::default();
}

/// A thread, as others may look at it.
#[derive(Debug, Default)]
struct Thread {
    /// Regions open on it, one inside the other.
    regions: AtomicU32,
}

impl Thread {
    fn current() -> Arc<Self> {
        THREAD.with(Arc::clone)
    }

    fn is_recording(&self) -> bool {
        self.regions.load(Ordering::SeqCst) > 0
    }
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
    /// A region is open on the thread that the object belongs to.
    #[error(
        "this object belongs to a thread that is recording a region; host-side calls on it must wait until the region is closed, and a thread that works at the same time needs an object that was made there"
    )]
    ForeignToken,
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
    thread: Arc<Thread>,
    not_send: PhantomData<*const ()>,
}

impl Eager {
    /// Takes this thread's token.
    ///
    /// # Errors
    /// [`RegionError::Recording`] while a region is open on this thread, else [`RegionError::AlreadyHeld`] while
    /// another token is alive on it.
    pub fn acquire() -> Result<Self, RegionError> {
        let thread = Thread::current();
        if thread.is_recording() {
            return Err(RegionError::Recording);
        }
        if HELD.replace(true) {
            return Err(RegionError::AlreadyHeld);
        }
        Ok(Self { thread, not_send: PhantomData })
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
        if self.thread.is_recording() { Err(RegionError::Recording) } else { Ok(()) }
    }
}

impl Drop for Eager {
    fn drop(&mut self) {
        HELD.set(false);
    }
}

/// Says to which thread a host-side object belongs: the one where it was made, until it is used on another.
///
/// While that thread records, no other may use the object, whatever token it holds. Otherwise an object moves from thread
/// to thread as it likes.
///
/// ```
/// # use leyline::region::{Eager, RegionError, ThreadBinding};
/// #[derive(Default)]
/// struct Manager { thread: ThreadBinding }
/// impl Manager {
///     fn host_side(&self, eager: &Eager) -> Result<(), RegionError> { self.thread.check(eager) }
/// }
/// let (manager, mut eager) = (Manager::default(), Eager::acquire()?);
/// let elsewhere = || std::thread::scope(|scope| {
///     scope.spawn(|| manager.host_side(&Eager::acquire()?)).join().expect("the thread ends")
/// });
/// assert_eq!(elsewhere(), Ok(()));
/// manager.host_side(&eager)?;
/// assert_eq!(eager.record(|_recording| elsewhere()), Err(RegionError::ForeignToken));
/// # Ok::<(), RegionError>(())
/// ```
#[derive(Debug)]
pub struct ThreadBinding {
    thread: Mutex<Arc<Thread>>,
}

impl ThreadBinding {
    /// Of an object that is made on this thread.
    #[must_use]
    pub fn new() -> Self {
        Self { thread: Mutex::new(Thread::current()) }
    }

    /// [`Eager::check`], and that the object is not another thread's which records. Then it belongs to this one.
    ///
    /// # Errors
    /// [`RegionError::Recording`] as [`Eager::check`], else [`RegionError::ForeignToken`].
    pub fn check(&self, eager: &Eager) -> Result<(), RegionError> {
        eager.check()?;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&thread, &eager.thread) {
            if thread.is_recording() {
                return Err(RegionError::ForeignToken);
            }
            thread.clone_from(&eager.thread);
        }
        Ok(())
    }
}

impl Default for ThreadBinding {
    fn default() -> Self {
        Self::new()
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
    thread: Arc<Thread>,
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
        self.thread.regions.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Declares that this thread has a capture open, for code that opens one in the driver without [`Eager::record`].
/// Until the value is dropped, [`Eager::acquire`] and [`Eager::check`] fail on this thread.
#[must_use = "the declaration ends when the value is dropped"]
pub fn declare_recording() -> DeclaredRecording {
    let thread = Thread::current();
    thread.regions.fetch_add(1, Ordering::SeqCst);
    DeclaredRecording { thread, recording: Recording { not_send: PhantomData } }
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

    /// What another thread, with a token that it acquires for the purpose, is told about the object.
    fn elsewhere(object: &ThreadBinding) -> Result<(), RegionError> {
        std::thread::scope(|scope| scope.spawn(|| object.check(&Eager::acquire().unwrap())).join().unwrap())
    }

    #[test]
    fn an_object_is_refused_elsewhere_for_as_long_as_its_thread_records() {
        let (object, mut eager) = (ThreadBinding::new(), Eager::acquire().unwrap());
        let never_used = eager.record(|_| elsewhere(&object));
        assert_eq!(never_used, Err(RegionError::ForeignToken), "it belongs to the thread that made it");
        assert_eq!(elsewhere(&object), Ok(()), "after the region it may move");
        assert_eq!(eager.record(|_| elsewhere(&object)), Ok(()), "then it belongs to the other thread");
        assert_eq!(object.check(&eager), Ok(()));
        let declared = declare_recording();
        assert_eq!(elsewhere(&object), Err(RegionError::ForeignToken));
        assert_eq!(object.check(&eager), Err(RegionError::Recording));
        drop(declared);
        assert_eq!([object.check(&eager), elsewhere(&object)], [Ok(()); 2]);
    }

    #[test]
    fn a_thread_that_was_there_before_the_region_is_refused_as_well() {
        let (object, mut eager) = (ThreadBinding::new(), Eager::acquire().unwrap());
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (answer, answered) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let object = &object;
            scope.spawn(move || {
                let eager = Eager::acquire().unwrap();
                asked.iter().for_each(|()| answer.send(object.check(&eager)).unwrap());
            });
            let found = eager.record(|_| {
                ask.send(()).unwrap();
                answered.recv().unwrap()
            });
            assert_eq!(found, Err(RegionError::ForeignToken));
            drop(ask);
        });
    }

    #[test]
    fn regions_of_threads_with_objects_of_their_own_do_not_disturb_each_other() {
        let all_record = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (object, mut eager) = (ThreadBinding::new(), Eager::acquire().unwrap());
                    for _ in 0..100 {
                        assert_eq!(object.check(&eager), Ok(()));
                        eager.record(|_| all_record.wait());
                    }
                });
            }
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
