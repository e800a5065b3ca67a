//! Scales and what moves them, without a network.
#![expect(clippy::float_cmp, reason = "scales are powers of two")]

use leyline::id::StepIndex;
use leyline::layout::ParameterLayout;
use leyline::seed::{Attribution, AttributionMode};

use super::*;
use crate::aggregate::{AggregationConfig, ConflictResolution, GradientEngine, ProjectionOrder, WindowPlan};
use crate::grad::{GradientBufferPool, GradientLease, Weight, place};
use crate::host_read::HostReads;
use crate::testing::{HOST, bits, layout, random, seed, values, vector};

const START: f64 = 1024.0;

fn config(growth_steps: u32) -> LossScaleConfig {
    LossScaleConfig { initial: START, growth_steps: NonZeroU32::new(growth_steps).unwrap() }
}

/// A host, seed 1 in the main loss, seed 2 in a shadow.
fn example() -> ParameterLayout {
    layout(&[("a", 5, HOST, false), ("b", 3, seed(1), false), ("c", 4, seed(2), true)])
}

struct World {
    engine: GradientEngine,
    scale: LossScale,
    pool: GradientBufferPool,
    has_loss: bool,
}

impl World {
    fn new(method: ConflictResolution, growth_steps: u32) -> Self {
        Self::freezing(method, growth_steps, &[])
    }

    fn freezing(method: ConflictResolution, growth_steps: u32, frozen: &[Owner]) -> Self {
        let geometry = Geometry::of(&example()).unwrap().freezing(|owner| frozen.contains(&owner));
        let geometry = Arc::new(geometry);
        let config_of = AggregationConfig { method, clip_norm: Some(0.5), ..AggregationConfig::default() };
        let engine = GradientEngine::new(Arc::clone(&geometry), config_of, 4, &Device::Cpu).unwrap();
        let scale = LossScale::new(&config(growth_steps), geometry, &Device::Cpu).unwrap();
        Self { engine, scale, pool: GradientBufferPool::new(), has_loss: true }
    }

    /// A window of four microbatches whose gradients come scaled, if `is_scaled`; the combination, formed.
    fn window(&mut self, gradients: &[Vec<f32>], is_scaled: bool) -> Vec<f32> {
        let scales = self.scales();
        let rows: Vec<GradientLease> = gradients
            .iter()
            .map(|gradient| {
                let row = self.pool.lease_to_write(12, DType::F32, &Device::Cpu).unwrap();
                let factor = |place: usize| {
                    if !is_scaled {
                        1.0
                    } else if place < 8 {
                        scales[0]
                    } else {
                        scales[3]
                    }
                };
                let came: Vec<f32> = gradient.iter().enumerate().map(|(place, g)| g * factor(place)).collect();
                let parts = [(0, 8, GradientScope::Main), (8, 4, GradientScope::Shadow(leyline::id::SeedId(2)))];
                for (start, len, scope) in parts {
                    let scale = is_scaled.then(|| self.scale.of(scope).unwrap());
                    let weight = Weight { scale: scale.as_ref(), ..Weight::ONE };
                    place(row.as_tensor(), &[(start, &vector(&came[start..start + len]))], &weight).unwrap();
                }
                row
            })
            .collect();
        let weights = [0.0, 0.5, 1.0, 0.25];
        let attributions = weights.map(|weight| {
            (8, Attribution::new(AttributionMode::Probe, vec![(leyline::id::SeedId(1), weight)]).unwrap())
        });
        let order = ProjectionOrder { seed: 1, step: StepIndex(3) };
        let geometry = Arc::clone(self.engine.geometry());
        let plan = WindowPlan::new(&attributions, geometry.owners(), self.engine.config(), order).unwrap();
        let combination = self.engine.combine(rows, &plan, None, None, &mut HostReads::default()).unwrap();
        let has_loss = Tensor::new(&[u8::from(self.has_loss)], &Device::Cpu).unwrap();
        self.scale.follow(&combination, &has_loss).unwrap();
        values(combination.materialize(&geometry).unwrap().as_tensor())
    }

    /// Of the main loss, of the host's own parts, of each seed.
    fn scales(&self) -> Vec<f32> {
        values(&self.scale.state)[..4].to_vec()
    }
}

fn gradients() -> Vec<Vec<f32>> {
    (0..4).map(|index| random(12, index)).collect()
}

#[test]
fn every_aggregation_gives_the_bits_of_gradients_that_were_never_scaled() {
    for method in ConflictResolution::ALL {
        let expected = World::new(method, 2).window(&gradients(), false);
        let mut world = World::new(method, 2);
        for scale in [1024.0, 1024.0, 2048.0, 2048.0, 4096.0] {
            assert_eq!(world.scales()[0], scale);
            assert_eq!(bits(&world.window(&gradients(), true)), bits(&expected), "{method:?} at {scale}");
        }
    }
}

#[test]
fn one_overflow_in_any_microbatch_halves_the_scale_of_its_loss_and_no_other() {
    for method in ConflictResolution::ALL {
        for (bad, place) in [(f32::INFINITY, 0), (f32::NAN, 7), (f32::NEG_INFINITY, 9)] {
            for microbatch in 0..4 {
                let mut world = World::new(method, 3);
                let good = gradients();
                world.window(&good, true);
                let mut with = good.clone();
                with[microbatch][place] = bad;
                let formed = world.window(&with, true);
                let in_main = place < 8;
                let scales = world.scales();
                let expected = if in_main { [512.0, 1024.0] } else { [1024.0, 512.0] };
                assert_eq!([scales[0], scales[3]], expected, "{method:?}, {bad} in {microbatch}");
                assert_eq!(
                    formed[..8].iter().all(|g| g.is_nan()),
                    in_main,
                    "{method:?}: the whole of the main loss is skipped"
                );
                assert_eq!(formed[8..].iter().all(|g| g.is_nan()), !in_main, "{method:?}");
                // Good steps are counted anew: the one that overflowed grows later.
                world.window(&good, true);
                let scales = world.scales();
                assert_eq!([scales[0], scales[3]], if in_main { [512.0, 2048.0] } else { [2048.0, 512.0] });
            }
        }
    }
}

#[test]
fn the_scale_of_the_main_loss_follows_what_learns_by_it() {
    let mut bad = gradients();
    bad[1][0] = f32::INFINITY;
    for (frozen, expected) in [(&[] as &[Owner], 512.0), (&[HOST], 1024.0), (&[HOST, seed(1)], 512.0)] {
        let mut world = World::freezing(ConflictResolution::Mean, 9, frozen);
        let formed = world.window(&bad, true);
        assert_eq!(world.scales()[0], expected, "{frozen:?}");
        assert!(formed[..5].iter().all(|g| g.is_nan()) && formed[8..].iter().all(|g| g.is_finite()), "{frozen:?}");
    }
}

#[test]
fn scales_stay_within_their_bounds() {
    let mut world = World::new(ConflictResolution::Mean, 1);
    let mut bad = gradients();
    bad[2][1] = f32::NAN;
    for _ in 0..15 {
        world.window(&bad, true);
    }
    assert_eq!(world.scales()[0], 1.0);
    for _ in 0..30 {
        world.window(&gradients(), true);
    }
    assert_eq!([world.scales()[0], world.scales()[3]], [LARGEST; 2]);
}

fn values_of(scale: &LossScale) -> Vec<f64> {
    crate::testing::values_f64(&scale.numbers().unwrap())
}

#[test]
fn a_loss_that_is_not_finite_leaves_the_scale_of_the_main_loss_and_no_other() {
    let mut world = World::new(ConflictResolution::Mean, 9);
    world.window(&gradients(), true);
    let bad = vec![vec![f32::NAN; 12]; 4];
    world.has_loss = false;
    world.window(&bad, true);
    let state = values(&world.scale.state);
    assert_eq!([state[0], state[4], state[3], state[7]], [1024.0, 1.0, 512.0, 0.0]);
    world.has_loss = true;
    world.window(&bad, true);
    let state = values(&world.scale.state);
    assert_eq!([state[0], state[4], state[3], state[7]], [512.0, 0.0, 256.0, 0.0]);
}

#[test]
fn what_is_read_of_a_scale_is_where_it_is_and_where_the_sums_began() {
    let mut world = World::new(ConflictResolution::Mean, 9);
    let mut bad = gradients();
    bad[2][1] = f32::NAN;
    let read = |world: &World, owner| {
        let scale = world.scale.read(&values_of(&world.scale)).of(owner);
        [scale.begun, scale.now]
    };
    world.window(&bad, true);
    assert_eq!([HOST, seed(1), seed(2)].map(|owner| read(&world, owner)), [[START, 512.0], [START, 512.0], [START; 2]]);
    world.scale.begin().unwrap();
    assert_eq!(read(&world, HOST), [512.0; 2]);
    world.window(&bad, true);
    assert_eq!(read(&world, HOST), [512.0, 256.0]);
}

#[test]
fn owners_keep_their_scales_when_the_network_changes() {
    let mut world = World::new(ConflictResolution::Mean, 1);
    let mut bad = gradients();
    bad[0][10] = f32::INFINITY;
    world.window(&bad, true);
    assert_eq!(values_of(&world.scale)[..4], [2048.0, 1024.0, 1024.0, 512.0]);
    // Seed 2 stays in its shadow, seed 3 comes into one, seed 1 goes.
    let changed = layout(&[("a", 5, HOST, false), ("c", 4, seed(2), true), ("d", 2, seed(3), true)]);
    let geometry = Arc::new(Geometry::of(&changed).unwrap());
    let refitted = world.scale.refitted(Arc::clone(&geometry)).unwrap();
    assert_eq!(values_of(&refitted)[..4], [2048.0, 2048.0, 512.0, 2048.0]);
    let scaled = |scope| values(&refitted.scaled(&Tensor::new(3_f32, &Device::Cpu).unwrap(), scope).unwrap());
    let shadow = |id| GradientScope::Shadow(leyline::id::SeedId(id));
    assert_eq!([GradientScope::Main, shadow(2), shadow(3)].map(scaled), [[6144.0], [1536.0], [6144.0]]);
    // And back, from what was saved.
    let numbers: Vec<f32> = values_of(&refitted).iter().map(|number| cpu::to_f32(*number)).collect();
    let again = LossScale::with(&config(1), Arc::clone(&geometry), &numbers, &Device::Cpu).unwrap();
    assert_eq!(values_of(&again), values_of(&refitted));
    // Of an earlier version: the epoch began as it goes on.
    let earlier = LossScale::with(&config(1), Arc::clone(&geometry), &numbers[..8], &Device::Cpu).unwrap();
    assert_eq!(values_of(&earlier)[8..], values_of(&earlier)[..4]);
    for wrong in [&numbers[1..], &numbers[..7], &[0.0; 8], &[f32::NAN; 8], &[&numbers[..8], &[0.0; 4]].concat(), &[]] {
        let error = LossScale::with(&config(1), Arc::clone(&geometry), wrong, &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("expected 4 scales from 1 to 16777216"), "{error}");
    }
}

#[test]
fn settings_that_cannot_work_are_named() {
    for (initial, is_right) in [
        (1.0, true),
        (65_536.0, true),
        (16_777_216.0, true),
        (0.5, false),
        (3.0, false),
        (0.0, false),
        (-2.0, false),
        (33_554_432.0, false),
        (f64::INFINITY, false),
        (f64::NAN, false),
    ] {
        let issues = LossScaleConfig { initial, ..LossScaleConfig::default() }.validate();
        assert_eq!(issues.is_empty(), is_right, "{initial}: {issues:?}");
    }
    let issues = config(1 << 24).validate();
    assert_eq!(issues, [("growth_steps".to_owned(), "less than 16777216".to_owned())]);
}
