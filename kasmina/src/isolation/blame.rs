//! Which seed a violation belongs to.

use std::collections::BTreeMap;

use leyline::batch::Batch;
use leyline::id::SeedId;
use leyline::task::Task;

use crate::error::Error;
use crate::graft::{GraftedModel, Role};
use crate::isolation::audit::audit_watching;
use crate::isolation::{Audited, Violation};

/// Violations by seed (count), for those that an audit of `model` found.
///
/// A difference between whole networks is looked for again with one seed in the shadow at a time, the tensors of the others
/// being watched all the same. When no seed shows it alone, it is charged to all of them.
///
/// # Errors
/// As the audit.
/// # Sync
/// None, or as one audit per seed in the shadow where several are and a violation names no seed.
pub(crate) fn blame(
    model: &GraftedModel,
    violations: &[Violation],
    batch: &Batch,
    task: &dyn Task,
) -> Result<BTreeMap<SeedId, u64>, Error> {
    let mut counts = BTreeMap::new();
    for seed in violations.iter().filter_map(Violation::seed) {
        *counts.entry(seed).or_insert(0) += 1;
    }
    let anonymous = num_anonymous(violations);
    if anonymous == 0 {
        return Ok(counts);
    }
    let suspects: Vec<SeedId> =
        model.grafts().filter(|graft| graft.role == Role::Shadow).map(|graft| graft.seed).collect();
    let mut convicted = Vec::new();
    if suspects.len() > 1 {
        let (reference, seed_tensors) = (model.without_shadows()?, model.seed_tensors());
        for &suspect in &suspects {
            let alone = model.keeping_shadows(|seed| seed == suspect)?;
            let found = num_anonymous(&audit_watching(&alone, &reference, &seed_tensors, (batch, task))?);
            if found > 0 {
                convicted.push((suspect, found));
            }
        }
    }
    if convicted.is_empty() {
        convicted = suspects.into_iter().map(|suspect| (suspect, anonymous)).collect();
    }
    for (seed, count) in convicted {
        *counts.entry(seed).or_insert(0) += count;
    }
    Ok(counts)
}

fn num_anonymous(violations: &[Violation]) -> u64 {
    violations.iter().filter(|violation| violation.seed().is_none()).count() as u64
}
