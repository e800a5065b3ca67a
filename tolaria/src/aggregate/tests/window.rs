//! Windows as data, and what the engine makes of them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use leyline::id::{SeedId, StepIndex};
use leyline::layout::{Owner, ParameterLayout};
use leyline::seed::{Attribution, AttributionMode};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::aggregate::ConflictResolution;
use crate::aggregate::passes::Passes;
use crate::aggregate::sums::{Field, SumsLayout};
use crate::aggregate::{AggregationConfig, Combination, GradientEngine, ProjectionOrder, WindowPlan};
use crate::grad::{Geometry, GradientBufferPool, GradientLease};
use crate::host_read::HostReads;
use crate::testing::{HOST, layout, random, seed, values, values_f64, vector};

/// Alphas of seeds, by id.
pub(super) fn alpha(seed: SeedId) -> Option<f64> {
    (seed.0 != 2).then(|| f64::from(seed.0) / 8.0)
}

pub(super) fn attribution(weights: &[(u32, f64)]) -> Attribution {
    let weights = weights.iter().map(|&(id, weight)| (SeedId(id), weight)).collect();
    Attribution::new(AttributionMode::Stage, weights).unwrap()
}

/// One microbatch: its gradient, samples, and weights of seeds.
pub(super) type Row<'a> = (&'a [f32], usize, &'a [(u32, f64)]);

/// One accumulation window.
#[derive(Clone)]
pub(super) struct Window {
    pub(super) layout: ParameterLayout,
    pub(super) rows: Vec<Vec<f32>>,
    pub(super) microbatches: Vec<(usize, Attribution)>,
    pub(super) order: ProjectionOrder,
    /// Owners whose parameters stay as they are.
    pub(super) frozen: Vec<Owner>,
}

/// Without the elements, which are many.
impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.layout.segments().iter().map(|s| (s.len, s.spec.owner, s.spec.isolated)).collect();
        let starts: Vec<&[f32]> = self.rows.iter().map(|row| &row[..row.len().min(8)]).collect();
        write!(f, "{parts:?} {:?} {:?} {starts:?}", self.microbatches, self.order)
    }
}

/// What came of a window.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) gradient: Vec<f32>,
    /// (2, rows) of the combination.
    pub(super) coefficients: Vec<f32>,
    /// Per part.
    pub(super) factors: Vec<f32>,
    pub(super) sums: Sums,
    pub(super) reads: HostReads,
}

impl Window {
    /// A window over this layout.
    pub(super) fn new(layout: ParameterLayout, rows: &[Row<'_>]) -> Self {
        Self {
            layout,
            rows: rows.iter().map(|row| row.0.to_vec()).collect(),
            microbatches: rows.iter().map(|row| (row.1, attribution(row.2))).collect(),
            order: ProjectionOrder { seed: 11, step: StepIndex(3) },
            frozen: Vec::new(),
        }
    }

    /// A window over one part of the host, with seeds 1 to 5.
    pub(super) fn of_host(rows: &[Row<'_>]) -> Self {
        Self::new(host_layout(rows[0].0.len()), rows)
    }

    pub(super) fn geometry(&self) -> Arc<Geometry> {
        Arc::new(Geometry::of(&self.layout).unwrap().freezing(|owner| self.frozen.contains(&owner)))
    }

    pub(super) fn plan(&self, config: &AggregationConfig) -> WindowPlan {
        let geometry = self.geometry();
        let plan = WindowPlan::new(&self.microbatches, geometry.owners(), config, self.order).unwrap();
        plan.with_alphas(geometry.owners(), alpha)
    }

    pub(super) fn engine(&self, config: &AggregationConfig) -> GradientEngine {
        GradientEngine::new(self.geometry(), *config, self.rows.len(), &Device::Cpu).unwrap()
    }

    /// The rows as leases of this type.
    pub(super) fn leases(&self, pool: &GradientBufferPool, dtype: DType) -> Vec<GradientLease> {
        let lease = |row: &Vec<f32>| {
            let lease = pool.lease_to_write(row.len(), dtype, &Device::Cpu).unwrap();
            if !row.is_empty() {
                lease.as_tensor().slice_set(&vector(row).to_dtype(dtype).unwrap(), 0, 0).unwrap();
            }
            lease
        };
        self.rows.iter().map(lease).collect()
    }

    /// The combination of the window, with what it adds to `sums`.
    pub(super) fn combine(
        &self,
        path: &Passes,
        config: &AggregationConfig,
        pool: &GradientBufferPool,
        sums: Option<&Tensor>,
    ) -> (Combination, HostReads) {
        let mut reads = HostReads::default();
        let (rows, plan) = (self.leases(pool, DType::F32), self.plan(config));
        let combination = self.engine(config).combine_on(path, rows, &plan, None, sums, &mut reads).unwrap();
        (combination, reads)
    }

    pub(super) fn run(&self, path: &Passes, config: &AggregationConfig) -> Outcome {
        let pool = GradientBufferPool::new();
        let geometry = self.geometry();
        let sums = SumsLayout::new(geometry.owners().len(), geometry.parts().len());
        let tensor = Tensor::zeros(sums.num_stored(), DType::F64, &Device::Cpu).unwrap();
        let (combination, reads) = self.combine(path, config, &pool, Some(&tensor));
        let resolves = self.plan(config).tells_owners_apart() && config.method != ConflictResolution::Mean;
        let held = if resolves { self.rows.len() } else { 1 };
        assert_eq!(pool.stats().outstanding, held, "rows that are not needed are given back");
        let terms = combination.terms();
        let coefficients = terms.coefficients.host().unwrap().into_owned();
        let factors =
            terms.factors.host().unwrap().map_or_else(|| vec![1.0; geometry.parts().len()], |f| f.into_owned());
        let gradient = combination.materialize_on(path, &geometry).unwrap();
        assert_eq!(pool.stats().outstanding, 1, "only the result is leased");
        let elements = values(gradient.as_tensor());
        drop(gradient);
        assert_eq!(pool.stats().outstanding, 0);
        let mut values = values_f64(&tensor);
        let before = values.split_off(sums.len());
        assert_eq!(words(&values), words(&before), "what the next window starts from");
        let sums = Sums { layout: sums, values };
        Outcome { gradient: elements, coefficients, factors, sums, reads }
    }

    /// Parts with elements: their range, owner, and whether they are isolated.
    pub(super) fn parts(&self) -> Vec<(Range<usize>, Owner, bool)> {
        let segments = self.layout.segments().iter().filter(|segment| segment.len > 0);
        segments.map(|s| (s.offset..s.offset + s.len, s.spec.owner, s.spec.isolated)).collect()
    }

    /// Whether each element belongs to an isolated part.
    pub(super) fn is_isolated(&self) -> Vec<bool> {
        self.parts().into_iter().flat_map(|(range, _, isolated)| range.map(move |_| isolated)).collect()
    }

    /// Whether every element that is not isolated is finite.
    pub(super) fn counts(&self) -> bool {
        let isolated = self.is_isolated();
        self.rows.iter().all(|row| row.iter().zip(&isolated).all(|(value, isolated)| *isolated || value.is_finite()))
    }

    /// Whether every element is finite.
    pub(super) fn is_finite(&self) -> bool {
        self.rows.iter().flatten().all(|value| value.is_finite())
    }
}

/// Host (3), seed 2 (2), isolated seed 1 (2), isolated seed 3 (1), and the host again (1).
pub(super) fn layout_with_shadows() -> ParameterLayout {
    layout(&[
        ("a", 3, HOST, false),
        ("b", 2, seed(2), false),
        ("c", 2, seed(1), true),
        ("d", 1, seed(3), true),
        ("e", 1, HOST, false),
    ])
}

/// One part of the host, and a part without an element for each of the seeds 1 to 5.
pub(super) fn host_layout(count: usize) -> ParameterLayout {
    let empty = |name, id| (name, 0, seed(id), false);
    layout(&[("a", count, HOST, false), empty("b", 1), empty("c", 2), empty("d", 3), empty("e", 4), empty("f", 5)])
}

fn words(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What every window adds to the sums of an owner.
pub(super) const OF_ALL_WINDOWS: [Field; 3] = [Field::ParameterSquare, Field::Healthy, Field::Skipped];

/// The sums that a window was added to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sums {
    pub(super) layout: SumsLayout,
    pub(super) values: Vec<f64>,
}

impl Sums {
    pub(super) fn of(&self, field: Field, slot: usize) -> f64 {
        self.values[self.layout.of_slot(field, slot)]
    }

    /// Of all owners.
    pub(super) fn all(&self, field: Field, slots: usize) -> Vec<f64> {
        (0..slots).map(|slot| self.of(field, slot)).collect()
    }

    pub(super) fn conflicts(&self) -> f64 {
        self.values[SumsLayout::CONFLICTS]
    }

    pub(super) fn main_square(&self) -> f64 {
        self.values[SumsLayout::MAIN_SQUARE]
    }

    pub(super) fn skipped_samples(&self) -> f64 {
        self.values[SumsLayout::SKIPPED_SAMPLES]
    }

    pub(super) fn layer(&self, slot: usize, part: usize) -> f64 {
        self.values[self.layout.layer(slot, part)]
    }

    /// Everything that only windows that tell owners apart add to.
    pub(super) fn of_owners(&self, slots: usize) -> Vec<f64> {
        let norms: Vec<usize> = (0..slots)
            .flat_map(|slot| OF_ALL_WINDOWS.map(|field| self.layout.of_slot(field, slot)))
            .chain([SumsLayout::SKIPPED_SAMPLES])
            .collect();
        let places = (SumsLayout::CONFLICTS..self.values.len()).filter(|place| !norms.contains(place));
        places.map(|place| self.values[place]).collect()
    }
}

/// How a row comes about.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Scaled(f32),
    /// The first row times this, with noise of this size.
    Like(f32, f32),
    NotFinite(f32),
}

fn kinds(wild: bool) -> BoxedStrategy<Kind> {
    let factors = prop_oneof![Just(1.0_f32), Just(-1.0), Just(-1.5), Just(-0.5)];
    let tame = prop_oneof![
        4 => Just(Kind::Scaled(1.0)),
        2 => (0.01..100.0_f32).prop_map(Kind::Scaled),
        1 => Just(Kind::Scaled(0.0)),
        2 => (factors, prop_oneof![Just(0.0_f32), Just(0.1), Just(1e-3), Just(1e-6)])
            .prop_map(|(factor, noise)| Kind::Like(factor, noise)),
    ];
    if !wild {
        return tame.boxed();
    }
    prop_oneof![
        20 => tame,
        3 => Just(Kind::Scaled(1e18)),
        3 => Just(Kind::Scaled(1e-25)),
        1 => prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY)].prop_map(Kind::NotFinite),
    ]
    .boxed()
}

fn part() -> impl Strategy<Value = (usize, u32, bool)> {
    let len = prop_oneof![12 => 1..24_usize, 2 => Just(0_usize), 1 => 2040..2060_usize, 1 => 4090..4200_usize];
    (len, 0..6_u32, proptest::bool::weighted(0.3))
}

/// Samples and weights of the seeds, of which the last has no parameters.
fn microbatch() -> impl Strategy<Value = (usize, Vec<(u32, f64)>)> {
    let weights = prop_oneof![
        3 => (1..7_u32).prop_map(|id| vec![(id, 1.0)]),
        2 => Just(Vec::new()),
        3 => (vec(0.0..1.0_f64, 6), any::<bool>()).prop_map(|(weights, all)| {
            let sum: f64 = weights.iter().sum::<f64>() * if all { 1.0 } else { 1.3 } + f64::from(u8::from(!all)) * 0.1;
            (1..).zip(weights.iter().map(|weight| weight / sum.max(1e-9))).collect()
        }),
    ];
    (1..5_usize, weights)
}

/// Any window of 2 to 12 microbatches over 1 to 9 parts; `wild` ones have elements of any size, and some that are not
/// finite.
pub(super) fn windows(wild: bool) -> impl Strategy<Value = Window> {
    let parts = vec(part(), 1..=9);
    let rows = vec((kinds(wild), any::<u64>(), microbatch()), 2..=12);
    (parts, rows, 0..1000_u64).prop_map(|(parts, rows, step)| {
        let names: Vec<String> = (0..parts.len()).map(|part| format!("p{part}")).collect();
        let segments: Vec<_> = names
            .iter()
            .zip(&parts)
            .map(|(name, &(len, id, isolated))| {
                (name.as_str(), len, if id == 0 { HOST } else { seed(id) }, isolated && id > 0)
            })
            .collect();
        let layout = layout(&segments);
        let len = layout.num_elements();
        let mut elements: Vec<Vec<f32>> = Vec::new();
        for (kind, noise_seed, _) in &rows {
            let mut row = random(len, *noise_seed);
            match kind {
                Kind::Scaled(factor) => row.iter_mut().for_each(|value| *value *= factor),
                Kind::Like(factor, noise) => {
                    let like = elements.first().cloned().unwrap_or_else(|| row.clone());
                    row.iter_mut().zip(like).for_each(|(value, like)| *value = like * factor + *value * noise);
                }
                Kind::NotFinite(value) if len > 0 => row[usize::try_from(noise_seed % len as u64).unwrap()] = *value,
                Kind::NotFinite(_) => {}
            }
            elements.push(row);
        }
        let microbatches =
            rows.iter().map(|(_, _, (num_samples, weights))| (*num_samples, attribution(weights))).collect();
        let order = ProjectionOrder { seed: 5, step: StepIndex(step) };
        Window { layout, rows: elements, microbatches, order, frozen: Vec::new() }
    })
}
