//! How much of what a decision could rest on was measured.

use leyline::seed::{AlphaMode, SeedStage, SeedState};
use leyline::state::{Score, SystemState};

/// Share of the optional inputs that were measured, in `[0, 1]`.
///
/// They are the training and the validation score, the gradient norm and the conflict ratio, and of each seed that
/// could be measured its counterfactual and its gradient. A seed that has only germinated, is paused or waits for its
/// weights takes part in nothing, so nothing of it is missing. Nor does one that is to act at alpha 0, and one that fades
/// learns nothing any more: only its counterfactual counts. A number that is not finite was not measured (PO-3).
pub(crate) fn input_coverage(state: &SystemState) -> f64 {
    let score = |score: Option<&Score>| score.is_some_and(Score::is_finite);
    let number = |number: Option<f64>| number.is_some_and(f64::is_finite);
    let mut inputs = vec![
        score(state.train.as_ref()),
        score(state.validation.as_ref()),
        number(state.gradient_norm),
        number(state.conflict_ratio),
    ];
    for seed in state.seeds.iter().filter(|seed| takes_part(seed)) {
        inputs.push(seed.counterfactual.is_some_and(|c| c.loss_gain.is_finite() && c.std_error.is_finite()));
        if !is_fading(seed) {
            inputs.push(seed.gradient.is_some_and(|g| g.norm.is_finite() && g.health.is_finite()));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a few inputs for each of a few seeds")]
    let share = |count: usize| count as f64 / inputs.len() as f64;
    share(inputs.iter().filter(|&&measured| measured).count())
}

/// Whether the seed trains or acts.
fn takes_part(seed: &SeedState) -> bool {
    let takes_part = seed.stage.is_live() && seed.stage != SeedStage::Germinated;
    let is_without_effect = seed.stage.acts_on_output() && seed.alpha.is_zero();
    takes_part && !seed.paused && !seed.weights_pending && !is_without_effect
}

/// Whether the seed leaves by a ramp to 0.
fn is_fading(seed: &SeedState) -> bool {
    seed.alpha_mode == AlphaMode::Down && seed.alpha_target.is_zero()
}

#[cfg(test)]
mod tests {
    use leyline::id::{BlueprintId, EpochIndex, RunId, SeedId, SlotId, StepIndex, TopologyRevision};
    use leyline::seed::{Counterfactual, GradientHealth};
    use leyline::state::ACCURACY;
    use leyline::unit::Alpha;

    use super::*;

    fn state() -> SystemState {
        let score = Some(Score::new(1.0, 100).with(ACCURACY, 0.5));
        SystemState {
            run_id: RunId::new("run-1").unwrap(),
            epoch: EpochIndex(1),
            num_epochs: 10,
            step: StepIndex(10),
            steps_per_epoch: 10,
            topology: TopologyRevision(1),
            host_parameters: 100,
            samples_per_epoch: None,
            train: score.clone(),
            validation: score,
            gradient_norm: Some(1.0),
            conflict_ratio: Some(0.0),
            confirming: None,
            costs: None,
            seeds: Vec::new(),
            slots: Vec::new(),
        }
    }

    fn seed(stage: SeedStage) -> SeedState {
        let (slot, blueprint) = (SlotId::new("a").unwrap(), BlueprintId::new("mlp").unwrap());
        SeedState { stage, ..SeedState::germinated(SeedId(1), slot, blueprint, 10) }
    }

    #[track_caller]
    fn check(state: &SystemState, measured: u32, inputs: u32) {
        let expected = f64::from(measured) / f64::from(inputs);
        assert!((input_coverage(state) - expected).abs() < 1e-12, "{} of {state:?}", input_coverage(state));
    }

    #[test]
    fn what_is_absent_or_no_number_was_not_measured() {
        check(&state(), 4, 4);
        check(&SystemState { conflict_ratio: None, ..state() }, 3, 4);
        check(&SystemState { gradient_norm: Some(f64::NAN), train: None, ..state() }, 2, 4);
        for broken in [Score::new(f64::INFINITY, 1), Score::new(1.0, 1).with(ACCURACY, f64::NAN)] {
            check(&SystemState { validation: Some(broken), ..state() }, 3, 4);
        }
        let nothing =
            SystemState { train: None, validation: None, gradient_norm: None, conflict_ratio: None, ..state() };
        check(&nothing, 0, 4);
    }

    #[test]
    fn a_seed_that_takes_part_has_two_inputs_and_another_none() {
        let counterfactual =
            Some(Counterfactual { loss_gain: 0.1, std_error: 0.1, accuracy_gain_pp: Some(0.0), num_samples: 9 });
        let gradient = Some(GradientHealth { norm: 1.0, host_ratio: None, health: 1.0 });
        let with = |seed| SystemState { seeds: vec![seed], ..state() };
        let training = || seed(SeedStage::Training);
        check(&with(training()), 4, 6);
        check(&with(SeedState { gradient, ..training() }), 5, 6);
        check(&with(SeedState { gradient, counterfactual, ..training() }), 6, 6);
        let not_finite = counterfactual.map(|c| Counterfactual { std_error: f64::NAN, ..c });
        check(&with(SeedState { gradient, counterfactual: not_finite, ..training() }), 5, 6);
        for stage in [SeedStage::Germinated, SeedStage::Fossilized, SeedStage::Pruned, SeedStage::Embargoed] {
            check(&with(seed(stage)), 4, 4);
        }
        check(&with(SeedState { paused: true, ..training() }), 4, 4);
        check(&with(SeedState { weights_pending: true, ..training() }), 4, 4);
    }

    #[test]
    fn nothing_is_missing_of_a_seed_without_effect_and_no_gradient_of_one_that_fades() {
        let counterfactual =
            Some(Counterfactual { loss_gain: 0.1, std_error: 0.1, accuracy_gain_pp: Some(0.0), num_samples: 9 });
        let with = |seed| SystemState { seeds: vec![seed], ..state() };
        for stage in [SeedStage::Blending, SeedStage::Holding] {
            let acting = |alpha| SeedState { alpha: Alpha::new(alpha).unwrap(), counterfactual, ..seed(stage) };
            check(&with(acting(0.5)), 5, 6);
            check(&with(acting(0.0)), 4, 4);
            let falling = SeedState { alpha_mode: AlphaMode::Down, ..acting(0.5) };
            let fading = SeedState { alpha_target: Alpha::ZERO, ..falling.clone() };
            check(&with(falling), 5, 6);
            check(&with(fading.clone()), 5, 5);
            check(&with(SeedState { counterfactual: None, ..fading.clone() }), 4, 5);
            check(&with(SeedState { alpha: Alpha::ZERO, ..fading }), 4, 4);
        }
    }
}
