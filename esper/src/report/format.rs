//! Numbers and times for people.

use leyline::task::Scale;
use tolaria::measure::named;

/// `12,345`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The nearest count; 0 for negative numbers and for what is no number.
#[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
pub(super) fn rounded(number: f64) -> u64 {
    number.round() as u64
}

/// `1 seed`, `2 seeds`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Bytes as `812 B`, `3.1 KiB`, `1.5 MiB` or `2.0 GiB`.
pub(super) fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB"];
    let exponent = [1 << 10, 1 << 20, 1 << 30].iter().filter(|unit| bytes >= **unit).count();
    match exponent.checked_sub(1) {
        None => format!("{bytes} B"),
        Some(unit) => format!("{:.1} {}", bytes as f64 / f64::from(1 << (10 * exponent)), units[unit]),
    }
}

/// A fraction as `97.25%`.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.2}%", fraction * 100.0)
}

/// Four significant digits, with an exponent where the number is very large or very small.
pub(crate) fn decimal(number: f64) -> String {
    let magnitude = number.abs();
    if magnitude > 0.0 && !(1e-4..1e6).contains(&magnitude) {
        return format!("{number:.2e}");
    }
    let decimals = match magnitude {
        m if m >= 1000.0 => 0,
        m if m >= 100.0 => 1,
        m if m >= 10.0 => 2,
        m if m >= 1.0 => 3,
        _ => 4,
    };
    format!("{number:.decimals$}")
}

/// Whether values of the measure of this name are shown in percent.
pub(crate) fn is_ratio(measure: &str) -> bool {
    named(measure).is_some_and(|about| about.scale == Scale::Ratio)
}

/// Seconds as `12.3 s`, `4 min 05 s`, `2 h 03 min`.
pub(super) fn duration(seconds: f64) -> String {
    // The empty sum of floats is -0.
    let seconds = seconds + 0.0;
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round();
    if whole < 3600.0 {
        format!("{} min {:02} s", (whole / 60.0).floor(), whole % 60.0)
    } else {
        let minutes = (whole / 60.0).round();
        format!("{} h {:02} min", (minutes / 60.0).floor(), minutes % 60.0)
    }
}

/// Milliseconds since 1970-01-01 UTC as `2026-03-01 12:34:56 UTC`.
pub(super) fn calendar(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days from the civil calendar, H. Hinnant, "chrono-compatible low-level date algorithms": years start in March,
    // so that the leap day is the last one.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_in_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!((counted(1, "seed"), counted(0, "seed")), ("1 seed".to_owned(), "0 seeds".to_owned()));
    }

    #[test]
    fn sizes_have_the_largest_unit_that_they_reach() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (3 << 19, "1.5 MiB"),
            (2 << 30, "2.0 GiB"),
            (3 << 40, "3072.0 GiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn numbers_keep_four_significant_digits() {
        let cases = [
            (0.0, "0.0000"),
            (0.012_345, "0.0123"),
            (-1.5, "-1.500"),
            (12.345, "12.35"),
            (123.456, "123.5"),
            (43_210.9, "43211"),
            (0.000_012_3, "1.23e-5"),
            (1.5e9, "1.50e9"),
        ];
        for (number, text) in cases {
            assert_eq!(decimal(number), text);
        }
    }

    #[test]
    fn durations_never_show_sixty() {
        let cases = [
            (-0.0, "0.0 s"),
            (0.04, "0.0 s"),
            (59.9, "59.9 s"),
            (59.97, "1 min 00 s"),
            (65.0, "1 min 05 s"),
            (3599.6, "1 h 00 min"),
            (7_379.0, "2 h 03 min"),
            (7_199.0, "2 h 00 min"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn calendar_days_follow_leap_years() {
        // Checked against `date -u -d @SECONDS`.
        let cases = [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400_000, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199_999, "2024-02-29 23:59:59 UTC"),
            (1_709_251_200_000, "2024-03-01 00:00:00 UTC"),
            (4_107_542_399_000, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400_000, "2100-03-01 00:00:00 UTC"),
        ];
        for (unix_ms, text) in cases {
            assert_eq!(calendar(unix_ms), text);
        }
    }
}
