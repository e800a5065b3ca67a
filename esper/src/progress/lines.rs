//! Plain lines.

use std::io::Write;

use leyline::state::Score;
use tolaria::trainer::report::EpochReport;

/// Writes a text in one piece, so that lines of others do not come between. A closed output is no reason to end a run.
pub(super) fn put(out: &mut dyn Write, text: &str) {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

/// An epoch without a display.
pub(super) fn line(report: &EpochReport, num_epochs: u64) -> String {
    format!("epoch {}/{num_epochs}  {}\n", report.epoch, joined(&scores(report).each_ref().map(String::as_str)))
}

/// A fraction in percent.
fn percent(fraction: f64) -> String {
    format!("{:.2}%", fraction * 100.0)
}

/// Fields side by side; one that says nothing takes no room.
pub(super) fn joined(fields: &[&str]) -> String {
    fields.iter().copied().filter(|field| !field.is_empty()).collect::<Vec<_>>().join("  ")
}

/// Loss and accuracy of the training, both of the validation, and the speed. Where a task has no accuracy, the first of its
/// measures by name stands beside the validation, with its name.
pub(super) fn scores(report: &EpochReport) -> [String; 4] {
    let loss = |train: &Score| format!("loss {:.4}", train.loss);
    let accuracy = |train: &Score| Some(format!("accuracy {}", percent(train.accuracy()?)));
    let train = report.train.as_ref();
    [
        train.map_or_else(|| format!("{} steps skipped", report.skipped_steps), loss),
        train.and_then(accuracy).unwrap_or_default(),
        validation(&report.validation),
        format!("{:.0} samples/s", report.samples_per_s),
    ]
}

/// Loss and a measure of held-out data.
pub(super) fn validation(score: &Score) -> String {
    let measure = match (score.accuracy(), score.measures.first_key_value()) {
        (Some(accuracy), _) => percent(accuracy),
        (None, Some((name, value))) => format!("{name} {value:.4}"),
        (None, None) => String::new(),
    };
    joined(&[&format!("validation {:.4}", score.loss), &measure])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::epoch;

    #[test]
    fn what_is_shown_of_held_out_data_follows_from_what_was_measured() {
        let score = Score::new(0.25, 8);
        assert_eq!(validation(&score), "validation 0.2500");
        assert_eq!(validation(&score.clone().with("r2", 0.5).with("mae", 1.5)), "validation 0.2500  mae 1.5000");
        assert_eq!(validation(&score.with("r2", 0.5).with("accuracy", 0.875)), "validation 0.2500  87.50%");
    }

    #[test]
    fn an_epoch_without_a_training_loss_tells_its_skipped_steps() {
        let skipped = EpochReport { train: None, skipped_steps: 3, ..epoch(1) };
        assert_eq!(line(&skipped, 2), "epoch 1/2  3 steps skipped  validation 0.5000  75.00%  100 samples/s\n");
    }
}
