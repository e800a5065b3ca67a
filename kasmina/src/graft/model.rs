//! The grafted network: forward passes, and parameters with their layout.

use candle_core::{DType, Device, Tensor, Var};
use esper_layers::operations::looking;
use leyline::batch::Batch;
use leyline::error::ErrorType;
use leyline::id::{SeedId, TopologyRevision};
use leyline::layout::{Owner, ParameterLayout, SegmentSpec};
use leyline::model::{AlphaOverride, HostNumbers, Outputs, Parameter, Pass, Shadow, TrainableModel};
use leyline::task::Task;
use leyline::unit::Alpha;

use crate::config::ActivationCheckpointing;
use crate::error::Error;
use crate::graft::blend::{SeedBlend, Strength};
use crate::graft::cost::part_of;
use crate::graft::seen::Seen;
use crate::graft::slot::{Observer, Part, SlotGrafts};
use crate::graft::{Graft, Role};
use crate::host::{Host, Past};
use crate::weight::View;

/// A host network with seeds at its slots. Clones share their parameters. It has no host-side method: what changes it, or
/// reads its tensors, is a method of the manager, which asks for a token.
#[derive(Debug, Clone)]
pub struct GraftedModel {
    host: Host,
    /// One per slot of the host, in network order.
    slots: Vec<SlotGrafts>,
    device: Device,
    parameters: Vec<Parameter>,
    layout: ParameterLayout,
    /// Which seed takes which part at which slot: the computation of a training step changes exactly with this.
    structure: Vec<(usize, SeedId, Part)>,
    checkpointing: ActivationCheckpointing,
    /// What a pass of a seed in the shadow may cost, in those of the network.
    shadow_cost: f64,
    /// Of the samples of a microbatch the share that a seed in the shadow learns from, by which it costs no more: one per such seed.
    shadow_shares: Vec<(SeedId, f64)>,
}

impl GraftedModel {
    /// The host without seeds.
    pub(crate) fn new(host: Host, device: Device, revision: TopologyRevision) -> Result<Self, Error> {
        let slots = vec![SlotGrafts::default(); host.slots().len()];
        let layout = ParameterLayout::new(revision, Vec::new())?;
        let (parameters, structure, checkpointing) = (Vec::new(), Vec::new(), ActivationCheckpointing::None);
        let (shadow_cost, shadow_shares) = (f64::INFINITY, Vec::new());
        let mut model =
            Self { host, slots, device, parameters, layout, structure, checkpointing, shadow_cost, shadow_shares };
        model.rebuild(revision)?;
        Ok(model)
    }

    /// The same network, which keeps so much of a training pass.
    pub(crate) fn with_checkpointing(self, checkpointing: ActivationCheckpointing) -> Self {
        Self { checkpointing, ..self }
    }

    /// The same network, in which the passes of a seed in the shadow cost at most so many passes of the network; they are as they were
    /// until the layout is made anew.
    pub(crate) fn with_shadow_cost(self, shadow_cost: Option<f64>) -> Self {
        Self { shadow_cost: shadow_cost.unwrap_or(f64::INFINITY), ..self }
    }

    /// The host network.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Where tensors live.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Type of weights and signals; logits are `f32` for a network of `bf16`.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.host.dtype()
    }

    /// What `seed` does in a forward pass; none when it is not in the network.
    #[must_use]
    pub fn role(&self, seed: SeedId) -> Option<Role> {
        self.graft(seed).map(|graft| graft.role)
    }

    /// The parameters of `seed`, whether or not they train now; none when it is not in the network.
    #[must_use]
    pub fn seed_parameters(&self, seed: SeedId) -> Option<Vec<Parameter>> {
        self.graft(seed).map(|graft| graft.weights().flat_map(|set| set.parameters()).cloned().collect())
    }

    /// The same network, with the same parameters, without the seeds in shadow training.
    ///
    /// # Errors
    /// When the layout cannot be made.
    pub fn without_shadows(&self) -> Result<Self, Error> {
        self.keeping_shadows(|_| false)
    }

    /// The same, but for the seeds to keep.
    pub(crate) fn keeping_shadows(&self, keep: impl Fn(SeedId) -> bool) -> Result<Self, Error> {
        let mut model = self.clone();
        for slot in &mut model.slots {
            slot.live.take_if(|graft| graft.role == Role::Shadow && !keep(graft.seed));
        }
        model.rebuild(self.layout.revision())?;
        Ok(model)
    }

    /// A forward pass without gradient in which `observer` sees every acting seed. Logits (B, classes).
    pub(crate) fn observe(&self, inputs: &Tensor, observer: &mut Observer<'_>) -> Result<Tensor, Error> {
        looking(|| {
            let h = self.host.lift(inputs, View::Frozen)?;
            self.run(h, 0, Seen::default(), View::Frozen, &[], Some(observer))
        })
    }

    /// What the seeds of a slot see, which is the value h behind those that act there, but around a layer, and the gradient of the batch's mean loss with respect to
    /// the output f of a newborn seed there, f = 0, that is seen in full through `blend`.
    pub(crate) fn slot_gradient(
        &self,
        (batch, task): (&Batch, &dyn Task),
        slot_index: usize,
        blend: &SeedBlend,
    ) -> Result<(Tensor, Tensor), Error> {
        let mut h = self.host.lift(&batch.inputs, View::Frozen)?;
        let mut seen = Seen::default();
        for (index, slot) in self.slots[..slot_index].iter().enumerate() {
            h = slot.act(h, seen.at(&self.host, index), View::Frozen, &[], None)?;
            seen.keep(&self.host, index, &h);
            h = self.host.segment(index, h, View::Frozen)?;
        }
        h = self.slots[slot_index].act(h, seen.at(&self.host, slot_index), View::Frozen, &[], None)?.detach();
        let x = seen.at(&self.host, slot_index).unwrap_or(&h).detach();
        let f = Var::from_tensor(&h.zeros_like()?)?;
        let y = blend.mix(&h, f.as_tensor().clone(), Strength::Full, View::Frozen)?;
        seen.keep(&self.host, slot_index, &y);
        let next = self.host.segment(slot_index, y, View::Frozen)?;
        let logits = self.run(next, slot_index + 1, seen, View::Frozen, &[], None)?;
        let gradients = task.mean_loss(&logits, &batch.targets)?.backward()?;
        let gradient = gradients.get(&f).cloned().map_or_else(|| h.zeros_like(), Ok)?;
        Ok((x, gradient))
    }

    /// Of each microbatch the share that a seed in the shadow learns from.
    pub(super) fn shadow_share(&self, seed: SeedId) -> f64 {
        self.shadow_shares.iter().find(|(of, _)| *of == seed).map_or(1.0, |(_, share)| *share)
    }

    /// The largest share of a microbatch with which a pass over it costs no more than is allowed, where one over all of it takes
    /// `shadow` operations and one of the network `network`.
    pub(super) fn share(&self, shadow: f64, network: f64) -> f64 {
        if shadow > 0.0 { (self.shadow_cost * network / shadow).min(1.0) } else { 1.0 }
    }

    pub(super) fn shadow_cost_is_unlimited(&self) -> bool {
        self.shadow_cost.is_infinite()
    }

    /// The same network without its live seeds.
    pub(crate) fn permanent(&self) -> Self {
        let mut model = self.clone();
        model.slots.iter_mut().for_each(|slot| slot.live = None);
        model
    }

    pub(crate) fn grafts(&self) -> impl Iterator<Item = &Graft> {
        self.slots.iter().flat_map(SlotGrafts::grafts)
    }

    pub(crate) fn graft(&self, seed: SeedId) -> Option<&Graft> {
        self.grafts().find(|graft| graft.seed == seed)
    }

    /// Where `seed` sits, counted from the inputs.
    pub(crate) fn slot_index(&self, seed: SeedId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.grafts().any(|graft| graft.seed == seed))
    }

    /// Puts `graft` into the slot, behind the permanent seeds or as the live one. [`Self::refresh`] must follow.
    pub(crate) fn insert(&mut self, slot_index: usize, graft: Graft) {
        let slot = &mut self.slots[slot_index];
        match graft.role {
            Role::Permanent => slot.permanent.push(graft),
            Role::Idle | Role::Shadow | Role::Acting | Role::Fading => slot.live = Some(graft),
        }
    }

    /// Takes a live seed out; none when it is not there or is permanent. [`Self::refresh`] must follow.
    pub(crate) fn take_live(&mut self, seed: SeedId) -> Option<(usize, Graft)> {
        let mut slots = self.slots.iter_mut().enumerate();
        slots.find_map(|(index, slot)| Some((index, slot.live.take_if(|graft| graft.seed == seed)?)))
    }

    /// Writes the device scalar of a live seed. [`Self::refresh`] must follow when α became or was 0.
    pub(crate) fn write_alpha(&mut self, seed: SeedId, alpha: Alpha) -> Result<(), Error> {
        let graft = self.slots.iter_mut().find_map(|slot| slot.live.as_mut().filter(|graft| graft.seed == seed));
        graft.ok_or(Error::UnknownSeed { seed })?.alpha.write(alpha)?;
        Ok(())
    }

    /// Brings parameters and layout up to date. The revision grows when the computation of a training step changed.
    pub(crate) fn refresh(&mut self) -> Result<(), Error> {
        let revision = self.layout.revision();
        if self.current_structure() != self.structure {
            self.rebuild(TopologyRevision(revision.0 + 1))?;
        }
        Ok(())
    }

    /// Brings parameters and layout up to date under this revision.
    pub(crate) fn rebuild(&mut self, revision: TopologyRevision) -> Result<(), Error> {
        let host = self.host.weights().flat_map(|set| set.parameters()).map(|p| (p, Owner::Host, false));
        let learning = self.grafts().filter_map(|graft| Some((graft, graft.part()?)));
        let seeds = learning.filter(|(_, part)| *part != Part::Fading).flat_map(|(graft, part)| {
            let owner = Owner::Seed(graft.seed);
            let parameters = graft.weights().flat_map(|set| set.parameters());
            parameters.map(move |p| (p, owner, part == Part::Shadow))
        });
        let mut entries: Vec<_> = host.chain(seeds).collect();
        entries.sort_by(|(a, ..), (b, ..)| a.name.cmp(&b.name));
        let specs = entries.iter().map(|&(parameter, owner, isolated)| {
            let shape = parameter.var.dims().to_vec();
            SegmentSpec { name: parameter.name.clone(), shape, owner, isolated }
        });
        let layout = ParameterLayout::new(revision, specs.collect())?;
        let parameters = entries.into_iter().map(|(parameter, ..)| parameter.clone()).collect();
        self.structure = self.current_structure();
        (self.layout, self.parameters) = (layout, parameters);
        self.shadow_shares = self.shares()?;
        Ok(())
    }

    fn current_structure(&self) -> Vec<(usize, SeedId, Part)> {
        let slots = self.slots.iter().enumerate();
        slots.flat_map(|(i, slot)| slot.grafts().filter_map(move |g| Some((i, g.seed, g.part()?)))).collect()
    }

    /// From the input of slot `first` to the logits; `seen` are values of slots before it.
    fn run(
        &self,
        mut h: Tensor,
        first: usize,
        mut seen: Seen,
        view: View,
        overrides: &[AlphaOverride],
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<Tensor, Error> {
        for (index, slot) in self.slots.iter().enumerate().skip(first) {
            h = slot.act(h, seen.at(&self.host, index), view, overrides, observer.as_deref_mut())?;
            seen.keep(&self.host, index, &h);
            h = self.host.segment(index, h, view)?;
        }
        Ok(h)
    }

    /// The logits at tokens (n,) that follow those of `past`, each for the token after it: (n, V).
    pub(super) fn next(&self, tokens: &Tensor, past: &mut Past) -> Result<Tensor, Error> {
        past.begin();
        let mut h = self.host.lift_next(tokens, past)?;
        for (index, slot) in self.slots.iter().enumerate() {
            h = slot.next(h, past)?;
            h = self.host.segment_next(index, h, past)?;
        }
        past.advance(tokens.dim(0)?)?;
        Ok(h.squeeze(0)?)
    }

    pub(super) fn train(&self, inputs: &Tensor) -> Result<Outputs, Error> {
        let mut h = self.host.lift(inputs, View::Live)?;
        let (mut shadows, mut seen) = (Vec::new(), Seen::default());
        for (index, slot) in self.slots.iter().enumerate() {
            // What leads to the logits is needed as soon as the backward pass begins.
            let keeps = self.checkpointing == ActivationCheckpointing::None || index + 1 == self.slots.len();
            // Hosts that keep less have no slot that sees another.
            let x = seen.at(&self.host, index);
            h = if keeps { slot.act(h, x, View::Live, &[], None) } else { slot.act_kept_small(h) }?;
            if let Some(graft) = slot.shadow() {
                let (num_samples, share) = (h.dim(0)?, self.shadow_share(graft.seed));
                let num_samples = part_of(num_samples, share);
                let (h, seen) = (h.narrow(0, 0, num_samples)?, seen.detached(num_samples)?);
                let logits = looking(|| self.shadow_logits(graft, index, &h, seen))?;
                shadows.push(Shadow { seed: graft.seed, logits });
            }
            seen.keep(&self.host, index, &h);
            h = if keeps { self.host.segment(index, h, View::Live) } else { self.host.segment_kept_small(index, &h) }?;
        }
        shadows.sort_by_key(|shadow| shadow.seed);
        Ok(Outputs { logits: h, shadows })
    }

    /// What the network would answer had the seed acted in full, with gradient to the seed alone. No gradient flows through `seen`, values of
    /// earlier slots.
    pub(super) fn shadow_logits(
        &self,
        graft: &Graft,
        slot_index: usize,
        h: &Tensor,
        mut seen: Seen,
    ) -> Result<Tensor, Error> {
        let h = h.detach();
        let h = graft.act_in_full(&h, seen.at(&self.host, slot_index).unwrap_or(&h), View::Live)?;
        seen.keep(&self.host, slot_index, &h);
        let h = self.host.segment(slot_index, h, View::Frozen)?;
        self.run(h, slot_index + 1, seen, View::Frozen, &[], None)
    }
}

impl ErrorType for GraftedModel {
    type Error = Error;
}

impl TrainableModel for GraftedModel {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// Hosts and blueprints are built once; α and draws are in tensors, and every change of a seed is one of the layout.
    fn host_numbers(&self) -> HostNumbers {
        HostNumbers::Fixed
    }

    /// Shadow training sees the seed at α = 1. An evaluation has no gradients; its overrides act on every seed that
    /// has parameters, in whatever stage.
    fn forward(&self, inputs: &Tensor, pass: Pass<'_>) -> Result<Outputs, Error> {
        match pass {
            Pass::Train => self.train(inputs),
            Pass::Evaluate { overrides } => {
                if let Some(unknown) = overrides.iter().find(|o| self.graft(o.seed).is_none()) {
                    return Err(Error::UnknownSeed { seed: unknown.seed });
                }
                let answer = || {
                    let h = self.host.lift(inputs, View::Frozen)?;
                    self.run(h, 0, Seen::default(), View::Frozen, overrides, None)
                };
                let logits = if overrides.is_empty() { answer() } else { looking(answer) }?;
                Ok(Outputs { logits, shadows: Vec::new() })
            }
        }
    }
}
