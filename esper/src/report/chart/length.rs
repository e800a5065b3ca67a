//! Positions in a picture.

use std::fmt;

/// Percent of the width.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Percent(pub(super) f64);

/// Pixels from the top of the drawing area.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Px(pub(super) f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}%", self.0)
    }
}

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}
