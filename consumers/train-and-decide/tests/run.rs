//! What deciding is worth here, in numbers.

use tamiyo::PolicyKind;
use train_and_decide::train;

#[test]
fn a_policy_that_decides_grows_the_network_and_one_that_does_not_leaves_it() {
    let off = train(PolicyKind::Off).unwrap();
    let grown = train(PolicyKind::Heuristic).unwrap();
    assert_eq!(off.num_permanent, 0);
    assert!(grown.num_permanent >= 1 && grown.accuracy > off.accuracy + 0.03, "{off:?}, {grown:?}");
}
