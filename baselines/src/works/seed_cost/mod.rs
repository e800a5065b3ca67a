//! What seeds cost a training step: slots without seeds, seeds that do nothing yet, that train in the shadow, that act.
//!
//! A step here is one forward pass, the losses and their backward passes; the optimizer is left out, since it costs the
//! same per parameter whoever owns it.

mod cpu;
mod gpu;
mod network;

use crate::error::Error;
use crate::work::{Needs, Outcome, Setting, Work};
use network::{Grown, Phase, Place, Widths, forward_backward, plain};

pub(super) const WORK: Work = Work::new(
    "seed-cost",
    "What seeds cost a forward and backward pass, in each phase of their lives; on the CPU with `--device cpu`",
    Needs::Nothing,
    run,
);

fn run(setting: &Setting) -> Result<Outcome, Error> {
    if setting.gpu.is_some() { gpu::run(setting) } else { cpu::run(setting) }
}

/// How many seeds are measured together.
const COUNTS: [usize; 3] = [1, 2, 4];

/// Seeds that are measured together.
#[derive(Debug, Clone, Copy)]
struct Variant {
    phase: Phase,
    place: Place,
    count: usize,
}

impl Variant {
    /// Every phase with every count, in the last slots; shadows in the first slots as well. A side loss runs through all
    /// layers behind its seed, so the last slot is the cheapest for a shadow and the first one the dearest.
    fn all() -> Vec<Self> {
        let of = |phase, place| COUNTS.map(|count| Self { phase, place, count });
        let places = |phase: Phase| if phase == Phase::Shadow { &Place::ALL[..] } else { &[Place::Last] };
        Phase::ALL.iter().flat_map(|&phase| places(phase).iter().flat_map(move |&place| of(phase, place))).collect()
    }

    /// `PHASE_K`; of shadows `shadow_PLACE_K`.
    fn name(self) -> String {
        let Self { phase, place, count } = self;
        if phase == Phase::Shadow {
            format!("{}_{}_{count}", phase.name(), place.name())
        } else {
            format!("{}_{count}", phase.name())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::Device;
    use leyline::clock::{Clock, SystemClock};
    use leyline::region::Eager;

    use super::*;

    #[test]
    fn variants_have_names_of_their_own_and_shadows_are_in_both_places() {
        let names: Vec<String> = Variant::all().into_iter().map(Variant::name).collect();
        let expected = [
            "germinated_1",
            "germinated_2",
            "germinated_4",
            "shadow_first_1",
            "shadow_first_2",
            "shadow_first_4",
            "shadow_last_1",
            "shadow_last_2",
            "shadow_last_4",
            "acting_1",
            "acting_2",
            "acting_4",
            "permanent_1",
            "permanent_2",
            "permanent_4",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn seeds_are_in_the_slots_of_their_place() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut eager = Eager::acquire().unwrap();
        let widths = Widths { inputs: 4, hidden: &[4, 4, 4], classes: 2 };
        for (place, expected) in [(Place::First, [0, 1]), (Place::Last, [2, 3])] {
            let mut network = Grown::new(widths, 2, &Device::Cpu, &clock).unwrap();
            network.grow(&mut eager, Variant { phase: Phase::Shadow, place, count: 2 }).unwrap();
            assert_eq!(network.occupied(&eager).unwrap(), expected, "{place:?}");
        }
    }
}
