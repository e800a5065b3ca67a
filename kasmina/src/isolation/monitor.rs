//! When the next audit is due.

use serde::{Deserialize, Serialize};

use crate::isolation::IsolationConfig;

/// The schedule of audits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Monitor {
    /// Epochs that ended since the last audit; none before the first.
    epochs_since_audit: Option<u64>,
}

impl Monitor {
    /// Whether the next batch with a seed in the shadow is to be audited. `has_new`: one of them never was.
    pub(crate) fn is_due(&self, config: &IsolationConfig, has_new: bool) -> bool {
        config.check_every_epochs > 0
            && (has_new || self.epochs_since_audit.is_none_or(|epochs| epochs >= config.check_every_epochs))
    }

    /// An audit took place.
    pub(crate) fn audited(&mut self) {
        self.epochs_since_audit = Some(0);
    }

    /// An epoch ended.
    pub(crate) fn finish_epoch(&mut self) {
        self.epochs_since_audit = self.epochs_since_audit.map(|epochs| epochs.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One character per batch, three batches per epoch: `!` is an audit. `new`: batches with a seed that was never audited.
    #[track_caller]
    fn check(check_every_epochs: u64, new: &[usize], expected: &str) {
        let config = IsolationConfig { check_every_epochs, strict: false };
        let mut monitor = Monitor::default();
        let mut found = String::new();
        for batch in 0..expected.len() {
            if batch > 0 && batch % 3 == 0 {
                monitor.finish_epoch();
            }
            let due = monitor.is_due(&config, new.contains(&batch));
            if due {
                monitor.audited();
            }
            found.push(if due { '!' } else { '.' });
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn one_batch_is_audited_in_every_nth_epoch() {
        check(0, &[], "......");
        check(1, &[], "!..!..!..");
        check(2, &[], "!.....!.....!..");
        check(u64::MAX, &[], "!........");
    }

    #[test]
    fn a_seed_that_was_never_audited_is_not_kept_waiting() {
        check(0, &[0, 1, 4], "......");
        check(2, &[0, 4], "!...!....!.....");
        check(u64::MAX, &[6], "!.....!..");
    }
}
