//! What keeps a run going when policy or seed manager do not, or ends it in order: deadlines of calls, breakers, conservative
//! mode, emergency levels.
//!
//! The policy answers on a thread of its own ([`esper_safety::timed`]). Calls of the seed manager borrow the network and the
//! token of this thread, so they can be neither given away nor left behind: they are measured, and a manager that is slow is
//! left alone at later boundaries.

mod calls;
mod levels;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use esper_safety::{BreakerConfig, Limits, Timed};
use leyline::command::Command;
use leyline::error::BoxError;
use leyline::policy::Policy;
use leyline::telemetry::Recorder;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::trainer::run::Parts;
use calls::Calls;
use levels::Levels;

/// How long policy and seed manager may take, and what follows when they take longer. As TOML: `safety = { policy_ms = 500 }`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SafetyConfig {
    /// Time that the policy has to answer at the end of an epoch, milliseconds, at most 60 000: orders are not valid for longer.
    /// Absent waits for it, whatever it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_ms: Option<NonZeroU64>,
    /// Time for each call of the seed manager at the end of an epoch, milliseconds. None is broken off: one that takes longer
    /// is counted, and nothing grows until they are fast again. Absent only measures them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seeds_ms: Option<NonZeroU64>,
    /// When a policy or a seed manager that fails or is late is left alone, each for itself.
    pub breaker: BreakerConfig,
    /// Epochs in a row with a call that failed or was late, or in which the run went back, after which structure and schedules of seeds
    /// stand still for an epoch and steps run without graphs. Absent never does that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe_after_epochs: Option<NonZeroU32>,
    /// Such epochs in a row after which the run writes a checkpoint and ends. Absent never does that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halt_after_epochs: Option<NonZeroU32>,
}

impl SafetyConfig {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Every setting that cannot work, as (key, what is accepted).
    pub(super) fn validate(&self) -> Vec<(String, String)> {
        let most = u64::from(Command::MAX_VALID_FOR_MS);
        let breaker = self.breaker.validate("breaker");
        let mut issues: Vec<(String, String)> = breaker.into_iter().map(|issue| (issue.key, issue.message)).collect();
        for (key, value) in [("policy_ms", self.policy_ms), ("seeds_ms", self.seeds_ms)] {
            if value.is_some_and(|value| value.get() > most) {
                issues.push((key.to_owned(), format!("1 to {most}")));
            }
        }
        issues
    }
}

/// The parts, with a policy that has its deadline.
///
/// # Errors
/// [`Error::Policy`] when it has no thread, or cannot be saved.
pub(super) fn timed<S, P: Policy + 'static>(
    config: &SafetyConfig,
    parts: Parts<S, P>,
) -> Result<Parts<S, Timed<P>>, Error> {
    let Parts { run_id, seed, num_epochs, max_steps, device, data, task, seeds, policy, checkpoints, recorder, clock } =
        parts;
    let policy = match config.policy_ms {
        None => Timed::here(policy),
        Some(ms) => {
            let limits = Limits { deadline: Duration::from_millis(ms.get()), breaker: config.breaker };
            let timed = Timed::on_a_thread(policy, limits, Arc::clone(&clock));
            timed.map_err(|error| Error::Policy(BoxError::new(error)))?
        }
    };
    Ok(Parts { run_id, seed, num_epochs, max_steps, device, data, task, seeds, policy, checkpoints, recorder, clock })
}

/// What a trainer remembers of it.
#[derive(Debug)]
pub(super) struct Safety {
    calls: Calls,
    levels: Levels,
}

impl Safety {
    pub(super) fn new(config: &SafetyConfig, recorder: &Arc<dyn Recorder>) -> Self {
        Self { calls: Calls::new(config, recorder), levels: Levels::new(recorder) }
    }
}
