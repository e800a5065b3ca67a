//! Fuel: how many rewrites the passes may do, counted in one place.

/// Counts the rewrites of all passes together, and ends them after so many.
#[derive(Debug)]
pub(super) struct Fuel {
    left: usize,
    burnt: usize,
}

impl Fuel {
    /// Enough for `limit` rewrites; absent never ends.
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self { left: limit.unwrap_or(usize::MAX), burnt: 0 }
    }

    /// Whether one more rewrite may be done, which then counts. A pass asks when it knows that it could do one, right
    /// before it does.
    pub(super) fn burn(&mut self) -> bool {
        let may = self.left > 0;
        if may {
            self.left -= 1;
            self.burnt += 1;
        }
        may
    }

    /// Whether no further rewrite may be done.
    pub(super) fn is_out(&self) -> bool {
        self.left == 0
    }

    /// Rewrites so far.
    pub(super) fn burnt(&self) -> usize {
        self.burnt
    }
}
