//! Networks with seeds in a chosen phase of their lives.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use kasmina::host::HostConfig;
use kasmina::lifecycle::GateConfig;
use kasmina::{GraftedModel, KasminaConfig};
use leyline::batch::Batch;
use leyline::clock::Clock;
use leyline::command::{AlphaCurve, AlphaRamp, Operation};
use leyline::id::StepIndex;
use leyline::model::{Pass, TrainableModel};
use leyline::region::Eager;
use leyline::seed::SeedManager as _;
use leyline::unit::Alpha;

use super::Variant;
use crate::error::Error;
use crate::led::Led;

/// Sizes of a perceptron.
#[derive(Debug, Clone, Copy)]
pub(super) struct Widths {
    pub(super) inputs: usize,
    pub(super) hidden: &'static [usize],
    pub(super) classes: usize,
}

impl fmt::Display for Widths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inputs)?;
        self.hidden.iter().chain([&self.classes]).try_for_each(|width| write!(f, "-{width}"))
    }
}

/// What the seeds of a network do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing yet.
    Germinated,
    /// They learn from their side losses.
    Shadow,
    /// They act at a partial alpha.
    Acting,
    /// They are part of the host.
    Permanent,
}

impl Phase {
    pub(super) const ALL: [Self; 4] = [Self::Germinated, Self::Shadow, Self::Acting, Self::Permanent];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Germinated => "germinated",
            Self::Shadow => "shadow",
            Self::Acting => "acting",
            Self::Permanent => "permanent",
        }
    }
}

/// Which slots have the seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Those at the inputs.
    First,
    /// Those at the outputs.
    Last,
}

impl Place {
    pub(super) const ALL: [Self; 2] = [Self::First, Self::Last];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Last => "last",
        }
    }
}

/// A network that is being grown by commands.
pub(super) struct Grown {
    led: Led,
    num_inputs: usize,
}

impl Grown {
    /// A perceptron with a slot before each layer, and no seeds.
    pub(super) fn new(
        Widths { inputs, hidden, classes }: Widths,
        seed_width: usize,
        device: &Device,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let config = KasminaConfig {
            seed_width,
            gates: GateConfig { training_min_epochs: 0, holding_min_epochs: 0, ..GateConfig::default() },
            ..KasminaConfig::new(HostConfig::Mlp { inputs, hidden: hidden.to_vec(), classes })
        };
        Ok(Self { led: Led::new(config, device, clock)?, num_inputs: inputs })
    }

    pub(super) fn model(&self) -> &GraftedModel {
        self.led.manager.model()
    }

    /// Puts a seed into each of the first or last `count` slots, and leads it to its phase.
    pub(super) fn grow(&mut self, eager: &mut Eager, Variant { phase, place, count }: Variant) -> Result<(), Error> {
        let mut slots = self.led.manager.export_slot_states(eager)?;
        if place == Place::Last {
            slots.reverse();
        }
        let device = self.model().device().clone();
        let inputs = Tensor::zeros((2, self.num_inputs), DType::F32, &device)?;
        let batch = Batch { inputs, targets: Tensor::zeros(2, DType::U32, &device)? };
        for slot in slots.iter().take(count) {
            let blueprint = slot.offers.first().expect("vectors are offered blueprints").blueprint.clone();
            let seed = self.led.apply(eager, Operation::germinate(slot.slot.clone(), blueprint))?;
            let ramp = |target, steps| AlphaRamp { target, steps, curve: AlphaCurve::Linear };
            let half = Alpha::new(0.5).expect("a fraction");
            let way = match phase {
                Phase::Germinated => vec![],
                Phase::Shadow => vec![Operation::StartTraining { seed }],
                Phase::Acting => {
                    vec![Operation::StartTraining { seed }, Operation::StartBlending { seed, ramp: ramp(half, 0) }]
                }
                Phase::Permanent => vec![
                    Operation::StartTraining { seed },
                    Operation::StartBlending { seed, ramp: ramp(Alpha::ONE, 0) },
                    Operation::Hold { seed },
                    Operation::Fossilize { seed },
                ],
            };
            for operation in way {
                self.led.prove(eager, &[seed], &batch)?;
                self.led.apply(eager, operation)?;
            }
        }
        self.led.manager.finish_step(eager, StepIndex(1))?;
        Ok(())
    }

    /// Positions of the slots with a seed.
    #[cfg(test)]
    pub(super) fn occupied(&self, eager: &Eager) -> Result<Vec<usize>, Error> {
        let slots = self.led.manager.export_slot_states(eager)?;
        Ok((0..slots.len()).filter(|&position| slots[position].occupant.is_some()).collect())
    }
}

/// The same perceptron as plain layers, without slots; its tensors are its own.
pub(super) fn plain(Widths { inputs, hidden, classes }: Widths, device: &Device) -> Result<Vec<[Var; 2]>, Error> {
    let ends: Vec<usize> = std::iter::once(inputs).chain(hidden.iter().copied()).chain([classes]).collect();
    ends.windows(2)
        .map(|pair| {
            let weight = Var::ones((pair[0], pair[1]), DType::F32, device)?;
            Ok([weight, Var::zeros(pair[1], DType::F32, device)?])
        })
        .collect()
}

/// One forward pass with the losses, and their backward passes; the gradients are dropped. The loss of the answers.
pub(super) fn forward_backward(model: &GraftedModel, inputs: &Tensor, targets: &Tensor) -> Result<Tensor, Error> {
    let outputs = model.forward(inputs, Pass::Train)?;
    let loss = candle_nn::loss::cross_entropy(&outputs.logits, targets)?;
    loss.backward()?;
    for shadow in &outputs.shadows {
        candle_nn::loss::cross_entropy(&shadow.logits, &shadow.targets(targets)?)?.backward()?;
    }
    Ok(loss)
}
