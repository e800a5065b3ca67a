//! How many violations were found so far, and what the latest audit found.

use std::collections::BTreeMap;

use leyline::id::SeedId;

/// Counts of violations in this process. What is charged to a seed over its life stands in its record.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    latest: BTreeMap<SeedId, u64>,
    total: u64,
}

impl Ledger {
    /// Takes in an audit of the seeds in the shadow: `total` violations, and how many are charged to each seed.
    pub(crate) fn audited(
        &mut self,
        shadows: impl Iterator<Item = SeedId>,
        total: u64,
        charged: &BTreeMap<SeedId, u64>,
    ) {
        self.total += total;
        self.latest = shadows.map(|seed| (seed, charged.get(&seed).copied().unwrap_or(0))).collect();
    }

    /// Charged to this seed by the latest audit (count); absent when it was not part of it.
    pub(crate) fn latest(&self, seed: SeedId) -> Option<u64> {
        self.latest.get(&seed).copied()
    }

    /// Found in all (count); less than the sum over seeds where one is charged to several.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }
}
