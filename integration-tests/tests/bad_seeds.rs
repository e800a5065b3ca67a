//! A seed whose numbers cannot be used is removed, in the shadow and while it blends; the run goes on.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use candle_core::Tensor;
use integration_tests::short_run::{Recorded, config, trainer};
use leyline::id::{SeedId, StepIndex};
use leyline::layout::Owner;
use leyline::model::TrainableModel as _;
use leyline::region::Eager;
use leyline::seed::{SeedManager as _, SeedStage};
use tolaria::checkpoint::Snapshot;
use tolaria::host_read::{HostReads, read_scalar};
use tolaria::trainer::{Outcome, RunEvent};

/// Notes where the run went back.
#[derive(Default)]
struct Noted {
    recorded: Recorded,
    culprits: Vec<String>,
}

impl tolaria::trainer::Observer for Noted {
    fn step_finished(&mut self, step: StepIndex) -> tolaria::trainer::Flow {
        self.recorded.step_finished(step)
    }

    fn event(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::RolledBack { culprit, rate_factor, .. } = event {
            self.culprits.push((*culprit).to_owned());
            assert!((rate_factor - 1.0).abs() < 1e-12, "a seed was to blame");
        }
    }

    fn epoch_finished(
        &mut self,
        report: &tolaria::trainer::report::EpochReport,
    ) -> Result<(), leyline::error::BoxError> {
        self.recorded.epochs.retain(|earlier| earlier.epoch < report.epoch);
        self.recorded.epoch_finished(report)
    }
}

fn is_finite(snapshot: &Snapshot) -> bool {
    let tensors = snapshot.components.values().flat_map(|state| state.tensors.values());
    let finite = |tensor: &Tensor| {
        let sum = (tensor.to_dtype(candle_core::DType::F64).unwrap() * 0.0).unwrap().sum_all().unwrap();
        read_scalar(&sum, "test", &mut HostReads::default()).unwrap() == 0.0
    };
    tensors.into_iter().all(finite)
}

/// What is planted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bad {
    /// No number, in all parameters: what comes after a seed cuts it off, so that no loss shows it.
    Everywhere,
    /// Infinity, in one bias: it makes the loss no number.
    Bias,
}

/// Plants it in a seed as soon as one is in this stage, in the middle of an epoch; what became of it, and where the run went back.
fn plant(stage: SeedStage, bad: Bad, every_steps: u32) -> (SeedId, Noted) {
    let every_steps = format!("train.recovery.every_steps={every_steps}");
    let config = config(&["train.recovery.memory_mib=64", "train.recovery.max_skipped=2", &every_steps]);
    let (mut eager, mut noted) = (Eager::acquire().unwrap(), Noted::default());
    let mut run = trainer(&config, None);
    let mut step = 3;
    let seed = loop {
        noted.recorded.stop_after = Some(StepIndex(step));
        assert_eq!(run.run(&mut eager, &mut noted).unwrap(), Outcome::Interrupted, "no seed was in {stage}");
        let states = run.seeds().export_seed_states(&eager).unwrap();
        if let Some(state) =
            states.iter().find(|state| state.stage == stage && state.alpha.is_zero() != stage.acts_on_output())
        {
            break state.seed_id;
        }
        step += 5;
    };
    for parameter in run.seeds().inner().seed_parameters(seed).unwrap() {
        let (var, is_bias) = (&parameter.var, parameter.name.ends_with("up.bias"));
        match bad {
            Bad::Everywhere => var.set(&(var.as_tensor() * f64::NAN).unwrap()).unwrap(),
            Bad::Bias if is_bias => {
                let mut values = vec![0.0_f32; var.elem_count()];
                values[0] = f32::INFINITY;
                var.set(&Tensor::new(values, var.device()).unwrap()).unwrap();
            }
            Bad::Bias => {}
        }
    }
    noted.recorded.stop_after = None;
    assert_eq!(run.run(&mut eager, &mut noted).unwrap(), Outcome::Completed);
    assert!(is_finite(&run.snapshot(&eager).unwrap()));
    let layout = run.seeds().model().layout();
    assert!(layout.segments().iter().all(|segment| segment.spec.owner != Owner::Seed(seed)));
    (seed, noted)
}

#[test]
fn a_seed_that_is_no_number_is_removed_and_the_run_goes_on() {
    use SeedStage::{Blending, Holding, Training};
    for (stage, bad, every_steps, goes_back) in [
        (Training, Bad::Everywhere, 5, true),
        (Blending, Bad::Everywhere, 5, true),
        (Holding, Bad::Everywhere, 5, true),
        // In the shadow it harms itself alone.
        (Training, Bad::Bias, 1_000, false),
        (Blending, Bad::Bias, 5, true),
    ] {
        let (seed, noted) = plant(stage, bad, every_steps);
        let transitions = noted.recorded.epochs.iter().flat_map(|report| &report.transitions);
        let removed: Vec<_> = transitions.filter(|t| t.seed == seed && t.to == SeedStage::Pruned).collect();
        let reason = "its loss or its gradient could not be used";
        assert!(matches!(&*removed, [one] if one.reason == reason), "{stage} {bad:?}: {removed:?}");
        assert_eq!(noted.culprits, vec![seed.to_string(); usize::from(goes_back)], "{stage} {bad:?}");
        let epochs: Vec<u64> = noted.recorded.epochs.iter().map(|report| report.epoch.0).collect();
        assert_eq!(epochs, (1..=14).collect::<Vec<_>>());
    }
}
