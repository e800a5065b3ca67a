//! Values that cannot be used, each with its key and the accepted values.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use leyline::config::ConfigIssue;
use leyline::id::BlueprintId;
use leyline::seed::SlotState;

/// Collects issues instead of stopping at the first. Keys are those within the section of one policy.
#[derive(Debug, Default)]
pub struct Issues {
    section: &'static str,
    found: Vec<ConfigIssue>,
}

impl Issues {
    /// The same collection, for the section of this policy.
    pub(crate) fn of(&mut self, section: &'static str) -> &mut Self {
        self.section = section;
        self
    }

    /// Records an issue unless `accepted`.
    pub fn require(&mut self, accepted: bool, key: &str, value: impl Display, expected: impl Display) {
        if !accepted {
            let key = format!("{}.{key}", self.section);
            self.found.push(ConfigIssue::new(key, format!("is {value}: expected {expected}")));
        }
    }

    /// `value` must lie in `range`; a NaN lies in none.
    pub fn within<T: PartialOrd + Display>(&mut self, key: &str, value: T, range: RangeInclusive<T>) {
        let expected = format!("{} to {}", range.start(), range.end());
        self.require(range.contains(&value), key, value, expected);
    }

    /// `value` must be at least `least`.
    pub fn at_least(&mut self, key: &str, value: u64, least: u64) {
        self.require(value >= least, key, value, format_args!("at least {least}"));
    }

    /// `blueprint` must be on offer in one of the slots.
    pub fn offered(&mut self, key: &str, blueprint: &BlueprintId, slots: &[&SlotState]) {
        let offers: BTreeSet<&BlueprintId> =
            slots.iter().flat_map(|slot| &slot.offers).map(|offer| &offer.blueprint).collect();
        let place = if let [slot] = slots { format!(", on offer in `{}`", slot.slot) } else { String::new() };
        let names = offers.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(", ");
        let expected = format!("one of {}{place}", if names.is_empty() { "none" } else { &names });
        self.require(offers.contains(blueprint), key, format_args!("`{blueprint}`"), expected);
    }

    pub(crate) fn finish(self) -> Result<(), Vec<ConfigIssue>> {
        if self.found.is_empty() { Ok(()) } else { Err(self.found) }
    }
}
