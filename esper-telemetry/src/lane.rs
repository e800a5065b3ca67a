//! A remote sink, on a thread and behind a queue of its own: what it costs is its own packets, never those of other sinks.

use std::num::NonZeroUsize;
use std::slice;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leyline::clock::Clock;
use leyline::telemetry::Counter;

use crate::error::Error;
use crate::queue::{Closer, Intake, Outlet, QueueConfig, Queued, queue};
use crate::sink::REMOTE_QUEUE;
use crate::slot::{Parcel, Slot, finish};

/// The near side of a lane.
#[derive(Debug)]
pub(crate) struct Lane {
    intake: Intake<OnItsWay>,
    errors: Counter,
    closer: Closer,
    /// When it was closed, by the clock.
    closed: Arc<OnceLock<Duration>>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct OnItsWay {
    parcel: Parcel,
    /// Counts it where nobody tried to write it.
    untried: Option<Counter>,
}

impl Lane {
    /// Starts the thread. What nobody tried to write is counted in `errors`.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(crate) fn start(slot: Slot, errors: Counter, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let capacity = const { NonZeroUsize::new(REMOTE_QUEUE).expect("above 0") };
        let (intake, outlet, closer) = queue(&QueueConfig { capacity });
        let closed = slot.closed();
        let far_side = FarSide { outlet, slot, clock };
        let named = thread::Builder::new().name("esper-remote".to_owned());
        let thread = named.spawn(move || far_side.run()).map_err(Error::Thread)?;
        Ok(Self { intake, errors, closer, closed, thread })
    }

    /// Takes a packet, an ordinary one where there is room. Never waits.
    pub(crate) fn offer(&self, parcel: Parcel) {
        self.intake.offer(OnItsWay { parcel, untried: Some(self.errors.clone()) });
    }

    /// Says that nothing more comes.
    pub(crate) fn close(self, now: Duration) -> JoinHandle<()> {
        self.closed.get_or_init(|| now);
        drop(self.closer);
        self.thread
    }
}

struct FarSide {
    outlet: Outlet<OnItsWay>,
    slot: Slot,
    clock: Arc<dyn Clock>,
}

impl FarSide {
    fn run(mut self) {
        while let Some(mut next) = self.outlet.next(|| self.slot.idle()) {
            if self.slot.is_late() {
                continue;
            }
            next.untried = None;
            self.slot.offer(next.parcel.clone());
        }
        // Where the worker panicked, nobody said that it is closed.
        finish(slice::from_mut(&mut self.slot), self.clock.now());
    }
}

impl Queued for OnItsWay {
    fn is_critical(&self) -> bool {
        self.parcel.is_critical()
    }

    fn is_boundary(&self) -> bool {
        false
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.untried.iter().for_each(|errors| errors.add(1));
    }
}
