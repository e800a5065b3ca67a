//! Emergency levels of a run: one number that the trainer looks at after each step, and who raised it.
//!
//! Two may raise it, each for itself: the limits of the run, and an operator. The higher one is the level; the run's own part
//! falls when its reasons are gone, the operator's when the operator says so. A halt stands until the run is begun anew.
//!
//! # Threads
//! Any thread may raise, lower and look. Every change of the level is counted once, whoever made it, and has a sequence number of its
//! own: whoever tells others of changes tells of each once, in order.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How bad it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Nothing is known to be wrong.
    #[default]
    Normal = 0,
    /// Somebody should look; nothing else changes.
    Notice = 1,
    /// Nothing grows.
    Conservative = 2,
    /// The structure stands still, and steps run without graphs.
    Safe = 3,
    /// The run writes a checkpoint and ends.
    Halt = 4,
}

impl Level {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::Normal, Self::Notice, Self::Conservative, Self::Safe, Self::Halt];

    /// The number that telemetry shows, 0 to 4.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The level of a number, 0 to 4.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Notice => "notice",
            Self::Conservative => "conservative",
            Self::Safe => "safe",
            Self::Halt => "halt",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No level has this number or name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no level; expected 0 to 4, or normal, notice, conservative, safe, halt")]
pub struct ParseLevelError(String);

impl FromStr for Level {
    type Err = ParseLevelError;

    fn from_str(text: &str) -> Result<Self, ParseLevelError> {
        let by_name = Self::ALL.into_iter().find(|level| level.name() == text);
        let by_number = || text.parse().ok().and_then(Self::of_number);
        by_name.or_else(by_number).ok_or_else(|| ParseLevelError(text.to_owned()))
    }
}

/// Who raises the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The run itself, by its limits.
    Run,
    /// Somebody from outside.
    Operator,
}

impl Origin {
    /// The name in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Operator => "operator",
        }
    }
}

/// A change of the level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Counts the changes of a run, from 1.
    pub sequence: u64,
    /// The level before.
    pub from: Level,
    /// The level after.
    pub to: Level,
    /// Who made it so, and why.
    pub origin: Origin,
    /// For people.
    pub reason: String,
}

/// The level of one run; clones are handles of the same.
///
/// ```
/// use esper_safety::emergency::{Emergency, Level, Origin};
///
/// let emergency = Emergency::default();
/// emergency.set(Origin::Operator, Level::Safe, "a look at the data");
/// emergency.set(Origin::Run, Level::Notice, "a late answer");
/// assert_eq!(emergency.level(), Level::Safe);
/// emergency.set(Origin::Operator, Level::Normal, "it was nothing");
/// assert_eq!(emergency.level(), Level::Notice);
/// assert_eq!(emergency.changes_after(0).len(), 2);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Emergency(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// What `state` says, for who asks after each step.
    level: AtomicU8,
    num_changes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_run: Level,
    by_operator: Level,
    /// The last ones.
    changes: Vec<Change>,
}

/// Changes that wait for who tells of them; older ones are counted, and not told any more.
const MAX_CHANGES: usize = 64;

impl Emergency {
    /// The level now.
    ///
    /// # Sync
    /// One load of a byte.
    #[must_use]
    pub fn level(&self) -> Level {
        Level::of_number(self.0.level.load(Ordering::Relaxed)).unwrap_or(Level::Halt)
    }

    /// Says how bad it is as far as `origin` knows; whether that changed the level. After a halt nothing does.
    pub fn set(&self, origin: Origin, level: Level, reason: &str) -> bool {
        let mut state = self.lock();
        let from = state.level();
        match origin {
            Origin::Run => state.by_run = level,
            Origin::Operator => state.by_operator = level,
        }
        if from == Level::Halt {
            state.by_operator = Level::Halt;
        }
        let to = state.level();
        if from == to {
            return false;
        }
        let sequence = self.num_changes() + 1;
        if state.changes.len() == MAX_CHANGES {
            state.changes.remove(0);
        }
        let change = Change { sequence, from, to, origin, reason: reason.to_owned() };
        state.changes.push(change);
        self.0.level.store(to.number(), Ordering::Relaxed);
        // Last: who sees the number finds the change.
        self.0.num_changes.store(sequence, Ordering::Release);
        true
    }

    /// The level as far as `origin` knows.
    #[must_use]
    pub fn level_by(&self, origin: Origin) -> Level {
        let state = self.lock();
        match origin {
            Origin::Run => state.by_run,
            Origin::Operator => state.by_operator,
        }
    }

    /// Changes so far.
    ///
    /// # Sync
    /// One load of a number.
    #[must_use]
    pub fn num_changes(&self) -> u64 {
        self.0.num_changes.load(Ordering::Acquire)
    }

    /// Changes since the one with this number, in order, at most the last 64.
    #[must_use]
    pub fn changes_after(&self, sequence: u64) -> Vec<Change> {
        let state = self.lock();
        state.changes.iter().filter(|change| change.sequence > sequence).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn level(&self) -> Level {
        self.by_run.max(self.by_operator)
    }
}

#[cfg(test)]
#[cfg(not(feature = "model-check"))]
mod tests {
    use super::*;

    #[test]
    fn the_higher_of_both_counts_and_a_halt_stands() {
        let emergency = Emergency::default();
        for (origin, level, expected) in [
            (Origin::Run, Level::Notice, Level::Notice),
            (Origin::Operator, Level::Conservative, Level::Conservative),
            (Origin::Run, Level::Normal, Level::Conservative),
            (Origin::Operator, Level::Normal, Level::Normal),
            (Origin::Run, Level::Safe, Level::Safe),
            (Origin::Run, Level::Halt, Level::Halt),
            (Origin::Run, Level::Normal, Level::Halt),
            (Origin::Operator, Level::Normal, Level::Halt),
        ] {
            emergency.set(origin, level, "test");
            assert_eq!(emergency.level(), expected, "{origin:?} {level}");
        }
        let told: Vec<(u64, Level)> = emergency.changes_after(2).iter().map(|it| (it.sequence, it.to)).collect();
        assert_eq!(told, [(3, Level::Normal), (4, Level::Safe), (5, Level::Halt)]);
    }

    #[test]
    fn levels_are_read_by_number_and_name() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
            assert_eq!(level.number().to_string().parse(), Ok(level));
        }
        for text in ["", "5", "-1", "Halt", "all"] {
            assert!(text.parse::<Level>().is_err(), "{text}");
        }
    }

    /// Every change is counted once, and each goes from where the one before led.
    #[test]
    fn no_change_is_lost_or_counted_twice_under_stress() {
        const THREADS: u64 = 8;
        const SETS: u64 = 20_000;
        let emergency = Emergency::default();
        let set = |thread: u64| {
            let emergency = emergency.clone();
            move || {
                let mut state = thread + 1;
                let mut num_changes = 0;
                for _ in 0..SETS {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let level = Level::ALL[usize::try_from(state >> 33).unwrap() % 4];
                    let origin = if thread.is_multiple_of(2) { Origin::Run } else { Origin::Operator };
                    num_changes += u64::from(emergency.set(origin, level, "stress"));
                }
                num_changes
            }
        };
        let (counted, followed) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(set(thread))).collect();
            // Meanwhile somebody tells of changes.
            let (mut last, mut followed) = (None::<Change>, 0);
            while !threads.iter().all(|thread| thread.is_finished()) {
                for change in emergency.changes_after(last.as_ref().map_or(0, |last| last.sequence)) {
                    if let Some(last) = last.filter(|last| last.sequence + 1 == change.sequence) {
                        assert_eq!(last.to, change.from);
                        followed += 1;
                    }
                    assert_ne!(change.from, change.to);
                    last = Some(change);
                }
            }
            (threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>(), followed)
        });
        assert_eq!(emergency.num_changes(), counted);
        assert!(followed > 0 && counted > SETS / 10, "{counted} changes, {followed} of them looked at");
        assert_eq!(emergency.level(), emergency.lock().level());
    }
}
