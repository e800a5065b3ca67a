//! One run of the real trainer, and what two runs of it have in common.

use std::thread;
use std::time::Duration;

use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel as _;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Trainer};

use crate::gpu::growing::{differing, values_of};
use crate::gpu::report::{Broken, promise};

/// Steps of a run at least.
const MIN_STEPS: u64 = 1000;

/// What a run left behind.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) start: Vec<f32>,
    pub(super) parameters: Vec<f32>,
    /// Per epoch the losses in training and validation, and the norm of the gradient, as bits.
    pub(super) history: Vec<[u64; 3]>,
    pub(super) steps: u64,
    pub(super) captures: u64,
    /// Steps that were replays of a compiled graph.
    pub(super) compiled: u64,
    /// Why a shape was not captured or not compiled; absent when every one was.
    pub(super) refusal: Option<String>,
    /// Nodes of the last compiled shape before and after.
    pub(super) nodes: Option<[usize; 2]>,
}

impl Ran {
    /// Trains to the end.
    pub(super) fn of<S: SeedManager, P: Policy>(
        mut trainer: Trainer<S, P>,
        eager: &mut Eager,
        pause: Duration,
    ) -> Result<Self, Broken> {
        let start = values_of(trainer.seeds().model().parameters())?;
        let mut history = History { epochs: Vec::new(), pause };
        trainer.run(eager, &mut history)?;
        let refusal = trainer.last_refusal().or(trainer.last_compile_refusal()).map(ToString::to_string);
        Ok(Self {
            start,
            parameters: values_of(trainer.seeds().model().parameters())?,
            history: history.epochs,
            steps: trainer.progress().1.0,
            captures: trainer.graph_stats().total.captures,
            compiled: trainer.num_compiled_replays(),
            refusal,
            nodes: trainer.compile_report().map(|report| [report.nodes_before, report.nodes_after]),
        })
    }
}

/// Confirms that a compiled run is the captured one, bit for bit, and that it was compiled: at least `share` percent of its
/// steps.
pub(super) fn same(captured: &Ran, compiled: &Ran, share: u64) -> Result<String, Broken> {
    for ran in [captured, compiled] {
        if let Some(refusal) = &ran.refusal {
            return Err(Broken(format!("a shape was refused: {refusal}")));
        }
    }
    let Ran { parameters, steps, .. } = compiled;
    promise(captured.compiled == 0, || format!("{} steps of the captured run were compiled", captured.compiled))?;
    promise(*steps >= MIN_STEPS && captured.steps == *steps, || format!("{} and {steps} steps", captured.steps))?;
    let first = captured.history.iter().zip(&compiled.history).position(|(a, b)| a != b);
    let wrong = differing(&captured.parameters, parameters);
    promise(first.is_none() && wrong == 0, || {
        let when = first.map_or_else(String::new, |epoch| format!("; losses differ from epoch {} on", epoch + 1));
        format!("{wrong} of {} parameters differ{when}", parameters.len())
    })?;
    promise(captured.history.len() == compiled.history.len(), || "the runs have other epochs".to_owned())?;
    let is_finite = |epoch: &[u64; 3]| epoch.iter().all(|bits| f64::from_bits(*bits).is_finite());
    promise(compiled.history.iter().all(is_finite), || "a loss is not finite".to_owned())?;
    // A network that has grown has more of them than at its start.
    let moved = compiled.start.len().max(parameters.len()) - unmoved(&compiled.start, parameters);
    promise(moved * 2 > parameters.len(), || format!("{moved} of {} parameters moved", parameters.len()))?;
    promise(compiled.compiled * 100 >= steps * share, || {
        format!("{} of {steps} steps were compiled, expected {share} %", compiled.compiled)
    })?;
    let nodes = compiled.nodes.map_or_else(String::new, |[before, after]| format!(", {before} nodes became {after}"));
    Ok(format!(
        "{steps} steps, {} of them compiled, {} captures, {} epochs, 0 of {} parameters and no loss differ{nodes}",
        compiled.compiled,
        compiled.captures,
        compiled.history.len(),
        parameters.len()
    ))
}

fn unmoved(start: &[f32], end: &[f32]) -> usize {
    if start.len() != end.len() {
        return 0;
    }
    start.len() - differing(start, end)
}

/// Notes what each epoch came to, and lets the compiler have some time: the small networks take a thousand steps in less
/// time than it takes to compile one.
struct History {
    epochs: Vec<[u64; 3]>,
    pause: Duration,
}

impl Observer for History {
    fn step_finished(&mut self, _step: StepIndex) -> Flow {
        thread::sleep(self.pause);
        Flow::Continue
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let values = [report.train.loss, report.validation.loss, report.gradient_norm];
        self.epochs.push(values.map(f64::to_bits));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(compiled: u64) -> Ran {
        Ran {
            start: vec![0.0; 4],
            parameters: vec![1.0; 4],
            history: vec![[1.5_f64, 1.25, 0.5].map(f64::to_bits); 3],
            steps: MIN_STEPS,
            captures: 1,
            compiled,
            refusal: None,
            nodes: Some([90, 30]),
        }
    }

    #[test]
    fn equal_runs_are_the_same() {
        let text = same(&ran(0), &ran(900), 50).map_err(|broken| broken.0).unwrap();
        assert!(text.contains("900 of them compiled") && text.contains("90 nodes became 30"), "{text}");
    }

    #[test]
    fn every_difference_is_found() {
        type Change = fn(&mut Ran);
        let changes: [(Change, &str); 8] = [
            (|ran| ran.parameters[2] = 1.000_000_1, "1 of 4 parameters differ"),
            (|ran| ran.parameters[2] = -1.0, "1 of 4 parameters differ"),
            (|ran| ran.history[1][0] += 1, "losses differ from epoch 2 on"),
            (|ran| ran.history.truncate(2), "other epochs"),
            (|ran| ran.steps += 1, "1000 and 1001 steps"),
            (|ran| ran.compiled = 499, "499 of 1000 steps were compiled"),
            (|ran| ran.start = ran.parameters.clone(), "0 of 4 parameters moved"),
            (|ran| ran.refusal = Some("no".to_owned()), "a shape was refused: no"),
        ];
        for (change, expected) in changes {
            let mut compiled = ran(900);
            change(&mut compiled);
            let Err(Broken(text)) = same(&ran(0), &compiled, 50) else { panic!("expected: {expected}") };
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn equal_losses_that_are_no_numbers_are_no_success() {
        let broken = || Ran { history: vec![[f64::NAN.to_bits(); 3]; 2], ..ran(900) };
        let Err(Broken(text)) = same(&Ran { compiled: 0, ..broken() }, &broken(), 50) else { panic!("accepted") };
        assert!(text.contains("not finite"), "{text}");
    }
}
