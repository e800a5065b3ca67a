//! What was recorded, in numbers.

use record_only::record;

#[test]
fn each_step_is_a_packet_with_its_values_and_the_last_says_that_it_converged() {
    let packets = record(2.0, 5).unwrap();
    let value = |index: usize, name: &str| packets[index].metric(name).map(|metric| metric.value);
    assert_eq!(packets.len(), 5);
    // 2 → 3/2 → 17/12: the squares are 9/4 and 289/144.
    assert_eq!(value(0, "newton.residual"), Some(0.25));
    assert!((value(1, "newton.residual").unwrap() - 1.0 / 144.0).abs() < 1e-12);
    assert_eq!(value(4, "newton.divisions"), Some(5.0));
    let converged = packets.iter().flat_map(|packet| &packet.events).map(|event| event.attributes["root"].as_str());
    assert_eq!(converged.collect::<Vec<_>>(), ["1.414214", "1.414214"]);
    let lost = packets[4].metric("esper.telemetry.dropped_total").map_or(0.0, |metric| metric.value);
    assert_eq!(lost, 0.0, "nothing was dropped");
}
