//! Why the policy did no more than it did: its reasons to wait, and germinations that were refused, over the whole run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tolaria::trainer::report::EpochReport;

use super::format::counted;
use super::printable::printable;

/// The rule under which germinations stand that the seed manager refused.
const REFUSED: &str = "germination_refused";

/// A reason, and how often it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// Short name of the rule, snake case; `germination_refused` for commands that the seed manager refused.
    pub rule: String,
    /// Ends of epochs at which it was given (count).
    pub epochs: u64,
    /// The last of them.
    pub last_epoch: u64,
    /// The values it was given for then.
    pub detail: String,
}

/// Every reason of the run, the latest first.
#[must_use]
pub fn waiting(epochs: &[EpochReport]) -> Vec<Waiting> {
    let mut reasons: BTreeMap<String, Waiting> = BTreeMap::new();
    for report in epochs {
        let refused = report.commands.iter().filter(|command| command.operation.starts_with("germinate "));
        let refused = refused.filter_map(|command| Some((REFUSED, command.refused.as_deref()?)));
        let given = report.waiting.iter().map(|reason| (reason.rule.as_str(), reason.detail.as_str()));
        for (rule, detail) in given.chain(refused) {
            let (rule, epoch) = (printable(rule), report.epoch.0);
            let known = Waiting { rule: rule.clone(), epochs: 0, last_epoch: 0, detail: String::new() };
            let reason = reasons.entry(rule).or_insert(known);
            reason.epochs += u64::from(reason.last_epoch < epoch);
            reason.last_epoch = epoch;
            reason.detail = printable(detail);
        }
    }
    let mut reasons: Vec<Waiting> = reasons.into_values().collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse((reason.last_epoch, reason.epochs)));
    reasons
}

impl Waiting {
    /// The rule with its epochs, `improving (14 epochs)`.
    pub(super) fn short(&self) -> String {
        format!("{} ({})", self.rule, counted(self.epochs, "epoch"))
    }
}

#[cfg(test)]
mod tests {
    use leyline::policy::Rationale;
    use tolaria::trainer::report::CommandRecord;

    use super::*;
    use crate::report::testing::epoch;

    #[test]
    fn a_reason_is_counted_once_an_epoch_and_has_its_latest_detail() {
        let reason = |rule: &str, detail: &str| Rationale { rule: rule.to_owned(), detail: detail.to_owned() };
        let command = |operation: &str, refused: Option<&str>| CommandRecord {
            sequence: Some(1),
            operation: operation.to_owned(),
            reason: String::new(),
            refused: refused.map(str::to_owned),
        };
        let told: [(&[Rationale], &[CommandRecord]); 4] = [
            (&[reason("improving", "0 of 3")], &[]),
            (&[reason("improving", "1 of 3"), reason("improving", "1 of\u{1b}[2J 3")], &[]),
            (&[], &[command("germinate mlp in a", Some("the store hangs")), command("hold seed-1", Some("no"))]),
            (&[reason("too_late", "3 left")], &[command("germinate mlp in a", None)]),
        ];
        let epochs: Vec<EpochReport> = told
            .iter()
            .zip(1..)
            .map(|((waiting, commands), number)| EpochReport {
                waiting: waiting.to_vec(),
                commands: commands.to_vec(),
                ..epoch(number)
            })
            .collect();
        let found: Vec<_> = waiting(&epochs).into_iter().map(|w| (w.rule, w.epochs, w.last_epoch, w.detail)).collect();
        let expected = [
            ("too_late", 1, 4, "3 left"),
            ("germination_refused", 1, 3, "the store hangs"),
            ("improving", 2, 2, "1 of[2J 3"),
        ];
        assert_eq!(found, expected.map(|(rule, epochs, last, detail)| (rule.into(), epochs, last, detail.into())));
    }
}
