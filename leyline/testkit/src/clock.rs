//! A clock that moves when told to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leyline::clock::Clock;

/// Stands still until advanced; calendar time moves along with monotonic time. Share it in an `Arc`.
#[derive(Debug)]
pub struct ManualClock {
    now_ns: AtomicU64,
    unix_origin: Duration,
}

impl ManualClock {
    /// A clock at its origin, with this calendar time.
    #[must_use]
    pub fn new(unix: Duration) -> Self {
        Self { now_ns: AtomicU64::new(0), unix_origin: unix }
    }

    /// Moves both times forward.
    ///
    /// # Panics
    /// When the clock would run for more than 584 years.
    pub fn advance(&self, by: Duration) {
        let by_ns = u64::try_from(by.as_nanos()).expect("a test advances by less than 584 years");
        self.now_ns.fetch_add(by_ns, Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    /// 2023-11-14 22:13:20 UTC.
    fn default() -> Self {
        Self::new(Duration::from_secs(1_700_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::SeqCst))
    }

    fn unix(&self) -> Duration {
        self.unix_origin + self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_when_advanced_and_both_times_move_together() {
        let clock = ManualClock::default();
        let (now, unix) = (clock.now(), clock.unix());
        assert_eq!(clock.now(), now);
        clock.advance(Duration::from_millis(1_500));
        assert_eq!(clock.now() - now, Duration::from_millis(1_500));
        assert_eq!(clock.unix() - unix, Duration::from_millis(1_500));
    }
}
