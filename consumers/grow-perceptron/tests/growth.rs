//! What growing does to the network, in numbers.

use grow_perceptron::grow;

/// Products of matrices may round differently from processor to processor, and 1000 steps follow one another.
const TOLERANCE: f32 = 0.02;

#[test]
fn a_seed_that_helps_becomes_permanent_and_the_loss_falls() {
    let growth = grow().unwrap();
    assert!((growth.loss.0 - 1.087).abs() < TOLERANCE, "{growth:?}");
    assert!((growth.loss.1 - 0.809).abs() < TOLERANCE, "{growth:?}");
    // Of the host 2·3 + 3 and 3·4 + 4, of the seed 2·8 + 8 and 8·2 + 2.
    assert_eq!(growth.num_elements, (25, 25 + 42));
    assert!((18..=24).contains(&growth.num_epochs), "{growth:?}");
}
