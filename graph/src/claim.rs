//! Which thread uses a device.
//!
//! Work on one candle device goes through one stream, one handle for products and one work space, and whatever a second
//! thread enqueues while the first one records becomes part of the recording. So a device is claimed by who trains or
//! records on it, and all claims of a device belong to one thread at a time.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// The claims of a process, by what tells devices apart.
pub(crate) struct Claims<K>(Mutex<Vec<Held<K>>>);

struct Held<K> {
    key: K,
    thread: ThreadId,
    num_claims: usize,
}

/// A thread's hold of a device, until it is dropped, on whatever thread that is.
pub(crate) struct Claim<'a, K: Copy + PartialEq> {
    claims: &'a Claims<K>,
    key: K,
}

/// Another thread holds the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldElsewhere;

impl<K: Copy + PartialEq> Claims<K> {
    /// No claims.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Claims a device for this thread.
    ///
    /// # Errors
    /// When another thread has a claim.
    pub(crate) fn take(&self, key: K) -> Result<Claim<'_, K>, HeldElsewhere> {
        let thread = thread::current().id();
        let mut held = self.lock();
        match held.iter_mut().find(|held| held.key == key) {
            Some(held) if held.thread == thread => held.num_claims += 1,
            Some(_) => return Err(HeldElsewhere),
            None => held.push(Held { key, thread, num_claims: 1 }),
        }
        Ok(Claim { claims: self, key })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held<K>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + PartialEq> Claim<'_, K> {
    /// Takes the device along to this thread, where this is the only claim of it.
    ///
    /// # Errors
    /// When there are others, of another thread.
    pub(crate) fn enter(&self) -> Result<(), HeldElsewhere> {
        let thread = thread::current().id();
        let mut held = self.claims.lock();
        let held = held.iter_mut().find(|held| held.key == self.key).expect("a claim is known until it is dropped");
        if held.thread != thread && held.num_claims > 1 {
            return Err(HeldElsewhere);
        }
        held.thread = thread;
        Ok(())
    }
}

impl<K: Copy + PartialEq> Drop for Claim<'_, K> {
    fn drop(&mut self) {
        let mut all = self.claims.lock();
        let index = all.iter().position(|held| held.key == self.key).expect("a claim is known until it is dropped");
        all[index].num_claims -= 1;
        if all[index].num_claims == 0 {
            all.swap_remove(index);
        }
    }
}

impl<K: Copy + PartialEq + fmt::Debug> fmt::Debug for Claim<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.key).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// What happens on another thread.
    fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn a_device_is_claimed_by_one_thread_as_often_as_it_likes_and_others_are_free() {
        let claims = Claims::new();
        let first = claims.take(0).unwrap();
        let second = claims.take(0).unwrap();
        assert_eq!(elsewhere(|| claims.take(0).map(drop)), Err(HeldElsewhere));
        assert_eq!(elsewhere(|| claims.take(1).map(drop)), Ok(()));
        drop(first);
        assert_eq!(elsewhere(|| claims.take(0).map(drop)), Err(HeldElsewhere));
        drop(second);
        assert_eq!(elsewhere(|| claims.take(0).map(drop)), Ok(()), "a claim ends when it is dropped");
        assert!(claims.lock().is_empty());
    }

    #[test]
    fn the_only_claim_moves_with_its_owner_and_one_of_several_does_not() {
        let claims = Claims::new();
        let claim = claims.take('a').unwrap();
        assert_eq!(elsewhere(|| claim.enter()), Ok(()));
        assert_eq!(claims.take('a').map(drop), Err(HeldElsewhere), "it is the other thread's now");
        assert_eq!(claim.enter(), Ok(()), "and comes back");
        let other = claims.take('a').unwrap();
        assert_eq!(elsewhere(|| claim.enter()), Err(HeldElsewhere));
        assert_eq!((claim.enter(), other.enter()), (Ok(()), Ok(())));
        elsewhere(move || drop(other));
        assert_eq!(elsewhere(|| claim.enter()), Ok(()));
    }

    #[test]
    fn of_threads_that_ask_at_once_one_gets_the_device() {
        let claims = Claims::new();
        for round in 0..50 {
            let (start, end) = (Barrier::new(4), Barrier::new(4));
            let ask = || {
                start.wait();
                let claim = claims.take(round);
                end.wait();
                claim.is_ok()
            };
            let granted = thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&granted| granted).count()
            });
            assert_eq!(granted, 1, "round {round}");
        }
    }
}
