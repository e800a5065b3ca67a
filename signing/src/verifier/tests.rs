//! Every check, and the order between them.

use leyline::id::RunId;

use super::*;
use crate::fixtures::{NOW_MS, command, key, run_id, sign, sign_bytes, verifier};

/// `reason`: why it is rejected; none when it is accepted.
#[track_caller]
fn check_at(verifier: &mut Verifier, now_ms: u64, signed: &SignedCommand, reason: Option<&str>) {
    let before = verifier.window().clone();
    let outcome = verifier.accept(signed, Duration::from_millis(now_ms));
    assert_eq!(outcome.as_ref().err().map(Rejection::reason), reason, "{outcome:?}");
    assert_eq!(verifier.window() == &before, outcome.is_err(), "an accepted command alone is remembered");
}

#[track_caller]
fn check(verifier: &mut Verifier, signed: &SignedCommand, reason: Option<&str>) {
    check_at(verifier, NOW_MS, signed, reason);
}

#[test]
fn numbers_are_accepted_once_and_in_order() {
    let mut verifier = verifier();
    for (sequence, reason) in [
        (0, None),
        (0, Some("sequence_replayed")),
        (1, None),
        (9, None),
        (8, Some("sequence_replayed")),
        (9, Some("sequence_replayed")),
        (u64::MAX, None),
        (u64::MAX, Some("sequence_replayed")),
    ] {
        check(&mut verifier, &sign(0, &command(sequence)), reason);
    }
    check(&mut verifier, &sign(1, &command(0)), None);
}

#[test]
fn a_command_is_fresh_for_its_validity_and_may_be_five_seconds_early() {
    for (valid_for_ms, age_ms, reason) in [
        (60_000, 60_000, None),
        (60_000, 60_001, Some("stale_command")),
        (60_000, i64::try_from(NOW_MS).unwrap(), Some("stale_command")),
        (1, 1, None),
        (1, 2, Some("stale_command")),
        (3_000, 3_000, None),
        (3_000, 3_001, Some("stale_command")),
        (1, -5_000, None),
        (1, -5_001, Some("issued_in_future")),
        (60_000, -5_001, Some("issued_in_future")),
        (0, 0, Some("invalid_validity")),
        (0, 99_999, Some("invalid_validity")),
        (60_001, 0, Some("invalid_validity")),
        (u32::MAX, 0, Some("invalid_validity")),
        (u32::MAX, -9_999, Some("invalid_validity")),
    ] {
        let issued_at_unix_ms = NOW_MS.checked_add_signed(-age_ms).unwrap();
        let command = Command { valid_for_ms, issued_at_unix_ms, ..command(1) };
        check(&mut verifier(), &sign(0, &command), reason);
    }
    let command = Command { issued_at_unix_ms: u64::MAX, ..command(1) };
    check(&mut verifier(), &sign(0, &command), Some("issued_in_future"));
}

#[test]
fn a_fraction_of_a_millisecond_past_the_validity_is_too_old() {
    let command = Command { valid_for_ms: 3_000, ..command(1) };
    let now = Duration::from_millis(NOW_MS + 3_000) + Duration::from_nanos(1);
    let rejection = verifier().accept(&sign(0, &command), now).unwrap_err();
    assert_eq!(rejection.reason(), "stale_command");
}

/// Each row passes all checks before its own and fails that one and every later one that it can fail too.
#[test]
fn the_first_check_that_fails_is_the_one_that_is_reported() {
    let mut verifier = verifier();
    verifier.set_keys(KeyRing::from_iter([key(0)]).with_until(key(1).0, key(1).1, Duration::from_millis(NOW_MS)));
    let used = command(5);
    check(&mut verifier, &sign(0, &used), None);

    let (stale_ms, other) = (NOW_MS - 60_001, RunId::new("run-2").unwrap());
    let mut retired = used.to_bytes();
    let at = retired.iter().rposition(|&byte| byte == 8).unwrap();
    retired[at] = 5;
    let forged = SignedCommand { tag: [0; 32], ..sign_bytes(0, b"nonsense".to_vec()) };
    let rows = [
        (SignedCommand { key_id: KeyId(7), ..forged.clone() }, "unknown_key"),
        (SignedCommand { key_id: KeyId(1), ..forged.clone() }, "invalid_signature"),
        (forged, "invalid_signature"),
        (sign_bytes(1, b"nonsense".to_vec()), "retired_key"),
        (sign_bytes(0, b"nonsense".to_vec()), "malformed_command"),
        (sign_bytes(0, retired), "unsupported_operation"),
        (sign(0, &Command { run_id: other, valid_for_ms: 0, ..used.clone() }), "foreign_run"),
        (sign(0, &Command { valid_for_ms: 0, issued_at_unix_ms: stale_ms, ..used.clone() }), "invalid_validity"),
        (sign(0, &Command { issued_at_unix_ms: stale_ms, ..used.clone() }), "stale_command"),
        (sign(0, &Command { issued_at_unix_ms: NOW_MS + 5_001, ..used.clone() }), "issued_in_future"),
        (sign(0, &used), "sequence_replayed"),
    ];
    for (signed, reason) in rows {
        check(&mut verifier, &signed, Some(reason));
    }
    check_at(
        &mut verifier,
        NOW_MS + 60_001,
        &sign(0, &Command { issued_at_unix_ms: NOW_MS + 60_001, ..command(6) }),
        None,
    );
}

#[test]
fn a_rejected_command_uses_nothing_up() {
    let mut verifier = verifier();
    let early = Command { issued_at_unix_ms: NOW_MS + 5_001, ..command(1) };
    check(&mut verifier, &sign(0, &early), Some("issued_in_future"));
    check_at(&mut verifier, NOW_MS + 1, &sign(0, &early), None);
    check_at(&mut verifier, NOW_MS + 1, &sign(0, &early), Some("sequence_replayed"));
    check(&mut verifier, &sign(0, &command(2)), None);
}

#[test]
fn keys_are_rotated_with_an_overlap() {
    let mut verifier = Verifier::new(run_id(), KeyRing::from_iter([key(0)]));
    check(&mut verifier, &sign(0, &command(7)), None);
    check(&mut verifier, &sign(1, &command(1)), Some("unknown_key"));

    let retires = Duration::from_millis(NOW_MS + 10);
    verifier.set_keys(KeyRing::from_iter([key(1)]).with_until(key(0).0, key(0).1, retires));
    check(&mut verifier, &sign(1, &command(1)), None);
    check_at(&mut verifier, NOW_MS + 9, &sign(0, &command(8)), None);
    check_at(&mut verifier, NOW_MS + 10, &sign(0, &command(9)), Some("retired_key"));
    check_at(&mut verifier, NOW_MS + 10, &sign(1, &command(2)), None);

    // The tag of one key is no tag of the other.
    let crossed = SignedCommand { key_id: KeyId(1), ..sign(0, &command(9)) };
    check(&mut verifier, &crossed, Some("invalid_signature"));

    verifier.set_keys(KeyRing::from_iter([key(1)]));
    check(&mut verifier, &sign(0, &command(9)), Some("unknown_key"));
    verifier.set_keys(KeyRing::from_iter([key(0)]));
    check(&mut verifier, &sign(0, &command(8)), Some("sequence_replayed"));
}

#[test]
fn a_calendar_set_back_lets_nothing_in_again() {
    let mut verifier = verifier();
    let first = sign(0, &command(1));
    check(&mut verifier, &first, None);
    let later = Command { issued_at_unix_ms: NOW_MS + 90_000, ..command(2) };
    check_at(&mut verifier, NOW_MS + 90_000, &sign(0, &later), None);
    check_at(&mut verifier, NOW_MS, &first, Some("sequence_replayed"));
}

#[test]
fn the_reasons_are_stable_and_differ() {
    let mut names = Rejection::REASONS.to_vec();
    assert_eq!(
        names[..6],
        [
            "invalid_signature",
            "malformed_command",
            "foreign_run",
            "sequence_replayed",
            "stale_command",
            "issued_in_future"
        ]
    );
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Rejection::REASONS.len());
}
