//! How a run ended, and why where it did not end well.

use leyline::error::{Error as _, ErrorKind};
use tolaria::trainer::Outcome;
use tolaria::trainer::report::EpochReport;

use crate::report::RunOutcome;

/// A run whose losses end above so many times that of a uniform guess has diverged: no network that learned anything is so
/// sure of what is wrong, and one that only knows its training data by heart does better on them.
const GUESSES: f64 = 2.0;
const REMEDY: &str = "expected a lower train.schedule.learning_rate or train.clip_norm";

/// The outcome, and the reason unless the run trained all of its epochs or was interrupted. `end_reason` says why one is over
/// that did not train all of them.
pub(super) fn verdict(
    ended: &Result<Outcome, tolaria::Error>,
    end_reason: Option<String>,
    epochs: &[EpochReport],
    guess: Option<f64>,
) -> (RunOutcome, Option<String>) {
    match ended {
        Err(error) => {
            let outcome = if error.kind() == ErrorKind::Numeric { RunOutcome::Diverged } else { RunOutcome::Failed };
            (outcome, Some(chain(error)))
        }
        Ok(Outcome::Interrupted) => (RunOutcome::Interrupted, None),
        Ok(Outcome::Halted) => (RunOutcome::Halted, end_reason),
        Ok(Outcome::Completed | Outcome::MaxSteps | Outcome::EarlyStopped) => {
            match epochs.last().and_then(|last| worse_than_guessing(last, guess)) {
                Some(reason) => (RunOutcome::Diverged, Some(reason)),
                None => (RunOutcome::Completed, end_reason),
            }
        }
    }
}

fn worse_than_guessing(last: &EpochReport, guess: Option<f64>) -> Option<String> {
    let guess = guess?;
    let validation = last.validation.loss;
    let train = last.train.as_ref().map(|train| train.loss);
    let least = train.map_or(validation, |train| train.min(validation));
    (least > GUESSES * guess).then(|| {
        let train = train.map_or_else(String::new, |train| format!("{train:.3} in training and "));
        format!(
            "training diverged: the losses of epoch {} are {train}{validation:.3} in validation, a guess has {guess:.3}; \
             {REMEDY}",
            last.epoch
        )
    })
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use leyline::id::EpochIndex;
    use leyline::state::Score;

    use super::*;
    use crate::report::testing::epoch;

    #[track_caller]
    fn check(ended: Result<Outcome, tolaria::Error>, losses: [f64; 2], expected: RunOutcome, reason: Option<&str>) {
        let [train, validation] = losses.map(|loss| Score::new(loss, 3));
        let train = Some(train);
        let early = matches!(ended, Ok(Outcome::EarlyStopped)).then(|| "stopped early".to_owned());
        let (outcome, found) =
            verdict(&ended, early, &[EpochReport { train, validation, ..epoch(4) }], Some(10.0_f64.ln()));
        assert_eq!((outcome, found.as_deref()), (expected, reason));
    }

    #[test]
    fn a_run_has_diverged_when_its_numbers_are_not_finite_or_it_is_worse_than_guessing() {
        let completed = || Ok(Outcome::Completed);
        check(completed(), [2.5, 2.6], RunOutcome::Completed, None);
        check(completed(), [0.1, 40.0], RunOutcome::Completed, None);
        let reason = "training diverged: the losses of epoch 4 are 431.000 in training and 430.500 in validation, a \
                      guess has 2.303; expected a lower train.schedule.learning_rate or train.clip_norm";
        check(completed(), [431.0, 430.5], RunOutcome::Diverged, Some(reason));
        check(Ok(Outcome::EarlyStopped), [2.5, 2.6], RunOutcome::Completed, Some("stopped early"));
        check(Ok(Outcome::EarlyStopped), [431.0, 430.5], RunOutcome::Diverged, Some(reason));
        let unknown = verdict(&completed(), None, &[EpochReport { train: Some(Score::new(1e9, 3)), ..epoch(4) }], None);
        assert_eq!(unknown, (RunOutcome::Completed, None), "what guessing comes to is not known of every task");
        check(Ok(Outcome::Interrupted), [431.0, 430.5], RunOutcome::Interrupted, None);
        check(Ok(Outcome::Halted), [431.0, 430.5], RunOutcome::Halted, None);
        let unmeasured = EpochReport { train: None, validation: Score::new(430.5, 3), ..epoch(4) };
        let (outcome, reason) = verdict(&completed(), None, &[unmeasured], Some(10.0_f64.ln()));
        let reason = reason.unwrap();
        assert_eq!(outcome, RunOutcome::Diverged);
        assert!(reason.contains("430.500 in validation") && !reason.contains("in training"), "{reason}");
        let diverged = tolaria::Error::Diverged { num_skipped: 4, num_steps: 5, epoch: EpochIndex(1), scale: None };
        let text = diverged.to_string();
        check(Err(diverged), [1.0, 1.0], RunOutcome::Diverged, Some(&text));
        let failed = tolaria::Error::SharedDevice;
        let text = failed.to_string();
        check(Err(failed), [1.0, 1.0], RunOutcome::Failed, Some(&text));
    }
}
