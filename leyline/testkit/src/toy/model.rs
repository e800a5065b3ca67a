//! One linear layer with linear grafts beside it: logits = host(x) + Σ alpha_s · graft_s(x).

use candle_core::{Device, Tensor, Var};
use leyline::error::ErrorType;
use leyline::id::{SeedId, TopologyRevision};
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::model::{Outputs, Parameter, Pass, Shadow, TrainableModel};
use leyline::seed::{SeedStage, SeedState};
use leyline::unit::Alpha;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::Error;
use crate::toy::{NUM_CLASSES, NUM_INPUTS};

/// Half the width of the initial weights.
const INIT: f32 = 0.25;

/// What a graft does to the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Nothing; it has no parameters in the layout.
    Idle,
    /// It learns in the shadow of the host.
    Shadow,
    /// It acts, and its seed owns it.
    Acting,
    /// It acts and belongs to the host.
    Permanent,
}

/// One graft.
#[derive(Debug, Clone)]
pub(crate) struct Graft {
    seed: SeedId,
    role: Role,
    /// Shape (4, 16).
    weight: Var,
    /// Scalar on the device, so that a ramp needs no new tensor.
    alpha: Var,
    target: Alpha,
}

impl Graft {
    /// A graft with the weights that belong to this seed, without effect.
    fn new(seed: SeedId, device: &Device) -> Result<Self, Error> {
        Ok(Self {
            seed,
            role: Role::Idle,
            weight: init((NUM_CLASSES, NUM_INPUTS), u64::from(seed.0), device)?,
            alpha: Var::new(0.0_f32, device)?,
            target: Alpha::ONE,
        })
    }

    /// Elements of one graft.
    pub(crate) const NUM_PARAMETERS: u64 = (NUM_CLASSES * NUM_INPUTS) as u64;

    /// Name of its parameter.
    fn name(&self) -> String {
        format!("{}.weight", self.seed)
    }
}

/// A classifier of [`blobs`](crate::toy::blobs): inputs (B, 16), logits (B, 4). Parameters `host.bias` (4,) and
/// `host.weight` (4, 16), and `seed-N.weight` (4, 16) for each seed that trains or acts.
#[derive(Debug)]
pub struct ToyModel {
    weight: Var,
    bias: Var,
    grafts: Vec<Graft>,
    parameters: Vec<Parameter>,
    layout: ParameterLayout,
}

impl ToyModel {
    /// A network without grafts; `seed` decides its weights.
    ///
    /// # Errors
    /// When the device cannot hold it.
    pub fn new(seed: u64, device: &Device) -> Result<Self, Error> {
        let mut model = Self {
            weight: init((NUM_CLASSES, NUM_INPUTS), seed, device)?,
            bias: Var::zeros(NUM_CLASSES, candle_core::DType::F32, device)?,
            grafts: Vec::new(),
            parameters: Vec::new(),
            layout: ParameterLayout::new(TopologyRevision(0), Vec::new())?,
        };
        model.arrange(TopologyRevision(0))?;
        Ok(model)
    }

    /// The device it lives on.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.weight.device()
    }

    /// Weights, those of grafts without effect included, by name.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Var)> {
        let host = [("host.bias".to_owned(), self.bias.clone()), ("host.weight".to_owned(), self.weight.clone())];
        host.into_iter().chain(self.grafts.iter().map(|graft| (graft.name(), graft.weight.clone()))).collect()
    }

    /// Gives every seed that has weights a graft with the effect that its stage asks for; [`Self::arrange`] lists them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn graft_as(&mut self, seeds: &[SeedState]) -> Result<(), Error> {
        let has_weights = |seed: &&SeedState| seed.stage.is_live() || seed.stage == SeedStage::Fossilized;
        let mut before = std::mem::take(&mut self.grafts);
        for seed in seeds.iter().filter(has_weights) {
            let mut graft = match before.iter().position(|graft| graft.seed == seed.seed_id) {
                Some(index) => before.swap_remove(index),
                None => Graft::new(seed.seed_id, self.weight.device())?,
            };
            graft.role = match seed.stage {
                _ if seed.paused => Role::Idle,
                SeedStage::Training => Role::Shadow,
                SeedStage::Fossilized => Role::Permanent,
                stage if stage.acts_on_output() => Role::Acting,
                _ => Role::Idle,
            };
            graft.target = seed.alpha_target;
            graft.alpha.set(&scalar(seed.alpha, graft.alpha.device())?)?;
            self.grafts.push(graft);
        }
        Ok(())
    }

    /// Lists parameters and layout anew after the grafts have changed.
    ///
    /// # Errors
    /// When two parameters have one name.
    pub fn arrange(&mut self, revision: TopologyRevision) -> Result<(), Error> {
        let mut parts = vec![
            ("host.bias".to_owned(), self.bias.clone(), Owner::Host, false),
            ("host.weight".to_owned(), self.weight.clone(), Owner::Host, false),
        ];
        for graft in self.grafts.iter().filter(|graft| graft.role != Role::Idle) {
            let owner = if graft.role == Role::Permanent { Owner::Host } else { Owner::Seed(graft.seed) };
            parts.push((graft.name(), graft.weight.clone(), owner, graft.role == Role::Shadow));
        }
        parts.sort_by(|a, b| a.0.cmp(&b.0));
        let specs = parts
            .iter()
            .map(|(name, var, owner, isolated)| SegmentSpec {
                name: name.clone(),
                shape: var.dims().to_vec(),
                owner: *owner,
                isolated: *isolated,
            })
            .collect();
        self.layout = ParameterLayout::new(revision, specs)?;
        self.parameters = parts.into_iter().map(|(name, var, ..)| Parameter { name, var }).collect();
        Ok(())
    }
}

impl ErrorType for ToyModel {
    type Error = Error;
}

impl TrainableModel for ToyModel {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn forward(&self, inputs: &Tensor, pass: Pass<'_>) -> Result<Outputs, Error> {
        let overrides = match pass {
            Pass::Train => &[],
            Pass::Evaluate { overrides } => overrides,
        };
        if let Some(unknown) = overrides.iter().find(|o| self.grafts.iter().all(|graft| graft.seed != o.seed)) {
            return Err(Error::UnknownSeed { seed: unknown.seed });
        }
        let mut logits = inputs.matmul(&self.weight.t()?)?.broadcast_add(&self.bias)?;
        for graft in &self.grafts {
            let alpha = match overrides.iter().find(|o| o.seed == graft.seed) {
                Some(o) => scalar(o.alpha, self.device())?,
                None if matches!(graft.role, Role::Acting | Role::Permanent) => graft.alpha.as_detached_tensor(),
                None => continue,
            };
            logits = (logits + effect(graft, inputs, &alpha)?)?;
        }
        let mut shadows = Vec::new();
        if pass == Pass::Train {
            for graft in self.grafts.iter().filter(|graft| graft.role == Role::Shadow) {
                let alpha = scalar(graft.target, self.device())?;
                let logits = (logits.detach() + effect(graft, inputs, &alpha)?)?;
                shadows.push(Shadow { seed: graft.seed, logits });
            }
        }
        Ok(Outputs { logits, shadows })
    }
}

fn effect(graft: &Graft, inputs: &Tensor, alpha: &Tensor) -> candle_core::Result<Tensor> {
    inputs.matmul(&graft.weight.t()?)?.broadcast_mul(alpha)
}

/// The value that a device scalar holds for this alpha.
#[expect(clippy::cast_possible_truncation, reason = "device scalars are f32; 0 and 1 stay exact")]
fn scalar(alpha: Alpha, device: &Device) -> candle_core::Result<Tensor> {
    Tensor::new(alpha.get() as f32, device)
}

fn init(shape: (usize, usize), seed: u64, device: &Device) -> candle_core::Result<Var> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let weights = (0..shape.0 * shape.1).map(|_| rng.random_range(-INIT..INIT)).collect();
    Var::from_vec(weights, shape, device)
}
