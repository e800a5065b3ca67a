//! Channels and threads of the loader: those of every day, or those of a model checker.
//!
//! Unit tests with the cargo feature `model-check` get the types of shuttle, which run on its scheduler and panic outside of it.

#[cfg(not(all(test, feature = "model-check")))]
pub(super) use crossbeam::channel::{Receiver, Sender, unbounded};
#[cfg(all(test, feature = "model-check"))]
pub(super) use model::{Receiver, Sender, unbounded};
#[cfg(all(test, feature = "model-check"))]
pub(super) use shuttle::thread::{Builder, JoinHandle};
#[cfg(not(all(test, feature = "model-check")))]
pub(super) use std::thread::{Builder, JoinHandle};

/// A channel whose receiver can be cloned, of a channel whose receiver cannot.
#[cfg(all(test, feature = "model-check"))]
mod model {
    use shuttle::sync::mpsc::{self, RecvError};
    use shuttle::sync::{Arc, Mutex};

    pub(in super::super) use shuttle::sync::mpsc::Sender;

    pub(in super::super) struct Receiver<T>(Arc<Mutex<mpsc::Receiver<T>>>);

    pub(in super::super) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = mpsc::channel();
        (sender, Receiver(Arc::new(Mutex::new(receiver))))
    }

    impl<T> Clone for Receiver<T> {
        fn clone(&self) -> Self {
            Self(Arc::clone(&self.0))
        }
    }

    impl<T> Receiver<T> {
        pub(in super::super) fn recv(&self) -> Result<T, RecvError> {
            self.0.lock().expect("nobody panics while holding it").recv()
        }
    }
}
