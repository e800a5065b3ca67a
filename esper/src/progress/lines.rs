//! Plain lines.

use std::io::Write;

use tolaria::trainer::report::EpochReport;

use super::state::percent;

/// Writes a text in one piece, so that lines of others do not come between. A closed output is no reason to end a run.
pub(super) fn put(out: &mut dyn Write, text: &str) {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

/// An epoch without a display.
pub(super) fn line(report: &EpochReport, num_epochs: u64) -> String {
    format!("epoch {}/{num_epochs}  {}\n", report.epoch, scores(report).join("  "))
}

/// Loss and accuracy of the training, both of the validation, and the speed.
pub(super) fn scores(report: &EpochReport) -> [String; 4] {
    let (train, validation) = (&report.train, &report.validation);
    [
        format!("loss {:.4}", train.loss),
        format!("accuracy {}", percent(train.accuracy())),
        format!("validation {:.4}  {}", validation.loss, percent(validation.accuracy())),
        format!("{:.0} samples/s", report.samples_per_s),
    ]
}
