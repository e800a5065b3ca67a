//! The passes over a window's gradients on the CPU.
//!
//! ```text
//!   rows g_1 … g_K ──part_grams──► inner products per part ──► (solve) ──► coefficients ──combine──► Σ c_k g_k in row 1
//!                                                                                combine_and_square ──► and its squares
//! ```
//!
//! Every pass reads each element once. Sums are formed per chunk of the [`Geometry`](crate::grad::Geometry) and added
//! in the order of the chunks. Nothing is allocated once a thread has met its largest window.

mod part_grams;
mod combine;

pub(crate) use combine::{combine, combine_and_square};
pub(crate) use part_grams::part_grams;
