//! Measurements as a table for the terminal.

use std::collections::BTreeMap;

use crate::measure::Measurement;

/// A line per measurement with its name, median, 95th percentile, unit and repetitions, in columns.
#[must_use]
pub fn table(measurements: &BTreeMap<String, Measurement>) -> String {
    let head = ["measurement", "median", "p95", "unit", "n"].map(str::to_owned);
    let rows = measurements
        .iter()
        .map(|(name, m)| [name.clone(), digits(m.median), digits(m.p95), m.unit.clone(), m.n.to_string()]);
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [name, median, p95, unit, n] = std::array::from_fn(width);
    rows.iter().map(|[a, b, c, d, e]| format!("  {a:<name$}  {b:>median$}  {c:>p95$}  {d:<unit$}  {e:>n$}\n")).collect()
}

/// Whole numbers as they are, others with four digits after the point.
fn digits(value: f64) -> String {
    if value.fract().abs() < f64::EPSILON { format!("{value:.0}") } else { format!("{value:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let of = |unit, values: &[f64]| Measurement::of(unit, values.to_vec()).unwrap();
        let measurements = BTreeMap::from([
            ("launch".to_owned(), of("us", &[3.25, 3.5])),
            ("memory.with".to_owned(), of("bytes", &[33_554_432.0])),
        ]);
        let expected = "  measurement    median       p95  unit   n\n\
                        \x20 launch         3.2500    3.5000  us     2\n\
                        \x20 memory.with  33554432  33554432  bytes  1\n";
        assert_eq!(table(&measurements), expected);
    }
}
