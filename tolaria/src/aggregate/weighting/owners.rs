//! What a weighting knows of the owners' gradients.

/// An inner product closer to 0 than this part of its scale is rounding: `f64` sums of 10⁷ products err by 1e-13.
pub(super) const NEGLIGIBLE_INNER: f64 = 1e-12;
/// An owner's gradient below this part of its terms' norms is what their rounding to `f32` left of a cancellation; it
/// has no direction that means anything.
pub(super) const CANCELLED: f64 = 1e-5;
/// An owner's gradient below this part of the largest one is left out as well: the coefficient of a projection onto it
/// would leave the range of `f32`.
pub(super) const VANISHING: f64 = 1e-30;

/// Inner products of owners' gradients, as flat numbers that the GPU sees alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owners<'a> {
    /// S.
    pub count: usize,
    /// Row-major (S, S).
    pub inner: &'a [f64],
    /// (S), `Σ_k |C[s,k]| |g_k|`: what rounding of an owner's gradient is relative to.
    pub scales: &'a [f64],
    /// (S), of owners that take no part in the window, or whose gradient counts as zero.
    pub is_idle: &'a [bool],
}

impl Owners<'_> {
    /// The coefficient of the projection of a combination of owners onto owner j, when the two conflict.
    ///
    /// NaN conflicts with nothing.
    pub(crate) fn conflict(&self, combination: &[f64], j: usize) -> Option<f64> {
        let (mut inner, mut scale) = (0.0, 0.0);
        for (i, weight) in combination.iter().enumerate().take(self.count) {
            if self.is_idle[i] {
                continue;
            }
            inner += weight * self.inner[i * self.count + j];
            scale += weight.abs() * self.scales[i];
        }
        let conflicts = inner < -NEGLIGIBLE_INNER * scale * self.scales[j] && !self.is_idle[j];
        conflicts.then(|| inner / self.inner[j * self.count + j])
    }

    /// Whether two owners conflict.
    pub(crate) fn opposed(&self, i: usize, j: usize) -> bool {
        let negligible = NEGLIGIBLE_INNER * self.scales[i] * self.scales[j];
        i != j && !self.is_idle[i] && !self.is_idle[j] && self.inner[i * self.count + j] < -negligible
    }

    /// Owners that are not idle, in order.
    pub(super) fn members(&self) -> impl Iterator<Item = usize> + Clone {
        (0..self.count).filter(|owner| !self.is_idle[*owner])
    }

    /// How many owners are not idle; 0 when their inner products are not those of gradients other than zero.
    pub(super) fn num_usable(&self) -> usize {
        let mut num_usable = 0;
        for i in self.members() {
            let finite = self.members().all(|j| self.inner[i * self.count + j].is_finite());
            if !(finite && self.inner[i * self.count + i] > 0.0) {
                return 0;
            }
            num_usable += 1;
        }
        num_usable
    }

    /// Writes the inner products (n, n) of owners that are not idle, relative to the largest square, and symmetric.
    pub(super) fn normalized(&self, matrix: &mut [f64]) {
        let mut largest = 0.0;
        for i in self.members() {
            let square = self.inner[i * self.count + i];
            if square > largest {
                largest = square;
            }
        }
        let pairs = self.members().flat_map(|i| self.members().map(move |j| (i, j)));
        for (value, (i, j)) in matrix.iter_mut().zip(pairs) {
            let (above, below) = (self.inner[i * self.count + j], self.inner[j * self.count + i]);
            *value = 0.5 * (above / largest + below / largest);
        }
    }
}

/// Finds the owners that no weighting looks at: they take no part in the window, or their gradient counts as zero.
pub(crate) fn idle(inner: &[f64], scales: &[f64], takes_part: impl Fn(usize) -> bool, out: &mut [bool]) {
    let count = scales.len();
    let mut largest: f64 = 0.0;
    for owner in (0..count).filter(|owner| takes_part(*owner)) {
        largest = largest.max(norm(inner[owner * count + owner]));
    }
    for (owner, is_idle) in out.iter_mut().enumerate() {
        let smallest = (CANCELLED * scales[owner]).max(VANISHING * largest);
        *is_idle = !takes_part(owner) || norm(inner[owner * count + owner]) <= smallest;
    }
}

/// Rounding can leave a square slightly below 0; NaN stays NaN.
fn norm(square: f64) -> f64 {
    if square < 0.0 { 0.0 } else { square.sqrt() }
}
