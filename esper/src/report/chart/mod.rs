//! Charts as plain data, laid out for the templates under `templates/report/`.
//!
//! Horizontal positions are percentages and vertical ones pixels, so a chart is as wide as its place and its text keeps
//! its size, on a phone as on a wall. Colors come from the page's style sheet by class, once for light and once for
//! dark. A plotting library writes both into the picture, which is why none is used here.

mod axis;
mod length;
mod plot;
mod curves;
mod gradients;
mod lifecycle;
mod overlay;
mod dots;

pub(crate) use curves::Chart;
pub(super) use curves::{alphas, curves};
pub(crate) use dots::{Across, Dot, dots};
pub(super) use gradients::gradients;
pub(super) use lifecycle::{Lifecycle, lifecycle};
pub(crate) use overlay::{Overlay, overlays};
