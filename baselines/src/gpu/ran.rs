//! One run of the real trainer, and what two runs of it have in common.

use std::thread;
use std::time::Duration;

use esper_graph::compile::Pass;
use esper_graph::{CompileReport, Refusal};
use leyline::error::BoxError;
use leyline::id::StepIndex;
use leyline::model::TrainableModel as _;
use leyline::policy::Policy;
use leyline::region::Eager;
use leyline::seed::SeedManager;
use leyline::state::Score;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Flow, Observer, Trainer};

use super::growing::{differing, values_of};
use super::report::{Broken, promise};

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) start: Vec<f32>,
    pub(crate) parameters: Vec<f32>,
    /// Per epoch the losses and measures in training and validation, those in its middle too, and the norm of the gradient;
    /// the last entry is about the test data. All as bits.
    pub(crate) history: Vec<Vec<u64>>,
    pub(crate) steps: u64,
    pub(crate) captures: u64,
    /// Launches of which it was told: of one step or of several.
    pub(crate) launches: u64,
    /// Launches that were replays of a graph, captured or compiled.
    pub(crate) replays: u64,
    /// Launches that were replays of a compiled graph.
    pub(crate) compiled: u64,
    /// Why a shape was not captured or not compiled; absent when every one was.
    pub(crate) refusal: Option<Refusal>,
    /// Evaluations that were replays.
    pub(crate) evaluations: u64,
    /// Why an evaluation was not captured; absent when every one was.
    pub(crate) evaluation_refusal: Option<Refusal>,
    /// Nodes of the last compiled shape before and after.
    pub(crate) nodes: Option<[usize; 2]>,
    /// Reductions of that shape that were rewritten.
    pub(crate) reductions: usize,
}

impl Ran {
    /// Trains to the end. `pause` says how long to wait after each step, which gives the compiler some time: small networks
    /// take a thousand steps in less time than it takes to compile one.
    pub(crate) fn of<S: SeedManager, P: Policy>(
        mut trainer: Trainer<S, P>,
        eager: &mut Eager,
        pause: impl Fn(StepIndex) -> Duration,
    ) -> Result<Self, Broken> {
        let start = values_of(trainer.seeds().model().parameters())?;
        let mut history = History { epochs: Vec::new(), launches: 0, pause };
        trainer.run(eager, &mut history)?;
        history.epochs.push(bits(&trainer.test(eager)?.score).collect());
        let refusal = trainer.last_refusal().or(trainer.last_compile_refusal()).cloned();
        Ok(Self {
            start,
            parameters: values_of(trainer.seeds().model().parameters())?,
            history: history.epochs,
            launches: history.launches,
            steps: trainer.progress().1.0,
            captures: trainer.graph_stats().total.captures,
            replays: trainer.graph_stats().total.replays,
            compiled: trainer.num_compiled_replays(),
            refusal,
            evaluations: trainer.num_replayed_evaluations(),
            evaluation_refusal: trainer.last_evaluation_refusal().cloned(),
            nodes: trainer.compile_report().map(|report| [report.nodes_before, report.nodes_after]),
            reductions: trainer.compile_report().map_or(0, reductions),
        })
    }

    /// Confirms that both runs took the same steps, at least `min_steps`, and that they made the same of them, bit for bit.
    pub(crate) fn agrees(&self, with: &Self, min_steps: u64) -> Result<(), Broken> {
        let Self { parameters, history, steps, .. } = with;
        promise(*steps >= min_steps && self.steps == *steps, || format!("{} and {steps} steps", self.steps))?;
        let first = self.history.iter().zip(history).position(|(a, b)| a != b);
        let wrong = differing(&self.parameters, parameters);
        promise(first.is_none() && wrong == 0, || {
            let when = first
                .map_or_else(String::new, |epoch| format!("; losses or measures differ from epoch {} on", epoch + 1));
            format!("{wrong} of {} parameters differ{when}", parameters.len())
        })?;
        promise(self.history.len() == history.len(), || "the runs have other epochs".to_owned())?;
        let is_finite = |bits: &u64| f64::from_bits(*bits).is_finite();
        promise(history.iter().flatten().all(is_finite), || "a loss is not finite".to_owned())?;
        // A network that has grown has more of them than at its start.
        let moved = with.start.len().max(parameters.len()) - unmoved(&with.start, parameters);
        promise(moved * 2 > parameters.len(), || format!("{moved} of {} parameters moved", parameters.len()))
    }

    /// Confirms that every shape of step was recorded and compiled where that was to be tried.
    pub(crate) fn unrefused(&self) -> Result<(), Broken> {
        self.refusal.as_ref().map_or(Ok(()), |refusal| Err(Broken(format!("a shape was refused: {refusal}"))))
    }
}

/// Confirms that a compiled run is the captured one, bit for bit, of at least `min_steps` steps, and that it was compiled: at
/// least `share` percent of its launches.
pub(crate) fn same(captured: &Ran, compiled: &Ran, [min_steps, share]: [u64; 2]) -> Result<String, Broken> {
    captured.unrefused()?;
    compiled.unrefused()?;
    promise(captured.compiled == 0, || format!("{} steps of the captured run were compiled", captured.compiled))?;
    captured.agrees(compiled, min_steps)?;
    let steps = compiled.steps;
    let launches = compiled.launches;
    promise(compiled.compiled * 100 >= launches * share, || {
        format!("{} of {launches} launches were compiled, expected {share} %", compiled.compiled)
    })?;
    let nodes = compiled.nodes.map_or_else(String::new, |[before, after]| {
        format!(", {before} nodes became {after}, {} reductions were rewritten", compiled.reductions)
    });
    Ok(format!(
        "{steps} steps in {launches} launches, {} of them compiled, {} captures, {} epochs, 0 of {} parameters and no loss differ{nodes}",
        compiled.compiled,
        compiled.captures,
        compiled.history.len() - 1,
        compiled.parameters.len()
    ))
}

fn reductions(report: &CompileReport) -> usize {
    let of_pass = report.passes.iter().filter(|pass| pass.pass == Pass::Reductions);
    of_pass.map(|pass| pass.num_rewrites).sum()
}

fn unmoved(start: &[f32], end: &[f32]) -> usize {
    if start.len() != end.len() {
        return 0;
    }
    start.len() - differing(start, end)
}

/// Loss and measures.
fn bits(score: &Score) -> impl Iterator<Item = u64> {
    std::iter::once(&score.loss).chain(score.measures.values()).map(|value| value.to_bits())
}

/// Notes what each epoch came to, and pauses.
struct History<F> {
    epochs: Vec<Vec<u64>>,
    launches: u64,
    pause: F,
}

impl<F: Fn(StepIndex) -> Duration> Observer for History<F> {
    fn step_finished(&mut self, step: StepIndex) -> Flow {
        self.launches += 1;
        thread::sleep((self.pause)(step));
        Flow::Continue
    }

    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        let mut values: Vec<u64> = report.train.iter().flat_map(bits).chain(bits(&report.validation)).collect();
        values.extend(report.gradient_norm.map(f64::to_bits));
        for evaluation in &report.evaluations {
            values.extend(evaluation.train_loss.map(f64::to_bits));
            values.extend(bits(&evaluation.validation));
        }
        self.epochs.push(values);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: [u64; 2] = [1000, 50];

    fn ran(compiled: u64) -> Ran {
        Ran {
            start: vec![0.0; 4],
            parameters: vec![1.0; 4],
            history: vec![[1.5_f64, 1.25, 0.5].map(f64::to_bits).to_vec(); 4],
            launches: 1000,
            steps: 1000,
            captures: 1,
            replays: 990,
            compiled,
            refusal: None,
            evaluations: 0,
            evaluation_refusal: None,
            nodes: Some([90, 30]),
            reductions: 0,
        }
    }

    #[test]
    fn equal_runs_are_the_same() {
        let text = same(&ran(0), &ran(900), LEAST).map_err(|broken| broken.0).unwrap();
        assert!(text.contains("900 of them compiled") && text.contains("90 nodes became 30"), "{text}");
    }

    #[test]
    fn every_difference_is_found() {
        type Change = fn(&mut Ran);
        let changes: [(Change, &str); 8] = [
            (|ran| ran.parameters[2] = 1.000_000_1, "1 of 4 parameters differ"),
            (|ran| ran.parameters[2] = -1.0, "1 of 4 parameters differ"),
            (|ran| ran.history[1][0] += 1, "losses or measures differ from epoch 2 on"),
            (|ran| ran.history.truncate(2), "other epochs"),
            (|ran| ran.steps += 1, "1000 and 1001 steps"),
            (|ran| ran.compiled = 499, "499 of 1000 launches were compiled"),
            (|ran| ran.start = ran.parameters.clone(), "0 of 4 parameters moved"),
            (|ran| ran.refusal = Some(Refusal::SwitchedOff), "a shape was refused: "),
        ];
        for (change, expected) in changes {
            let mut compiled = ran(900);
            change(&mut compiled);
            let Err(Broken(text)) = same(&ran(0), &compiled, LEAST) else { panic!("expected: {expected}") };
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn equal_losses_that_are_no_numbers_are_no_success() {
        let broken = || Ran { history: vec![vec![f64::NAN.to_bits(); 3]; 2], ..ran(900) };
        let Err(Broken(text)) = same(&Ran { compiled: 0, ..broken() }, &broken(), LEAST) else { panic!("accepted") };
        assert!(text.contains("not finite"), "{text}");
    }
}
