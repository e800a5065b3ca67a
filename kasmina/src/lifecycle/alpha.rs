//! The alpha controller of one seed: a ramp counted in optimizer steps.

use std::f64::consts::FRAC_PI_2;

use leyline::command::{AlphaCurve, AlphaRamp};
use leyline::seed::{AlphaMode, RampProgress};
use leyline::unit::Alpha;
use serde::{Deserialize, Serialize};

/// Steepness of [`AlphaCurve::Sigmoid`].
const SIGMOID_STEEPNESS: f64 = 12.0;

/// A ramp cannot start while another one runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ramp runs for another {steps_left} optimizer steps")]
pub struct RampRunning {
    /// Optimizer steps until it ends.
    pub steps_left: u64,
}

/// Moves α from where it is to a target.
///
/// A ramp of n steps ends exactly at its target after n optimizer steps. Its k-th step (k from 0) runs at progress
/// (k + 1) / (n + 1): the first step already acts a little, so a seed that blends has a gradient from the start.
/// α is monotone in between and never beyond start or target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlphaController {
    alpha: Alpha,
    ramp: Option<RunningRamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunningRamp {
    start: Alpha,
    target: Alpha,
    steps: u64,
    curve: AlphaCurve,
    steps_done: u64,
}

impl AlphaController {
    /// Rests at `alpha`.
    #[must_use]
    pub fn new(alpha: Alpha) -> Self {
        Self { alpha, ramp: None }
    }

    /// α now.
    #[must_use]
    pub fn alpha(&self) -> Alpha {
        self.alpha
    }

    /// Where the ramp leads; α itself when none runs.
    #[must_use]
    pub fn target(&self) -> Alpha {
        self.ramp.map_or(self.alpha, |ramp| ramp.target)
    }

    /// What it is doing.
    #[must_use]
    pub fn mode(&self) -> AlphaMode {
        match self.ramp {
            None => AlphaMode::Hold,
            Some(ramp) if ramp.target >= ramp.start => AlphaMode::Up,
            Some(_) => AlphaMode::Down,
        }
    }

    /// Optimizer steps of the running ramp that are over (count).
    #[must_use]
    pub fn steps_done(&self) -> Option<u64> {
        self.ramp.map(|ramp| ramp.steps_done)
    }

    /// Starts a ramp; one of 0 steps jumps to its target. None is replaced but by a removal.
    ///
    /// # Errors
    /// [`RampRunning`] while one runs.
    pub fn retarget(&mut self, ramp: AlphaRamp) -> Result<(), RampRunning> {
        if let Some(running) = self.ramp {
            return Err(RampRunning { steps_left: running.steps - running.steps_done });
        }
        let AlphaRamp { target, steps, curve } = ramp;
        self.ramp = Some(RunningRamp { start: self.alpha, target, steps, curve, steps_done: 0 });
        self.follow();
        Ok(())
    }

    /// Starts the way to 0 from where α is, in the place of whatever ramp runs; one of 0 steps jumps.
    ///
    /// A removal is the only case in which a running ramp is replaced: waiting for its end would let a seed that is to
    /// go gain influence first.
    pub(crate) fn fade(&mut self, steps: u64, curve: AlphaCurve) {
        self.ramp = Some(RunningRamp { start: self.alpha, target: Alpha::ZERO, steps, curve, steps_done: 0 });
        self.follow();
    }

    /// How far the running ramp is; none when none runs.
    #[must_use]
    pub fn progress(&self) -> Option<RampProgress> {
        self.ramp.map(|ramp| RampProgress { steps_done: ramp.steps_done, steps_total: ramp.steps })
    }

    /// Whether ramps and their steps can have led here: a running ramp is not over, and α is between its ends.
    pub(crate) fn is_reachable(&self) -> bool {
        self.ramp.is_none_or(|RunningRamp { start, target, steps, steps_done, .. }| {
            let (low, high) = if start <= target { (start, target) } else { (target, start) };
            steps_done < steps && (low..=high).contains(&self.alpha)
        })
    }

    /// Ends an optimizer step. Whether a ramp ended with it.
    pub fn advance(&mut self) -> bool {
        let Some(ramp) = &mut self.ramp else { return false };
        ramp.steps_done += 1;
        self.follow();
        self.ramp.is_none()
    }

    fn follow(&mut self) {
        let Some(ramp) = self.ramp else { return };
        if ramp.steps_done >= ramp.steps {
            *self = Self::new(ramp.target);
            return;
        }
        let (from, to) = (ramp.start.get(), ramp.target.get());
        let way = from + (to - from) * progress(ramp.curve, fraction(ramp.steps_done, ramp.steps));
        // Rounding may not turn the ramp around: the bound on one side is where α already is.
        let now = self.alpha.get();
        let bounded = if to >= from { way.max(now).min(to) } else { way.min(now).max(to) };
        self.alpha = Alpha::new(bounded).expect("a number between two alphas is an alpha");
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "ramps are shorter than 2^53 steps, and longer ones only lose precision"
)]
fn fraction(steps_done: u64, steps: u64) -> f64 {
    (steps_done as f64 + 1.0) / (steps as f64 + 1.0)
}

/// Share of the way at `t` in [0, 1]: 0 at 0, 1 at 1, monotone.
fn progress(curve: AlphaCurve, t: f64) -> f64 {
    match curve {
        AlphaCurve::Linear => t,
        // ½(1 − cos πt), in a form that does not cancel near 0.
        AlphaCurve::Cosine => (FRAC_PI_2 * t).sin().powi(2),
        AlphaCurve::Sigmoid => {
            let sigma = |x: f64| 1.0 / (1.0 + (-x).exp());
            let low = sigma(-SIGMOID_STEEPNESS / 2.0);
            let high = sigma(SIGMOID_STEEPNESS / 2.0);
            (sigma(SIGMOID_STEEPNESS * (t - 0.5)) - low) / (high - low)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CURVES: [AlphaCurve; 3] = [AlphaCurve::Linear, AlphaCurve::Cosine, AlphaCurve::Sigmoid];

    fn alpha(value: f64) -> Alpha {
        Alpha::new(value).unwrap()
    }

    fn ramp(target: f64, steps: u64, curve: AlphaCurve) -> AlphaRamp {
        AlphaRamp { target: alpha(target), steps, curve }
    }

    #[test]
    fn the_extremes_are_reached_exactly_and_no_step_earlier() {
        for curve in CURVES {
            for steps in [0, 1, 2, 7, 300] {
                let mut controller = AlphaController::new(Alpha::ZERO);
                for target in [1.0, 0.0] {
                    controller.retarget(ramp(target, steps, curve)).unwrap();
                    for step in 0..steps {
                        assert_ne!(controller.mode(), AlphaMode::Hold, "{curve:?} {step}/{steps}");
                        assert_eq!(controller.progress(), Some(RampProgress { steps_done: step, steps_total: steps }));
                        assert_eq!(controller.steps_done(), Some(step));
                        assert!(controller.alpha().get() > 0.0 && controller.alpha().get() < 1.0);
                        assert_eq!(controller.advance(), step + 1 == steps);
                    }
                    assert_eq!(controller, AlphaController::new(alpha(target)), "{curve:?} {steps}");
                    assert!(!controller.advance());
                }
            }
        }
    }

    #[test]
    fn the_middle_of_a_ramp_is_half_way_for_every_curve() {
        for curve in CURVES {
            let mut controller = AlphaController::new(Alpha::ZERO);
            controller.retarget(ramp(1.0, 9, curve)).unwrap();
            for _ in 0..4 {
                controller.advance();
            }
            assert!((controller.alpha().get() - 0.5).abs() < 1e-12, "{curve:?}: {}", controller.alpha());
        }
    }

    #[test]
    fn a_running_ramp_is_not_replaced() {
        let mut controller = AlphaController::new(Alpha::ZERO);
        controller.retarget(ramp(1.0, 5, AlphaCurve::Linear)).unwrap();
        controller.advance();
        let before = controller;
        assert_eq!(controller.retarget(ramp(0.0, 5, AlphaCurve::Linear)), Err(RampRunning { steps_left: 4 }));
        assert_eq!(controller, before);
    }

    #[test]
    fn a_fade_replaces_a_ramp_and_falls_to_zero_from_where_alpha_is() {
        for curve in CURVES {
            for steps in [0, 1, 5] {
                let mut controller = AlphaController::new(Alpha::ZERO);
                controller.retarget(ramp(1.0, 9, AlphaCurve::Linear)).unwrap();
                controller.advance();
                let mut last = controller.alpha();
                controller.fade(steps, curve);
                for _ in 0..steps {
                    assert_eq!(controller.mode(), AlphaMode::Down);
                    assert!(controller.alpha() < last && !controller.alpha().is_zero(), "{curve:?}");
                    last = controller.alpha();
                    controller.advance();
                }
                assert_eq!(controller, AlphaController::new(Alpha::ZERO), "{curve:?} {steps}");
            }
        }
    }

    #[test]
    fn what_no_ramp_leads_to_is_found_out() {
        let mut good = AlphaController::new(alpha(0.2));
        good.retarget(ramp(0.8, 5, AlphaCurve::Linear)).unwrap();
        let ramp = good.ramp.unwrap();
        assert!(good.is_reachable() && AlphaController::new(alpha(0.3)).is_reachable());
        let falling = RunningRamp { start: alpha(0.8), target: alpha(0.2), ..ramp };
        assert!(AlphaController { ramp: Some(falling), ..good }.is_reachable());
        for broken in [
            AlphaController { ramp: Some(RunningRamp { steps_done: 5, ..ramp }), ..good },
            AlphaController { ramp: Some(RunningRamp { steps: 0, ..ramp }), ..good },
            AlphaController { alpha: alpha(0.1), ..good },
            AlphaController { alpha: alpha(0.9), ..good },
        ] {
            assert!(!broken.is_reachable(), "{broken:?}");
        }
    }

    fn curves() -> impl Strategy<Value = AlphaCurve> {
        prop::sample::select(CURVES.to_vec())
    }

    proptest! {
        #[test]
        fn a_ramp_is_monotone_bounded_and_exact(
            start in 0.0..=1.0_f64, target in 0.0..=1.0_f64, steps in 0..400_u64, curve in curves(),
        ) {
            let mut controller = AlphaController::new(alpha(start));
            controller.retarget(ramp(target, steps, curve)).unwrap();
            let mut last = start;
            for _ in 0..steps {
                let now = controller.alpha().get();
                let (low, high) = if target >= start { (last, target) } else { (target, last) };
                prop_assert!((low..=high).contains(&now), "{} is not in {}..={}", now, low, high);
                last = now;
                controller.advance();
            }
            prop_assert_eq!(controller, AlphaController::new(alpha(target)));
        }

        #[test]
        fn the_written_form_continues_the_same_way(steps in 1..50_u64, done in 0..50_u64, curve in curves()) {
            let mut controller = AlphaController::new(alpha(0.1));
            controller.retarget(ramp(0.9, steps, curve)).unwrap();
            for _ in 0..done {
                controller.advance();
            }
            let json = serde_json::to_string(&controller).unwrap();
            let mut read: AlphaController = serde_json::from_str(&json).unwrap();
            for _ in 0..=steps {
                prop_assert_eq!(read, controller);
                prop_assert_eq!(read.advance(), controller.advance());
            }
        }
    }
}
