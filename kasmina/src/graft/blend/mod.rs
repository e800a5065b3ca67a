//! Blends: how one seed is mixed with the host's value.
//!
//! h: the host's value at the slot. f: what the seed's module computes from it, of the shape of h: (B, C), (B, C, L),
//! (B, C, H, W) or, in a sequence, (B, L, C). a: α of the seed, in (0, 1]; at α = 0 no blend is computed at all and the
//! output is h itself. A tensor w of one weight per channel or per sample stands for its broadcast to the shape of h.
//! ∂h is the part of the gradient that does not pass through f; gradients of all modes pass through f(h) to the host too,
//! and nothing is detached but the gate of `confidence`.
//!
//! | mode | output y | ∂h | ∂f | y at birth, f = 0 |
//! |---|---|---|---|---|
//! | `residual` | h + a·f | 1 | a | h |
//! | `convex` | (1 − a)·h + a·f | 1 − a | a | (1 − a)·h |
//! | `channel` | (1 − a·v)·h + a·v·f, v (C) in `[0, 1]` | 1 − a·v | a·v | (1 − a·v)·h |
//! | `confidence` | (1 − a·g)·h + a·g·f, g = g(f) (B), held fixed | 1 − a·g | a·g | (1 − a·g)·h, g = clamp(σ(−k·τ)) |
//! | `multiply` | h·(1 + a·tanh f) | 1 + a·tanh f, in `[1 − a, 1 + a]` | a·h·(1 − tanh² f) | h |
//! | `gate` | h + a·g·f, g = g(h) (B), learned | 1 + a·f·∂g/∂h | a·g | h |
//!
//! - `confidence`: g = clamp(σ(k·(m − τ)), low, high); m (B) is the difference of the two largest softmax probabilities
//!   over the C channels of f, of its mean over the positions where there are any. It needs two channels or more.
//! - `gate`: g = σ(W₂·relu(W₁·p + b₁) + b₂), p (B, C) the mean of h over its positions, with max(8, ⌊C/4⌋) hidden units.
//!   W₁ (C, hidden), b₁ (hidden), W₂ (hidden, 1) and b₂ (1) belong to the seed and train with it, in the shadow as well.
//!   W₂ and b₂ start at 0, so the gate of a newborn seed is half open for every sample.
//!
//! At a = 1 nothing is multiplied by α where leaving it out gives the same number. The exception is `convex`, which
//! computes 0·h + 1·f: a permanent seed gives the very bits that it gave at α = 1 before, and the host has a gradient (of
//! 0) even before a seed that ignores its input (TM-3). For an h that is finite this is f.
//!
//! # Source
//! Residual branches: He et al. 2016 (arXiv 1512.03385), with a learned factor Bachlechner et al. 2020 (arXiv
//! 2003.04887); convex mixes and gates: Srivastava et al. 2015 (arXiv 1505.00387); a gate from pooled channels: Hu et al.
//! 2018 (arXiv 1709.01507); scaling the host's features: Perez et al. 2018 (arXiv 1709.07871). Modes and the constants of
//! `confidence`: the older system, whose host was detached.

mod strength;
mod axes;
mod constant;
mod confidence;
mod gate;
mod seed_blend;

pub(crate) use seed_blend::SeedBlend;
pub(crate) use strength::Strength;
