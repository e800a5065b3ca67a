//! Time as an argument: code that measures or waits takes a clock, so that tests need not sleep.

use std::time::Duration;

/// Monotonic and calendar time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Time since an arbitrary fixed origin; never goes back.
    fn now(&self) -> Duration;

    /// Time since 1970-01-01 UTC; may jump when the calendar is set.
    fn unix(&self) -> Duration;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// A clock whose origin is now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place where the operating system's clock enters")]
    pub fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where the operating system's clock enters")]
    fn unix(&self) -> Duration {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO)
    }
}
