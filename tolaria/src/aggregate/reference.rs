//! `PCGrad` as the paper writes it, over whole vectors in `f64`: what the coefficients are checked against.

/// Result of [`pcgrad`].
pub(super) struct Reference {
    /// The combined gradient.
    pub(super) gradient: Vec<f64>,
    /// How often each owner's original gradient is in it.
    pub(super) weights: Vec<f64>,
    /// Ordered pairs with a negative inner product.
    pub(super) conflicting_pairs: u64,
}

/// Projects each of `gradients` onto the originals of the others in the given order, and sums.
pub(super) fn pcgrad(gradients: &[Vec<f64>], orders: &[Vec<usize>]) -> Reference {
    let mut reference = Reference {
        gradient: vec![0.0; gradients[0].len()],
        weights: vec![0.0; gradients.len()],
        conflicting_pairs: 0,
    };
    for (i, order) in orders.iter().enumerate() {
        let mut projected = gradients[i].clone();
        reference.weights[i] += 1.0;
        for &j in order {
            let original = &gradients[j];
            reference.conflicting_pairs += u64::from(dot(&gradients[i], original) < 0.0);
            let inner = dot(&projected, original);
            if inner < 0.0 {
                let coefficient = inner / dot(original, original);
                reference.weights[j] -= coefficient;
                for (value, original) in projected.iter_mut().zip(original) {
                    *value -= coefficient * original;
                }
            }
        }
        for (sum, value) in reference.gradient.iter_mut().zip(projected) {
            *sum += value;
        }
    }
    reference
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
