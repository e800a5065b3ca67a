//! Values that cannot be used, each with its key and the accepted values.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use leyline::id::BlueprintId;
use leyline::seed::SlotState;

/// A value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigIssue {
    /// Which value: a dotted path below the policy's section.
    pub key: String,
    /// What is wrong and what is accepted.
    pub message: String,
}

impl Display for ConfigIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.key, self.message)
    }
}

/// Collects issues instead of stopping at the first.
#[derive(Debug, Default)]
pub(super) struct Issues(Vec<ConfigIssue>);

impl Issues {
    /// Records an issue unless `accepted`.
    pub(super) fn require(&mut self, accepted: bool, key: &str, value: impl Display, expected: impl Display) {
        if !accepted {
            self.0.push(ConfigIssue { key: key.to_owned(), message: format!("is {value}: expected {expected}") });
        }
    }

    /// `value` must lie in `range`; a NaN lies in none.
    pub(super) fn within<T: PartialOrd + Display>(&mut self, key: &str, value: T, range: RangeInclusive<T>) {
        let expected = format!("{} to {}", range.start(), range.end());
        self.require(range.contains(&value), key, value, expected);
    }

    /// `value` must be at least `least`.
    pub(super) fn at_least(&mut self, key: &str, value: u64, least: u64) {
        self.require(value >= least, key, value, format_args!("at least {least}"));
    }

    /// `blueprint` must be on offer in one of the slots.
    pub(super) fn offered(&mut self, key: &str, blueprint: &BlueprintId, slots: &[&SlotState]) {
        let offers: BTreeSet<&BlueprintId> =
            slots.iter().flat_map(|slot| &slot.offers).map(|offer| &offer.blueprint).collect();
        let place = if let [slot] = slots { format!(", on offer in `{}`", slot.slot) } else { String::new() };
        let names = offers.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(", ");
        let expected = format!("one of {}{place}", if names.is_empty() { "none" } else { &names });
        self.require(offers.contains(blueprint), key, format_args!("`{blueprint}`"), expected);
    }

    pub(super) fn finish(self) -> Result<(), Vec<ConfigIssue>> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }
}
