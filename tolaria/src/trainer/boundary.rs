//! The end of an epoch: measure, let the policy decide, carry it out, report.

use std::mem;
use std::time::Duration;

use candle_core::Tensor;
use leyline::command::Order;
use leyline::error::Error as _;
use leyline::id::StepIndex;
use leyline::layout::Owner;
use leyline::model::TrainableModel;
use leyline::policy::{Decision, Policy, Rationale};
use leyline::region::Eager;
use leyline::seed::{Costs, Evidence, GradientHealth, SeedManager, SeedStage, SeedState, Transition};
use leyline::state::{ACCURACY, Score, SystemState};
use leyline::telemetry::{Boundary, Event, Health, HealthStatus};

use crate::batch::BatchConfig;
use crate::error::{self, Error};
use crate::telemetry as desc;
use crate::trainer::evaluate::{Evaluation, Probe};
use crate::trainer::facts::MEMORY_PARTS;
use crate::trainer::gradients::{conflict_record, count, shares};
use crate::trainer::observer::{Observer, RunEvent};
use crate::trainer::phase::phase;
use crate::trainer::report::{CommandRecord, EpochReport, TransitionRecord, owner_name};
use crate::trainer::run::Trainer;
use crate::trainer::stop::{Best, StepEvaluation};
use crate::trainer::sums::EpochTotals;

/// What the policy is told about the epoch.
struct Measured<'a> {
    totals: &'a EpochTotals,
    train: Option<&'a Score>,
    validation: &'a Score,
    conflict_ratio: Option<f64>,
}

/// What the policy was shown and said.
struct Decided {
    asked: Option<SystemState>,
    commands: Vec<CommandRecord>,
    waiting: Vec<Rationale>,
}

impl<S: SeedManager, P: Policy> Trainer<S, P> {
    /// Its time is that since `started`, in which it had `num_samples`.
    pub(super) fn finish_epoch(
        &mut self,
        eager: &mut Eager,
        observer: &mut dyn Observer,
        (started, num_samples): (Duration, usize),
    ) -> Result<EpochReport, Error> {
        let totals = {
            let _phase = phase!("read");
            self.sums.read(&mut self.reads)?
        };
        // Until all is measured, the run stands at the end of this epoch: what is found here is found again by a run that
        // is taken up there.
        let (epoch, steps) = (self.cursor.epoch.next(), totals.num_steps);
        self.warn_of_skips(&totals);
        if 2 * totals.num_skipped > steps && !totals.scale_fell(Owner::Host) {
            return Err(self.diverged(&totals));
        }
        let mean = |sum: f64| sum / totals.num_samples as f64;
        let states = self.export_seeds(eager)?;
        let evaluation = self.evaluate(eager, &states)?;
        let train = (totals.num_samples > 0).then(|| {
            let score = Score::new(mean(totals.loss_sum), totals.num_samples);
            if evaluation.score.accuracy().is_some() { score.with(ACCURACY, mean(totals.num_hits)) } else { score }
        });
        if !evaluation.score.loss.is_finite() {
            return Err(Error::NonFinite { what: "validation loss", epoch });
        }
        // Before anything is decided: what is kept is what was evaluated, and a run that is taken up there ends the epoch anew.
        self.keep_if_best(eager, observer, &evaluation.score);
        self.config.check_accuracy(&*self.parts.task, &evaluation.score)?;
        // Nothing could improve while a scale was looked for.
        if let Some(config) = self.config.early_stop.as_ref().filter(|_| !totals.only_searched(Owner::Host)) {
            self.track.watch(config, config.direction(&self.measures), epoch, &evaluation.score);
        }
        (self.cursor.epoch, self.cursor.window) = (epoch, 0);
        let layout = self.parts.seeds.model().layout();
        let topology = layout.revision();
        let conflict = conflict_record(&totals.gradients, layout, &self.shares);
        self.shares = shares(conflict.as_ref());
        self.begin_calls();
        self.record_evidence(eager, &states, &evaluation, &totals)?;
        let ticked = if self.is_frozen() {
            Vec::new()
        } else {
            self.call_seeds(|seeds| seeds.finish_epoch(eager, epoch)).map_err(|error| self.seed_error(error))?
        };
        if !self.is_frozen() {
            self.confirm(eager, &states, &evaluation)?;
        }
        let mut transitions = records(ticked);
        let conflict_ratio = conflict.as_ref().map(|conflict| conflict.ratio);
        let measured =
            Measured { totals: &totals, train: train.as_ref(), validation: &evaluation.score, conflict_ratio };
        let Decided { asked, commands, waiting } = self.decide(eager, &measured, &mut transitions)?;
        let seeds = self.export_seeds(eager)?;
        self.refit(&seeds)?;
        let wall_s = (self.parts.clock.now() - started).as_secs_f64();
        let report = EpochReport {
            epoch: self.cursor.epoch,
            step: self.cursor.step,
            topology,
            num_parameters: self.parts.seeds.model().layout().num_elements() as u64,
            learning_rate: self.learning_rate(StepIndex(self.cursor.step.0.saturating_sub(1))),
            train,
            validation: evaluation.score,
            gradient_norm: totals.gradient_norm,
            conflict,
            seeds,
            asked,
            commands,
            waiting,
            transitions,
            wall_s,
            samples_per_s: num_samples as f64 / wall_s.max(f64::MIN_POSITIVE),
            skipped_steps: totals.num_skipped,
            evaluations: mem::take(&mut self.track.evaluations),
        };
        let _phase = phase!("publish");
        self.publish(&report, &totals);
        Ok(report)
    }

    /// Evaluates on held-out data in the middle of an epoch.
    pub(super) fn evaluate_step(&mut self, eager: &mut Eager, observer: &mut dyn Observer) -> Result<(), Error> {
        let validation = self.evaluate_selecting(eager, &[])?.score;
        if !validation.loss.is_finite() {
            return Err(Error::NonFinite { what: "validation loss", epoch: self.cursor.epoch.next() });
        }
        let totals = self.sums.read(&mut self.reads)?;
        let train_loss = (totals.num_samples > 0).then(|| totals.loss_sum / totals.num_samples as f64);
        let evaluation = StepEvaluation { step: self.cursor.step, train_loss, validation };
        observer.event(&RunEvent::Evaluated(&evaluation));
        self.track.evaluations.push(evaluation.clone());
        self.keep_if_best(eager, observer, &evaluation.validation);
        Ok(())
    }

    /// Keeps the network of the best evaluation so far. One that cannot be kept is not the best one: the next that is better
    /// than the one that was kept takes its place.
    fn keep_if_best(&mut self, eager: &Eager, observer: &mut dyn Observer, score: &Score) {
        if !self.track.is_best(score.loss) {
            return;
        }
        let best = Best { epoch: self.cursor.epoch.next(), step: self.cursor.step, loss: score.loss };
        observer.event(&RunEvent::Best(best));
        if self.keeps_best() {
            self.save_best(eager, observer, best);
        } else {
            self.track.best = Some(best);
        }
    }

    /// Whether the best evaluation has a checkpoint of its own.
    pub(super) fn keeps_best(&self) -> bool {
        self.saver.as_ref().is_some_and(|saver| saver.keep_best)
    }

    /// Says of whom steps left the parameters as they were.
    fn warn_of_skips(&mut self, totals: &EpochTotals) {
        for owner in totals.gradients.owners.iter().filter(|owner| owner.skipped > 0.0) {
            let event = Event::new(&desc::STEPS_SKIPPED)
                .with("owner", owner_name(owner.owner))
                .with("skipped", count(owner.skipped))
                .with("steps", totals.num_steps);
            self.parts.recorder.event(event);
        }
        self.count_skips(totals);
        if totals.num_skipped > 0 {
            tracing::warn!(
                skipped = totals.num_skipped,
                steps = totals.num_steps,
                "the loss or the gradient of optimizer steps was not finite; they changed nothing"
            );
        }
    }

    /// Evaluates on held-out data, with each live seed switched on and off beside it.
    fn evaluate(&mut self, eager: &mut Eager, states: &[SeedState]) -> Result<Evaluation, Error> {
        let probes: Vec<Probe> = states.iter().filter_map(Probe::of).collect();
        self.evaluate_selecting(eager, &probes)
    }

    /// Hands the seed manager what was found about each live seed; what is not finite was not measured.
    fn record_evidence(
        &mut self,
        eager: &mut Eager,
        states: &[SeedState],
        evaluation: &Evaluation,
        totals: &EpochTotals,
    ) -> Result<(), Error> {
        let evidence: Vec<Evidence> = states
            .iter()
            .filter(|state| state.stage.is_live() || state.stage == SeedStage::Fossilized)
            .map(|state| Evidence {
                seed: state.seed_id,
                epoch: self.cursor.epoch,
                counterfactual: evaluation
                    .counterfactuals
                    .iter()
                    .find(|(seed, _)| *seed == state.seed_id)
                    .map(|(_, measured)| *measured)
                    .filter(|measured| measured.loss_gain.is_finite() && measured.std_error.is_finite()),
                gradient: self.gradient_health(Owner::Seed(state.seed_id), totals),
            })
            .collect();
        self.call_seeds(|seeds| seeds.record_evidence(eager, &evidence)).map_err(|e| self.seed_error(e))
    }

    /// Absent for a seed that no optimizer step of the epoch has touched, those included that only made a scale fall.
    fn gradient_health(&self, owner: Owner, totals: &EpochTotals) -> Option<GradientHealth> {
        let layout = self.parts.seeds.model().layout();
        let of = |wanted: Owner| totals.owners.iter().find(|(owner, ..)| *owner == wanted);
        let per_parameter = |norm: f64, owner: Owner| norm / (layout.num_elements_of(owner) as f64).sqrt();
        let is_touched = totals.num_steps > 0 && !totals.only_searched(owner);
        let &(_, norm, health) = of(owner).filter(|_| is_touched && layout.num_elements_of(owner) > 0)?;
        let host = of(Owner::Host).map(|&(_, norm, _)| per_parameter(norm, Owner::Host));
        Some(GradientHealth {
            norm,
            host_ratio: host.filter(|host| *host > 0.0).map(|host| per_parameter(norm, owner) / host),
            health,
        })
    }

    /// Asks the policy and carries out what it says, order by order.
    fn decide(
        &mut self,
        eager: &mut Eager,
        measured: &Measured<'_>,
        transitions: &mut Vec<TransitionRecord>,
    ) -> Result<Decided, Error> {
        if self.is_frozen() {
            self.end_calls();
            let detail = "nothing is asked or moved at this level".to_owned();
            let waiting = vec![Rationale { rule: "emergency".to_owned(), detail }];
            return Ok(Decided { asked: None, commands: Vec::new(), waiting });
        }
        let started = self.parts.clock.now();
        let _phase = phase!("decide");
        let mut state = self.system_state(eager, measured)?;
        if self.nothing_grows() {
            state.slots.iter_mut().for_each(|slot| slot.offers.clear());
        }
        let Decision { orders, waiting } = self.ask_policy(&state);
        let mut commands = Vec::with_capacity(orders.len());
        for order in orders {
            commands.push(self.carry_out(eager, order, transitions)?);
        }
        self.end_calls();
        self.instruments.hook_latency.set((self.parts.clock.now() - started).as_secs_f64() * 1e3);
        Ok(Decided { asked: Some(state), commands, waiting })
    }

    fn carry_out(
        &mut self,
        eager: &mut Eager,
        order: Order,
        transitions: &mut Vec<TransitionRecord>,
    ) -> Result<CommandRecord, Error> {
        use leyline::error::ErrorKind;
        let operation = order.operation.to_string();
        let refused = match self.refusal(&order.operation) {
            Some(reason) => Some(reason),
            None => match self.call_seeds(|seeds| seeds.apply(eager, &order)) {
                Ok(applied) => {
                    transitions.extend(self::records(applied.transitions));
                    None
                }
                // A refusal is an answer; a broken device or region is not.
                Err(error) if matches!(error.kind(), ErrorKind::Device | ErrorKind::Region) => {
                    return Err(self.seed_error(error));
                }
                Err(error) => Some(error::chain(&error)),
            },
        };
        if let Some(reason) = &refused {
            let event = Event::new(&desc::COMMAND_REFUSED).with("operation", &operation);
            self.parts.recorder.event(event.with("reason", reason));
        }
        Ok(CommandRecord { sequence: order.sequence, operation, reason: order.reason, refused })
    }

    fn system_state(&self, eager: &Eager, measured: &Measured<'_>) -> Result<SystemState, Error> {
        let layout = self.parts.seeds.model().layout();
        let seeds = self.export_seeds(eager)?;
        let permanent = seeds.iter().filter(|seed| seed.stage == SeedStage::Fossilized);
        let host_parameters = layout.num_elements_of(Owner::Host) as u64;
        let BatchConfig { batch_size, microbatches_per_step } = self.config.batch;
        let costs = self.parts.seeds.costs(eager, batch_size.get()).map_err(|e| self.seed_error(e))?;
        let attributes = self.attributes(microbatches_per_step.get());
        let as_run = |costs: Costs| Costs { attribution: if attributes { costs.attribution } else { 0.0 }, ..costs };
        Ok(SystemState {
            run_id: self.parts.run_id.clone(),
            epoch: self.cursor.epoch,
            num_epochs: self.num_epochs(),
            step: self.cursor.step,
            // Not those of the sums, which start over where a seed is removed.
            steps_per_epoch: self.steps_per_epoch(),
            topology: layout.revision(),
            host_parameters: host_parameters + permanent.map(|seed| seed.num_parameters).sum::<u64>(),
            samples_per_epoch: Some(self.parts.data.train.len() as u64),
            train: measured.train.cloned(),
            validation: Some(measured.validation.clone()),
            gradient_norm: measured.totals.gradient_norm,
            conflict_ratio: measured.conflict_ratio,
            confirming: self.parts.seeds.confirming(eager).map_err(|e| self.seed_error(e))?,
            costs: costs.map(as_run),
            seeds,
            slots: self.parts.seeds.export_slot_states(eager).map_err(|e| self.seed_error(e))?,
        })
    }

    /// Lets go of buffers and optimizer state of parameters that are gone, and starts the sums of the next epoch. A paused
    /// seed is not gone.
    pub(super) fn refit(&mut self, seeds: &[SeedState]) -> Result<(), Error> {
        let layout = self.parts.seeds.model().layout();
        let paused = seeds.iter().filter(|seed| seed.paused);
        let parked: Vec<Owner> = paused.map(|seed| Owner::Seed(seed.seed_id)).collect();
        self.optimizer.retain(layout, &parked);
        self.pool.retain(layout.num_elements());
        self.reset_sums()
    }

    pub(super) fn export_seeds(&self, eager: &Eager) -> Result<Vec<SeedState>, Error> {
        self.parts.seeds.export_seed_states(eager).map_err(|e| self.seed_error(e))
    }

    fn publish(&mut self, report: &EpochReport, totals: &EpochTotals) {
        self.instruments.epoch(report, totals);
        let (model, bytes) = (self.parts.seeds.model(), |of: &Tensor| of.elem_count() * of.dtype().size_in_bytes());
        let parameters = model.parameters().iter().map(|parameter| bytes(&parameter.var)).sum();
        let moments = self.optimizer.moments(model.layout()).map(|(_, of)| bytes(of)).sum();
        let averages = self.optimizer.averages(model.layout()).map(|(_, of)| bytes(of)).sum();
        let copies = self.optimizer.copies(model.layout()).map(|(_, of)| bytes(of)).sum();
        let parts = [parameters, self.pool.stats().bytes, moments, averages, copies];
        self.instruments.memory(parts);
        for (part, bytes) in MEMORY_PARTS.into_iter().zip(parts) {
            self.note_memory(part, bytes as u64);
        }
        self.note_memory("graphs", self.graph_stats().total.bytes.unwrap_or(0));
        self.note_memory("known-good states", self.recovery.ring.bytes());
        let conflict = report.conflict.as_ref();
        self.gradient_instruments.epoch(conflict, self.config.conflict, self.config.conflict_warn);
        self.executor.publish();
        self.feed.publish(&self.parts.data.train, &self.instruments.input);
        let mut health = Health { status: HealthStatus::Healthy, summary: "stable".to_owned() };
        if report.skipped_steps > 0 {
            health = Health { status: HealthStatus::Degraded, summary: desc::STEPS_SKIPPED.name.to_owned() };
        }
        if let Some(conflict) = conflict.filter(|c| c.ratio >= self.config.conflict_warn) {
            self.parts
                .recorder
                .event(Event::new(&desc::CONFLICT_HIGH).with("conflict_ratio", format_args!("{:.3}", conflict.ratio)));
            health = Health { status: HealthStatus::Degraded, summary: desc::CONFLICT_HIGH.name.to_owned() };
        }
        let (epoch, step) = (report.epoch, report.step);
        self.parts.recorder.publish(Boundary { epoch, step, source: "tolaria", health });
    }
}

fn records(transitions: Vec<Transition>) -> Vec<TransitionRecord> {
    transitions
        .into_iter()
        .map(|t| TransitionRecord { seed: t.seed, from: t.from, to: t.to, reason: t.reason })
        .collect()
}
