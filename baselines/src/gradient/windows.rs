//! Accumulation windows for measurements and checks: a layout, its rows, and who owns what of them.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use leyline::id::{SeedId, StepIndex, TopologyRevision};
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::seed::{Attribution, AttributionMode};
use tolaria::aggregate::{AggregationConfig, ProjectionOrder, WindowPlan};
use tolaria::grad::Geometry;

use crate::error::Error;
use crate::models::Draw;

/// The common part of all rows against their own part of 1; its sign differs from row to row, so that neighbors
/// conflict beyond rounding.
const COMMON: f64 = 0.3;
/// Elements between the places of two rows in the numbers that all are cut from.
const STRIDE: usize = 4099;

/// Sizes of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowShape {
    /// Microbatches (K).
    pub(crate) num_rows: usize,
    /// Parameters (P).
    pub(crate) num_elements: usize,
    /// Parameter tensors.
    pub(crate) num_parts: usize,
    /// The host and seeds (S).
    pub(crate) num_owners: usize,
    /// Whether the last part of each seed is trained by the seed's own loss.
    pub(crate) isolated: bool,
}

impl WindowShape {
    /// As many owners as rows, in parts of one size.
    pub(crate) fn square(num_rows: usize, num_elements: usize) -> Self {
        Self { num_rows, num_elements, num_parts: 64, num_owners: num_rows, isolated: false }
    }

    /// Parts in turn of the owners, and the lengths by `length_of` (part): the last part has what is left.
    ///
    /// # Panics
    /// When the lengths exceed the elements.
    pub(crate) fn layout(self, mut length_of: impl FnMut(usize) -> usize) -> ParameterLayout {
        let mut left = self.num_elements;
        let specs = (0..self.num_parts).map(|part| {
            let len = if part + 1 == self.num_parts { left } else { length_of(part) };
            left = left.checked_sub(len).expect("parts are within the vector");
            let slot = part % self.num_owners;
            let last_of_owner = part + self.num_owners >= self.num_parts;
            SegmentSpec {
                name: format!("part-{part:05}"),
                shape: vec![len],
                owner: owner(slot),
                isolated: self.isolated && slot > 0 && last_of_owner,
            }
        });
        ParameterLayout::new(TopologyRevision(1), specs.collect()).expect("the names are numbered")
    }

    /// Parts of one size.
    pub(crate) fn even_layout(self) -> ParameterLayout {
        self.layout(|_| self.num_elements / self.num_parts)
    }
}

/// The owner of a slot: the host first, then seeds by id.
fn owner(slot: usize) -> Owner {
    match u32::try_from(slot).expect("few owners") {
        0 => Owner::Host,
        id => Owner::Seed(SeedId(id)),
    }
}

/// Rows with the layout that they belong to, on one device.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// Sizes.
    pub(crate) shape: WindowShape,
    /// Parts and their owners.
    pub(crate) layout: Arc<ParameterLayout>,
    /// The same for the engine.
    pub(crate) geometry: Arc<Geometry>,
    /// Each (P,).
    pub(crate) rows: Vec<Tensor>,
}

impl Window {
    /// Rows that follow from a seed, neighbors against each other.
    pub(crate) fn new(shape: WindowShape, layout: ParameterLayout, seed: u64, device: &Device) -> Result<Self, Error> {
        let WindowShape { num_rows, num_elements, .. } = shape;
        let numbers = Draw::new(seed, device).uniform(num_elements + num_rows * STRIDE, 1.0)?;
        let common = numbers.narrow(0, num_rows * STRIDE, num_elements)?;
        let row = |index: usize| -> candle_core::Result<Tensor> {
            let sign = if index.is_multiple_of(2) { COMMON } else { -COMMON };
            numbers.narrow(0, index * STRIDE, num_elements)? + (&common * sign)?
        };
        let rows = (0..num_rows).map(row).collect::<candle_core::Result<_>>()?;
        let geometry = Arc::new(Geometry::of(&layout)?);
        Ok(Self { shape, layout: Arc::new(layout), geometry, rows })
    }

    /// The plan of a window in which row k belongs to owner k mod S alone.
    pub(crate) fn plan(&self, config: &AggregationConfig, step: u64) -> Result<WindowPlan, Error> {
        let rows = (0..self.shape.num_rows).map(|row| match owner(row % self.shape.num_owners) {
            Owner::Host => (1, Attribution::host_only()),
            Owner::Seed(seed) => (1, attribution(vec![(seed, 1.0)])),
        });
        self.plan_of(&rows.collect::<Vec<_>>(), config, step)
    }

    /// The plan of a window whose rows belong to random owners in parts. The numbers of samples are those of any other
    /// step: they count as shapes.
    pub(crate) fn random_plan(
        &self,
        config: &AggregationConfig,
        step: u64,
        draw: &mut Draw,
    ) -> Result<WindowPlan, Error> {
        let num_owners = self.shape.num_owners;
        let bound = 1.0 / num_owners as f64;
        let mut weight = |row: usize, slot: usize| {
            // Row 0 is the host's in part, and row 1 that of seed 1: two owners in every window.
            let kept = (row, slot) == (1, 1) || draw.below(2) == 1;
            if kept { bound * f64::from(1 + draw.below(1000)) / 1000.0 } else { 0.0 }
        };
        let mut row = |index: usize| {
            let seeds = (1..num_owners).filter_map(|slot| match owner(slot) {
                Owner::Host => None,
                Owner::Seed(seed) => Some((seed, weight(index, slot))),
            });
            (1 + index % 3, attribution(seeds.collect()))
        };
        self.plan_of(&(0..self.shape.num_rows).map(&mut row).collect::<Vec<_>>(), config, step)
    }

    fn plan_of(
        &self,
        rows: &[(usize, Attribution)],
        config: &AggregationConfig,
        step: u64,
    ) -> Result<WindowPlan, Error> {
        let order = ProjectionOrder { seed: 17, step: StepIndex(step) };
        Ok(WindowPlan::new(rows, self.geometry.owners(), config, order)?)
    }

    /// For each row the others in the order of its projections, in a plan of [`Self::plan`] with as many owners as rows.
    pub(crate) fn orders(&self, plan: &WindowPlan) -> Result<Vec<Vec<usize>>, Error> {
        let WindowShape { num_rows, num_owners, .. } = self.shape;
        let arguments = plan.arguments();
        let others = num_owners.saturating_sub(1);
        let orders = &arguments[num_rows + num_owners * num_rows..][..num_owners * others];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "indices are small whole numbers")]
        let order = |order: &[f64]| order.iter().map(|index| *index as usize).collect();
        Ok(orders.chunks(others.max(1)).map(order).collect())
    }
}

fn attribution(weights: Vec<(SeedId, f64)>) -> Attribution {
    Attribution::new(AttributionMode::Stage, weights).expect("the weights are ordered and within 1")
}

#[cfg(test)]
mod tests {
    use tolaria::aggregate::ConflictResolution;
    use tolaria::host_read::{HostReads, read_vec};

    use super::*;
    use crate::gradient::sequential::Sums;

    fn pcgrad() -> AggregationConfig {
        AggregationConfig { method: ConflictResolution::PcGrad, ..AggregationConfig::default() }
    }

    fn window(num_rows: usize, num_elements: usize) -> Window {
        let shape = WindowShape { num_parts: 5, ..WindowShape::square(num_rows, num_elements) };
        Window::new(shape, shape.even_layout(), 3, &Device::Cpu).unwrap()
    }

    #[test]
    fn neighbors_conflict_and_rows_differ() {
        let window = window(4, 10_001);
        assert_eq!(window.layout.num_elements(), 10_001);
        let mut reads = HostReads::default();
        let rows: Vec<Vec<f32>> = window.rows.iter().map(|row| read_vec(row, "test", &mut reads).unwrap()).collect();
        for (i, row) in rows.iter().enumerate() {
            for (j, other) in rows.iter().enumerate().filter(|(j, _)| *j != i) {
                let inner = Sums::Double.dot(row, other);
                assert_eq!(inner < 0.0, (i + j) % 2 == 1, "{i} {j}: {inner}");
            }
        }
    }

    #[test]
    fn every_order_visits_all_others() {
        let window = window(4, 100);
        let orders = window.orders(&window.plan(&pcgrad(), 5).unwrap()).unwrap();
        assert_eq!(orders.len(), 4);
        for (row, mut order) in orders.into_iter().enumerate() {
            order.push(row);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn parts_go_round_the_owners_and_isolated_ones_are_seeds() {
        let shape = WindowShape { num_parts: 7, num_owners: 3, isolated: true, ..WindowShape::square(4, 1_001) };
        let layout = shape.layout(|part| 10 * part);
        let lengths: Vec<usize> = layout.segments().iter().map(|segment| segment.len).collect();
        assert_eq!(lengths, [0, 10, 20, 30, 40, 50, 851]);
        let isolated: Vec<bool> = layout.segments().iter().map(|segment| segment.spec.isolated).collect();
        assert_eq!(isolated, [false, false, false, false, true, true, false]);
    }

    #[test]
    fn random_plans_have_two_owners_at_least() {
        let window = window(4, 100);
        let mut draw = Draw::new(1, &Device::Cpu);
        let mut shares = Vec::new();
        for step in 0..50 {
            let plan = window.random_plan(&pcgrad(), step, &mut draw).unwrap();
            assert!(plan.tells_owners_apart());
            shares.push(plan.host_share().to_bits());
        }
        shares.sort_unstable();
        shares.dedup();
        assert!(shares.len() > 40, "{} of 50 plans differ", shares.len());
    }
}
