//! The 8×8 handwritten digits, part of the program.
//!
//! 1 797 samples, 10 classes, shape (1, 8, 8), grey levels 0..16 scaled to 0..1. Source, licence and sum of the file:
//! `data/digits/README.md`.

use super::{Error, Table, Targets, unpack};

const PACKED: &[u8] = include_bytes!("../digits/digits.csv.gz");
const PLACE: &str = "digits.csv.gz (embedded)";
const SHA256: &str = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8";
/// The text has 264 712 bytes.
const LIMIT_BYTES: u64 = 1 << 19;
/// Largest grey level.
pub(super) const MAX_LEVEL: u8 = 16;

/// Unpacks, checks and scales the embedded set.
///
/// # Errors
/// [`Error::Unpack`] or [`Error::WrongSum`] when the program file is damaged.
pub(super) fn read() -> Result<Table, Error> {
    let text = unpack::gunzip(PACKED, PLACE, LIMIT_BYTES)?;
    unpack::check_sum(&text, SHA256, PLACE)?;
    // Exactly the published bytes: 65 small numbers a line.
    let number = |cell: &str| cell.trim().parse::<u8>().expect("the sum says that these are numbers");
    let text = std::str::from_utf8(&text).expect("the sum says that this is text");
    let (mut inputs, mut labels) = (Vec::new(), Vec::new());
    for (cells, label) in text.lines().filter_map(|line| line.rsplit_once(',')) {
        inputs.extend(cells.split(',').map(|cell| f32::from(number(cell)) / f32::from(MAX_LEVEL)));
        labels.push(u32::from(number(label)));
    }
    Table::new(inputs, vec![1, 8, 8], Targets::numbered(labels, 10))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_set_has_its_published_size_and_class_counts() {
        let table = read().unwrap();
        assert_eq!(table.num_samples(), 1_797);
        assert_eq!(table.sample_shape(), [1, 8, 8]);
        assert_eq!(table.class_counts(), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert_eq!(table.targets().labels().unwrap()[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn grey_levels_become_sixteenths_between_0_and_1() {
        let table = read().unwrap();
        assert_eq!(table.sample(0)[..6], [0.0, 0.0, 5.0 / 16.0, 13.0 / 16.0, 9.0 / 16.0, 1.0 / 16.0]);
        let (mut low, mut high) = (f32::MAX, f32::MIN);
        for &value in table.values() {
            (low, high) = (low.min(value), high.max(value));
        }
        assert_eq!((low, high).partial_cmp(&(0.0, 1.0)), Some(std::cmp::Ordering::Equal));
    }

    /// So a split by rows is a split by images.
    #[test]
    fn no_image_occurs_twice() {
        let table = read().unwrap();
        let images: BTreeSet<Vec<u32>> = (0..table.num_samples())
            .map(|row| table.sample(row).iter().map(|value| value.to_bits()).collect())
            .collect();
        assert_eq!(images.len(), 1_797);
    }
}
