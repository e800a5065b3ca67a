//! Ramps and gradual culls end in the middle of epochs, and training goes on.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::sync::Arc;

use integration_tests::scripted;
use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::error::BoxError;
use leyline::id::{BlueprintId, SeedId, SlotId};
use leyline::region::Eager;
use leyline::seed::SeedStage;
use leyline::unit::Alpha;
use leyline_testkit::recording_recorder::RecordingRecorder;
use tolaria::trainer::report::EpochReport;
use tolaria::trainer::{Observer, Outcome};

const STEPS_PER_EPOCH: u64 = 4;
const NUM_EPOCHS: u64 = 6;
const SEED: SeedId = SeedId(1);

/// What each epoch reports.
#[derive(Debug, Default)]
struct Reports {
    refused: Vec<String>,
    /// Epoch, stage before and stage after of each change.
    moves: Vec<(u64, SeedStage, SeedStage)>,
    num_parameters: Vec<u64>,
}

impl Observer for Reports {
    fn epoch_finished(&mut self, report: &EpochReport) -> Result<(), BoxError> {
        self.refused.extend(report.commands.iter().filter_map(|command| command.refused.clone()));
        self.moves.extend(report.transitions.iter().map(|moved| (report.epoch.0, moved.from, moved.to)));
        self.num_parameters.push(report.num_parameters);
        assert!(report.train.as_ref().unwrap().is_finite());
        Ok(())
    }
}

fn ramp(target: Alpha, steps: u64) -> Operation {
    Operation::StartBlending { seed: SEED, ramp: AlphaRamp { target, steps, curve: AlphaCurve::Linear } }
}

/// Trains under a script; what was reported, and the steps at which ramps ended.
fn train(eager: &mut Eager, script: Vec<Vec<Operation>>) -> (Reports, Vec<u64>) {
    let recorder = Arc::new(RecordingRecorder::new());
    let mut epochs = script.into_iter();
    let script = Box::new(move || epochs.next().unwrap_or_default());
    // Two samples a step.
    let sizes = (8, NUM_EPOCHS);
    let mut trainer = scripted::trainer(vec![2], 3, sizes, recorder.clone(), script);
    let mut reports = Reports::default();
    assert_eq!(trainer.run(eager, &mut reports).unwrap(), Outcome::Completed);
    let ends = recorder.events_named("ramp_finished").into_iter();
    let steps = ends.map(|event| event.attributes.iter().find(|(name, _)| *name == "step").unwrap().1.parse().unwrap());
    (reports, steps.collect())
}

#[test]
fn a_gradual_cull_that_ends_in_the_middle_of_an_epoch_leaves_the_training_going() {
    let mut eager = Eager::acquire().unwrap();
    let cull = |steps| vec![Operation::CullGradually { seed: SEED, steps, curve: AlphaCurve::Cosine }];
    let germinate = Operation::germinate(SlotId::new("input").unwrap(), BlueprintId::new("mlp").unwrap());
    let grow = vec![germinate, Operation::StartTraining { seed: SEED }];
    for steps in 1..=2 * STEPS_PER_EPOCH {
        let (reports, ends) = train(&mut eager, vec![grow.clone(), vec![ramp(Alpha::ONE, 3)], cull(steps)]);
        assert_eq!(reports.refused, [""; 0], "{steps} steps");
        let epoch_of_end = 3 + steps.div_ceil(STEPS_PER_EPOCH);
        let removed = (epoch_of_end, SeedStage::Blending, SeedStage::Pruned);
        assert!(reports.moves.contains(&removed), "{steps} steps: {:?}", reports.moves);
        // Steps so far: the ramp begins after the second epoch, the cull after the third.
        let expected = [2 * STEPS_PER_EPOCH + 3, 3 * STEPS_PER_EPOCH + steps];
        assert_eq!(ends, expected, "{steps} steps");
        // The parameters left the layout with the command, not with the end of the cull.
        let [bare, with_seed] = [reports.num_parameters[2], reports.num_parameters[0]];
        assert!(bare < with_seed);
        assert!(reports.num_parameters[2..].iter().all(|&now| now == bare), "{:?}", reports.num_parameters);
    }
}

#[test]
fn a_ramp_towards_nothing_is_refused_and_the_training_goes_on() {
    let mut eager = Eager::acquire().unwrap();
    let germinate = Operation::germinate(SlotId::new("input").unwrap(), BlueprintId::new("mlp").unwrap());
    let grow = vec![germinate, Operation::StartTraining { seed: SEED }];
    let tiny = Alpha::new(1e-60).unwrap();
    let away = vec![ramp(Alpha::ZERO, 2), ramp(tiny, 2)];
    let (reports, ends) = train(&mut eager, vec![grow, vec![ramp(Alpha::ONE, 3)], away]);
    assert_eq!((reports.refused.len(), ends.len()), (2, 1), "{:?}", reports.refused);
    assert!(reports.refused.iter().all(|refusal| refusal.contains("a gradual cull leads to 0")));
    assert!(reports.num_parameters.iter().all(|&now| now == reports.num_parameters[0]), "the seed keeps its place");
}
