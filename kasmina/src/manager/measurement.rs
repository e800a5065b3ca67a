//! What is measured on a batch: isolation and attribution.

use std::collections::BTreeMap;

use leyline::batch::Batch;
use leyline::id::SeedId;
use leyline::region::Eager;
use leyline::seed::{Attribution, AttributionMode};
use leyline::task::Task;

use crate::attribution::{self, SampleAttribution};
use crate::error::Error;
use crate::graft::Role;
use crate::init::{self, InitMode};
use crate::isolation::{self, Violation};
use crate::manager::Kasmina;

impl Kasmina {
    /// Runs the [isolation audit](isolation::audit) on a batch, and counts and reports what it finds.
    ///
    /// # Errors
    /// When a forward or backward pass fails.
    /// # Sync
    /// One device-to-host copy; one more for each seed in the shadow where several are and the network's answer,
    /// gradients or parameters differ.
    pub fn audit_isolation(&mut self, eager: &Eager, batch: &Batch) -> Result<Vec<Violation>, Error> {
        self.thread.check(eager)?;
        let (model, task) = (&self.state.model, self.task("an audit of isolation")?);
        let violations = isolation::audit(model, &model.without_shadows()?, batch, task)?;
        let charged =
            if violations.is_empty() { BTreeMap::new() } else { isolation::blame(model, &violations, batch, task)? };
        let total = violations.len() as u64;
        let shadows = self.shadows();
        self.violations.audited(shadows.iter().copied(), total, &charged);
        for seed in shadows {
            self.state.seeds.get_mut(&seed).into_iter().for_each(|record| record.note_audit());
        }
        for (seed, count) in charged {
            if let Some(record) = self.state.seeds.get_mut(&seed) {
                record.add_violations(count);
            }
        }
        self.telemetry.audited(total, violations.first().map(ToString::to_string).as_deref());
        Ok(violations)
    }

    /// Violations of isolation charged to `seed` since it germinated (count); 0 for one that is unknown.
    #[must_use]
    pub fn num_isolation_violations(&self, seed: SeedId) -> u64 {
        self.state.seeds.get(&seed).map_or(0, |record| record.num_violations())
    }

    /// Violations of isolation found since the process started (count).
    #[must_use]
    pub fn total_isolation_violations(&self) -> u64 {
        self.violations.total()
    }

    /// Says how much of each sample's loss each seed is responsible for, in the configured mode and whatever the
    /// configured scope. Audits nothing.
    ///
    /// # Errors
    /// When a forward pass needed by the mode fails.
    /// # Sync
    /// As the mode; see [`attribution`].
    pub fn attribute_samples(&mut self, eager: &Eager, batch: &Batch) -> Result<SampleAttribution, Error> {
        self.thread.check(eager)?;
        let acting = self.acting();
        let mode = self.config.attribution;
        let found = attribution::attribute_samples(mode, &self.state.model, &acting, batch, self.task.as_deref())?;
        self.report_attribution(!acting.is_empty(), found.used());
        Ok(found)
    }

    /// Audits the batch when that is due, then attributes it.
    pub(super) fn measure_batch(&mut self, eager: &Eager, batch: &Batch) -> Result<Attribution, Error> {
        self.audit_when_due(eager, batch)?;
        let (mode, scope) = (self.config.attribution, self.config.attribution_scope);
        let acting = self.acting();
        let found = attribution::attribute(mode, scope, &self.state.model, &acting, batch, self.task.as_deref())?;
        self.report_attribution(!acting.is_empty(), found.used());
        Ok(found)
    }

    /// Whether seeds start from samples, and this epoch has not given as many as are kept.
    pub(super) fn lacks_samples(&self) -> bool {
        let kept = self.state.latest_batch.as_ref().filter(|_| self.is_filling).map_or(0, Batch::num_samples);
        self.config.seed_init == InitMode::GradMax && kept < init::MOST_SAMPLES
    }

    /// The task of the network, for `what` needs a loss.
    fn task(&self, what: &'static str) -> Result<&dyn Task, Error> {
        self.task.as_deref().ok_or(Error::NoTask { what })
    }

    /// Whether the next batch that is looked at is to be audited: in turn, or because a seed in the shadow never was.
    pub(super) fn audit_is_due(&self) -> bool {
        let shadows = self.shadows();
        let is_new = |seed| self.state.seeds.get(seed).is_some_and(|record| !record.is_audited());
        let config = &self.config.isolation;
        !shadows.is_empty() && self.monitor.is_due(config, shadows.iter().any(is_new))
    }

    /// Whether an audit that is due has what it needs: asked before a batch is kept, so that one that is refused changes nothing.
    pub(super) fn can_audit_when_due(&self) -> Result<(), Error> {
        if self.audit_is_due() { self.task("an audit of isolation").map(drop) } else { Ok(()) }
    }

    /// Audits the batch when that is due; under `strict` a violation is an error.
    pub(super) fn audit_when_due(&mut self, eager: &Eager, batch: &Batch) -> Result<(), Error> {
        if !self.audit_is_due() {
            return Ok(());
        }
        let violations = self.audit_isolation(eager, batch)?;
        self.monitor.audited();
        if self.config.isolation.strict && !violations.is_empty() {
            return Err(Error::IsolationViolated { violations });
        }
        Ok(())
    }

    /// Seeds that train in the shadow.
    fn shadows(&self) -> Vec<SeedId> {
        self.state.model.grafts().filter(|graft| graft.role == Role::Shadow).map(|graft| graft.seed).collect()
    }

    fn report_attribution(&mut self, acts: bool, used: AttributionMode) {
        let wanted = self.config.attribution;
        let fell_back = acts && wanted != AttributionMode::HostOnly && used != wanted;
        self.telemetry.attribution(wanted, used, fell_back);
    }
}
