//! Against the weights that TorchJD finds; `tests/data/torchjd_weights.py` says how they were made.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Vectors {
    radius: f64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    kind: String,
    inner: Vec<f64>,
    orders: Vec<Vec<usize>>,
    pcgrad: Vec<f64>,
    mgda: Vec<f64>,
    mgda_default: Vec<f64>,
    upgrad: Vec<f64>,
    upgrad_default: Vec<f64>,
    cagrad: Vec<f64>,
    aligned_mtl: Vec<f64>,
}

impl Case {
    /// In the average form.
    fn ours(&self, weighting: &dyn Weighting) -> Vec<f64> {
        let n = self.orders.len() as f64;
        weights_of(&self.inner, &self.orders, weighting).iter().map(|weight| weight / n).collect()
    }

    fn product(&self, left: &[f64], right: &[f64]) -> f64 {
        simplex::product(&self.inner, left, right)
    }

    /// The length of the difference of what both combine to, relative to the length of the second.
    fn distance(&self, left: &[f64], right: &[f64]) -> f64 {
        let apart: Vec<f64> = left.iter().zip(right).map(|(a, b)| a - b).collect();
        (self.product(&apart, &apart).max(0.0) / self.product(right, right)).sqrt()
    }

    /// The objective of `CAGrad`'s problem over the hull, at the point that the weights of a direction move along.
    fn bound(&self, weights: &[f64], radius: f64) -> f64 {
        let n = weights.len() as f64;
        let average = vec![1.0 / n; weights.len()];
        let sum: f64 = weights.iter().map(|weight| weight - 1.0 / n).sum();
        let point: Vec<f64> = weights.iter().map(|weight| (weight - 1.0 / n) / sum).collect();
        let length = |x: &[f64]| self.product(x, x).max(0.0).sqrt();
        self.product(&point, &average) + radius * length(&average) * length(&point)
    }

    fn largest(&self) -> f64 {
        self.inner.iter().copied().fold(0.0, f64::max)
    }
}

#[test]
fn the_weights_are_those_of_torchjd() {
    let vectors: Vectors = serde_json::from_str(include_str!("../../../../tests/data/torchjd_weights.json")).unwrap();
    assert_eq!(vectors.cases.len(), 42);
    for case in &vectors.cases {
        let what = |name: &str| format!("{name}, {} case of {}", case.kind, case.orders.len());
        // The same arithmetic but for the order of sums.
        let ours: Vec<f64> = weights_of(&case.inner, &case.orders, &PcGrad);
        assert_close(&ours, &case.pcgrad, 1e-12, &what("pcgrad"));

        // Its iteration nears the shortest vector from above and stops early, so squares are compared: 4e-6 of the
        // largest are left after 200 000 turns of the worst case, 4e-3 after the 100 of the default.
        let (ours, scale) = (case.ours(&Mgda), case.largest());
        let excess = |found: &[f64]| (case.product(found, found) - case.product(&ours, &ours)) / scale;
        assert!((-1e-12..=1e-5).contains(&excess(&case.mgda)), "{}: {}", what("mgda"), excess(&case.mgda));
        assert!((-1e-12..=1e-2).contains(&excess(&case.mgda_default)), "{}", what("mgda by default"));

        // Regularized by 1e-12 of the trace, over a least eigenvalue of 1e-5 of it.
        let ours = case.ours(&UpGrad);
        assert!(case.distance(&ours, &case.upgrad) < 1e-7, "{}", what("upgrad"));
        // By default, 1e-4 of the trace is more than the squares of small gradients, or of what opposed ones leave.
        let bound = if matches!(case.kind.as_str(), "uneven" | "opposed") { 0.25 } else { 0.02 };
        let apart = case.distance(&ours, &case.upgrad_default);
        assert!(apart < bound, "{}: {apart}", what("upgrad by default"));

        // An interior-point solver whose tolerance in the objective is 1e-8; the point, and with it the direction,
        // is off by the root of that.
        let ours = case.ours(&CaGrad { radius: vectors.radius });
        let above = (case.bound(&case.cagrad, vectors.radius) - case.bound(&ours, vectors.radius)) / scale;
        assert!((-1e-9..1e-7).contains(&above), "{}: {above}", what("cagrad"));
        assert!(case.distance(&ours, &case.cagrad) < 1e-3, "{}", what("cagrad's direction"));

        assert_close(&case.ours(&AlignedMtl), &case.aligned_mtl, 1e-10, &what("aligned_mtl"));
    }
}
